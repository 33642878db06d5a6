//! Listening sockets, made through socket2.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
};

use net::{Family, Protocol as Transport};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{bound::BoundAddress, set_keep_alive, set_unaltered};

/// Number of connections that the kernel completes while we are busy; it limits this to
/// `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The owner of the address that a listener binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The node's, or the wildcard.
    Node,
    /// The wildcard, with a port to which rules redirect. The rules let packets through only to
    /// sockets with IP_TRANSPARENT, which a program without CAP_NET_ADMIN and CAP_NET_RAW cannot
    /// set.
    Redirected,
    /// One that is not in the kernel's local table: binding it, and
    /// answering from it, takes IP_TRANSPARENT (`ip(7)`) or its IPv6 twin.
    Other,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bind {
    /// Local address and port of the socket.
    pub address: SocketAddr,
    /// The owner of the address.
    pub owner: Owner,
}

impl Bind {
    /// The wildcard `address` to which rules redirect.
    pub fn redirected(address: SocketAddr) -> Bind {
        Bind {
            address,
            owner: Owner::Redirected,
        }
    }

    /// An address of the node, or the wildcard.
    pub fn of_node(address: SocketAddr) -> Bind {
        Bind {
            address,
            owner: Owner::Node,
        }
    }
}

/// Opens a TCP socket that is bound, not yet listening. Several may share the address, one per
/// worker (SO_REUSEPORT, `socket(7)`). Accepted connections inherit the options of
/// [`set_unaltered`] and [`set_keep_alive`] from it.
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn tcp(bind: Bind) -> io::Result<Socket> {
    let socket = open(bind, Type::STREAM, Protocol::TCP)?;
    socket.set_reuse_address(true)?;
    set_unaltered(SockRef::from(&socket))?;
    set_keep_alive(SockRef::from(&socket))?;
    socket.bind(&bind.address.into())?;
    Ok(socket)
}

/// Opens a bound TCP socket that will not listen: the kernel refuses connections to its address,
/// and no other user's program can bind its port. It has no SO_REUSEADDR: otherwise any program
/// that has it could listen there, on the wildcard address as well (`inet_bind_conflict` in
/// net/ipv4/inet_connection_sock.c). Sockets of [`tcp`] share the address (SO_REUSEPORT).
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn reserve_tcp(bind: Bind) -> io::Result<Socket> {
    let socket = open(bind, Type::STREAM, Protocol::TCP)?;
    socket.bind(&bind.address.into())?;
    Ok(socket)
}

/// Opens a bound UDP socket that receives no datagrams, and returns it with its address: connected
/// to itself it receives only its own datagrams (`udp(7)`), the kernel refuses the rest, and no
/// other user's program can bind its port. The socket is `None` where even loopback is down, which
/// leaves the port to any program.
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn reserve_udp(bind: Bind) -> io::Result<(SocketAddr, Option<Socket>)> {
    let socket = open(bind, Type::DGRAM, Protocol::UDP)?;
    socket.bind(&bind.address.into())?;
    let bound = socket.local_addr()?.as_socket();
    let bound = bound.ok_or(io::ErrorKind::AddrNotAvailable)?;
    let myself = SocketAddr::new(Family::of(&bound.ip()).localhost(), bound.port());
    let connected = socket.connect(&myself.into());
    Ok((bound, connected.ok().map(|()| socket)))
}

/// Starts to listen on a bound socket.
///
/// # Errors
/// Those of listen(2).
pub fn start(socket: Socket) -> io::Result<std::net::TcpListener> {
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Prepares a bound socket that another process opened: sets the options that [`tcp`] and [`udp`]
/// would have set for `bind`, as far as they can differ.
///
/// # Errors
/// Those of setsockopt(2).
pub fn adopt(socket: OwnedFd, bind: Bind) -> io::Result<Socket> {
    let socket = Socket::from(socket);
    socket.set_nonblocking(true)?;
    transparent(&socket, bind)?;
    Ok(socket)
}

/// Returns what a socket that another process opened is bound to; `None` if it is neither a listening TCP socket
/// nor a bound UDP socket that takes datagrams from anyone.
pub fn identity(socket: &impl AsFd) -> Option<BoundAddress> {
    let socket = SockRef::from(socket);
    let address = socket.local_addr().ok()?.as_socket()?;
    let (kind, protocol) = (socket.r#type().ok()?, socket.protocol().ok()?);
    let listens = socket.is_listener().ok()?;
    let protocol = match (kind, protocol) {
        (Type::STREAM, Some(Protocol::TCP)) if listens => Transport::Tcp,
        (Type::DGRAM, Some(Protocol::UDP)) if socket.peer_addr().is_err() => Transport::Udp,
        _ => return None,
    };
    (address.port() != 0).then_some(BoundAddress { protocol, address })
}

/// Receive buffer of a UDP listener while its worker is busy, in bytes of the kernel's memory,
/// which counts more than half a kilobyte for the smallest datagram. The default, 208 KiB
/// (`net.core.rmem_default`), is full when some 270 clients ask at the same moment; in the kernel's
/// own paths none would be lost.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;

/// Opens a bound UDP socket that reports to which of the node's addresses a datagram was sent
/// (IP_PKTINFO).
///
/// # Errors
/// Those of socket(2), setsockopt(2) and bind(2).
pub fn udp(bind: Bind) -> io::Result<std::net::UdpSocket> {
    let socket = open(bind, Type::DGRAM, Protocol::UDP)?;
    // Beyond `net.core.rmem_max` only with CAP_NET_ADMIN, which rootless mode lacks (`socket(7)`);
    // the buffer is then as large as allowed.
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
    let address = bind.address;
    let socket = Socket::new(
        Domain::for_address(address),
        kind.nonblocking().cloexec(),
        Some(protocol),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(true)?;
    transparent(&socket, bind)?;
    Ok(socket)
}

fn transparent(socket: &Socket, bind: Bind) -> io::Result<()> {
    let set = || match bind.address.is_ipv4() {
        true => socket.set_ip_transparent_v4(true),
        false => socket.set_ip_transparent_v6(true),
    };
    match bind.owner {
        Owner::Node => Ok(()),
        Owner::Other => set(),
        // Where it is not allowed, the rules do not require it.
        Owner::Redirected => set().or(Ok(())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_listens_or_is_bound_has_an_identity_and_nothing_else() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let bound = tcp(Bind::of_node(any.parse().unwrap())).unwrap();
            assert_eq!(identity(&bound), None, "it does not listen");
            let listening = start(bound).unwrap();
            let address = listening.local_addr().unwrap();
            let protocol = Transport::Tcp;
            assert_eq!(
                identity(&listening),
                Some(BoundAddress { protocol, address })
            );
            let connected = std::net::TcpStream::connect(address).unwrap();
            assert_eq!(identity(&connected), None);
            super::super::records::stop_listening(&listening);
            assert_eq!(identity(&listening), None);

            let ours = udp(Bind::of_node(any.parse().unwrap())).unwrap();
            let address = ours.local_addr().unwrap();
            let protocol = Transport::Udp;
            assert_eq!(identity(&ours), Some(BoundAddress { protocol, address }));
            ours.connect(address).unwrap();
            assert_eq!(identity(&ours), None, "it takes datagrams of one peer");
        }
        let (pair, _other) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        assert_eq!(identity(&pair), None);
        let (pipe, _other) = nix::unistd::pipe().unwrap();
        assert_eq!(identity(&pipe), None);
    }

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
