//! Datagrams with the local address that they were sent to, so that the answer leaves from the same
//! one: a redirected or node-port client would not recognise it otherwise (IP_PKTINFO, `ip(7)`; RFC
//! 3542 section 6).

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6},
    os::fd::AsRawFd,
};

use nix::{
    libc,
    sys::socket::{
        ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, SockaddrIn6, SockaddrStorage,
        recvmsg, send, sendmsg,
    },
};
use tokio::net::UdpSocket;

/// Sender, destination and length of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// Length of the datagram, in bytes.
    pub len: usize,
    /// The address that the datagram came from.
    pub from: SocketAddr,
    /// The address it was sent to.
    pub to: IpAddr,
}

/// Returns a control-message buffer of the size that one packet-info message needs.
pub fn control_buffer() -> Vec<u8> {
    nix::cmsg_space!(libc::in6_pktinfo)
}

/// Receives one datagram without waiting.
///
/// # Errors
/// Those of recvmsg(2); `WouldBlock` when there is none.
pub fn receive(
    socket: &impl AsRawFd,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<Received> {
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(control),
        MsgFlags::MSG_DONTWAIT,
    )?;
    let to = message.cmsgs()?.find_map(|c| match c {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(IpAddr::from(
            u32::from_be(info.ipi_spec_dst.s_addr).to_be_bytes(),
        )),
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(IpAddr::from(info.ipi6_addr.s6_addr)),
        _ => None,
    });
    let from = message.address.as_ref().and_then(socket_address);
    match (from, to) {
        (Some(from), Some(to)) => Ok(Received {
            len: message.bytes,
            from,
            to,
        }),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a datagram without sender or packet info",
        )),
    }
}

fn socket_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address
        .as_sockaddr_in()
        .map(|a| SocketAddrV4::from(*a).into());
    v4.or_else(|| {
        address
            .as_sockaddr_in6()
            .map(|a| SocketAddrV6::from(*a).into())
    })
}

/// Sends one datagram to the address that `socket` is connected to, without waiting. Asks the
/// kernel even if tokio has not seen the socket writable yet, as is the case just after the socket
/// was made.
///
/// # Errors
/// Those of send(2); `WouldBlock` when the socket's buffer is full.
pub fn send_connected(socket: &UdpSocket, bytes: &[u8]) -> io::Result<()> {
    send(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT)?;
    Ok(())
}

/// Sends one datagram to `to` from our address `from`, without waiting.
///
/// # Errors
/// Those of sendmsg(2); `WouldBlock` when the socket's buffer is full.
pub fn send_from(
    socket: &impl AsRawFd,
    bytes: &[u8],
    from: IpAddr,
    to: SocketAddr,
) -> io::Result<()> {
    let parts = [IoSlice::new(bytes)];
    let fd = socket.as_raw_fd();
    let flags = MsgFlags::MSG_DONTWAIT;
    match (from, to) {
        (IpAddr::V4(from), SocketAddr::V4(to)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: libc::in_addr {
                    s_addr: from.to_bits().to_be(),
                },
                ipi_addr: libc::in_addr { s_addr: 0 },
            };
            let control = [ControlMessage::Ipv4PacketInfo(&info)];
            sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn::from(to)))?;
        }
        (IpAddr::V6(from), SocketAddr::V6(to)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: from.octets(),
                },
                // Link-local clients are reached over the link from which they called.
                ipi6_ifindex: to.scope_id(),
            };
            let control = [ControlMessage::Ipv6PacketInfo(&info)];
            sendmsg(fd, &parts, &control, flags, Some(&SockaddrIn6::from(to)))?;
        }
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::socket::listening::{self, Bind};

    #[tokio::test]
    async fn the_answer_leaves_from_the_address_that_was_called() {
        for (wildcard, called) in [("0.0.0.0:0", "127.0.0.7"), ("[::]:0", "::1")] {
            let ours = listening::udp(Bind::of_node(wildcard.parse().unwrap())).unwrap();
            let port = ours.local_addr().unwrap().port();
            let ours = UdpSocket::from_std(ours).unwrap();
            let called: IpAddr = called.parse().unwrap();
            let client = std::net::UdpSocket::bind((called, 0)).unwrap();
            client.connect((called, port)).unwrap();
            client.send(b"question").unwrap();

            let (mut buffer, mut control) = ([0; 64], control_buffer());
            ours.readable().await.unwrap();
            let got = receive(&ours, &mut buffer, &mut control).unwrap();
            assert_eq!(&buffer[..got.len], b"question");
            assert_eq!(got.to, called);
            assert_eq!(got.from, client.local_addr().unwrap());

            // A connected socket accepts answers only from the address that it called.
            send_from(&ours, b"answer", got.to, got.from).unwrap();
            let n = client.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], b"answer");
        }
    }
}
