//! Listening sockets, made through socket2.

use std::{io, net::SocketAddr};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::set_options;

/// Connections that the kernel completes while we are busy; it cuts this to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Whose address a listener binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The node's, or the wildcard.
    Node,
    /// One that is not in the kernel's local table: binding it, and
    /// answering from it, takes IP_TRANSPARENT (`ip(7)`) or its IPv6 twin.
    Other,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bind {
    /// Address and port.
    pub address: SocketAddr,
    /// Whose address it is.
    pub owner: Owner,
}

impl Bind {
    /// Returns the bind of an address of the node, or of the wildcard.
    pub fn of_node(address: SocketAddr) -> Bind {
        Bind {
            address,
            owner: Owner::Node,
        }
    }
}

/// Returns a TCP socket that is bound, not yet listening. Several may share the
/// address, one a worker (SO_REUSEPORT, `socket(7)`). Accepted connections
/// inherit the options of [`set_options`] from it.
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn tcp(bind: Bind) -> io::Result<Socket> {
    let socket = open(bind, Type::STREAM, Protocol::TCP)?;
    set_options(SockRef::from(&socket))?;
    socket.bind(&bind.address.into())?;
    Ok(socket)
}

/// Lets connections come in on a bound socket.
///
/// # Errors
/// Those of listen(2).
pub fn start(socket: Socket) -> io::Result<std::net::TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// What a UDP listener may store while its worker is busy, in bytes of the
/// kernel's memory, which counts more than half a kilobyte for the smallest
/// datagram. The default, 208 KiB (`net.core.rmem_default`), is full when some 270
/// clients ask in the same moment; in the kernel's own paths none would be lost.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Returns a bound UDP socket that says which of the node's addresses a datagram
/// came to (IP_PKTINFO).
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn udp(bind: Bind) -> io::Result<std::net::UdpSocket> {
    let socket = open(bind, Type::DGRAM, Protocol::UDP)?;
    // Beyond `net.core.rmem_max` with CAP_NET_ADMIN only, which rootless has not
    // (`socket(7)`); the buffer then is as large as may be.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    if bind.address.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    socket.bind(&bind.address.into())?;
    Ok(socket.into())
}

fn open(bind: Bind, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let Bind { address, owner } = bind;
    let socket = Socket::new(
        Domain::for_address(address),
        kind.nonblocking().cloexec(),
        Some(protocol),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if kind == Type::STREAM {
        socket.set_reuse_address(true)?;
    }
    socket.set_reuse_port(true)?;
    if owner == Owner::Other {
        if address.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
        } else {
            socket.set_ip_transparent_v6(true)?;
        }
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_clients_may_ask_in_the_same_moment() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let ours = udp(Bind::of_node(any.parse().unwrap())).unwrap();
            let client = std::net::UdpSocket::bind(any).unwrap();
            client.connect(ours.local_addr().unwrap()).unwrap();
            for _ in 0..1_000 {
                client.send(b"?").unwrap();
            }
            let heard = (0..1_000).filter(|_| ours.recv(&mut [0; 1]).is_ok());
            assert_eq!(heard.count(), 1_000);
        }
    }
}
