//! Listening sockets, made through socket2.

use std::{io, net::SocketAddr, time::Duration};

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
/// inherit TCP_NODELAY and keep-alive from it.
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn tcp(address: SocketAddr, owner: Owner) -> io::Result<Socket> {
    let socket = open(address, owner, Type::STREAM, Protocol::TCP)?;
    keep_alive(SockRef::from(&socket))?;
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

/// A UDP socket bound to `address` that tells which of the node's addresses a
/// datagram came to (IP_PKTINFO).
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn udp(address: SocketAddr, owner: Owner) -> io::Result<std::net::UdpSocket> {
    let socket = open(address, owner, Type::DGRAM, Protocol::UDP)?;
    if address.is_ipv4() {
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::Ipv4PacketInfo, &true)?;
    } else {
        nix::sys::socket::setsockopt(
            &socket,
            nix::sys::socket::sockopt::Ipv6RecvPacketInfo,
            &true,
        )?;
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
/// on at once, and one that vanished is noticed.
///
/// # Errors
/// Those of setsockopt(2).
pub fn keep_alive(socket: SockRef<'_>) -> io::Result<()> {
    let (idle, interval, probes) = KEEP_ALIVE;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(idle)
            .with_interval(interval)
            .with_retries(probes),
    )
}
