//! Listening sockets, made through socket2.

use std::{io, net::SocketAddr, time::Duration};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Connections that the kernel completes while we are busy; it cuts this to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Idle time before the first keep-alive probe, between probes, and their
/// number: a peer that vanished is noticed within two minutes.
const KEEP_ALIVE: (Duration, Duration, u32) = (Duration::from_secs(60), Duration::from_secs(15), 4);

/// Whose address a listener binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The node's, or the wildcard.
    Node,
    /// A Service's, which is not in the kernel's local table: binding it, and
    /// answering from it, takes IP_TRANSPARENT (`ip(7)`) or its IPv6 twin.
    Service,
}

/// A TCP socket bound to `address`, not yet listening. Several may share the
/// address, one a worker (SO_REUSEPORT, `socket(7)`). Accepted connections
/// inherit the options of [`stream`] from it.
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn tcp(address: SocketAddr, owner: Owner) -> io::Result<Socket> {
    let socket = open(address, owner, Type::STREAM, Protocol::TCP)?;
    stream(SockRef::from(&socket))?;
    socket.bind(&address.into())?;
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

/// What a UDP listener may hold while its worker is busy, in bytes of the
/// kernel's memory, which counts more than half a kilobyte for the smallest
/// datagram. The default, 208 KiB (`net.core.rmem_default`), is full when some 270
/// clients ask in the same moment; in the kernel's own paths none would be lost.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// A UDP socket bound to `address` that tells which of the node's addresses a
/// datagram came to (IP_PKTINFO).
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn udp(address: SocketAddr, owner: Owner) -> io::Result<std::net::UdpSocket> {
    let socket = open(address, owner, Type::DGRAM, Protocol::UDP)?;
    // Beyond `net.core.rmem_max` with CAP_NET_ADMIN only, which rootless has not
    // (`socket(7)`); the buffer then is as large as may be.
    if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
        socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    }
    if address.is_ipv4() {
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
    } else {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn open(address: SocketAddr, owner: Owner, kind: Type, protocol: Protocol) -> io::Result<Socket> {
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
    if owner == Owner::Service {
        if address.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
        } else {
            socket.set_ip_transparent_v6(true)?;
        }
    }
    Ok(socket)
}

/// Sets TCP_NODELAY and keep-alive: what a client or backend sends is passed
/// on at once, and one that vanished is noticed. And SO_OOBINLINE: a byte that
/// was sent as urgent stays in its place among the others (RFC 6093 section 5);
/// without it the kernel takes it out of the stream (`tcp(7)`).
///
/// # Errors
/// Those of setsockopt(2).
pub fn stream(socket: SockRef<'_>) -> io::Result<()> {
    let (idle, interval, probes) = KEEP_ALIVE;
    socket.set_tcp_nodelay(true)?;
    socket.set_out_of_band_inline(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(idle)
            .with_interval(interval)
            .with_retries(probes),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_clients_may_ask_in_the_same_moment() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let ours = udp(any.parse().unwrap(), Owner::Node).unwrap();
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
