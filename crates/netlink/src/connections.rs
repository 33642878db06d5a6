//! TCP connections that end in this network namespace, in whichever process: `sock_diag(7)`,
//! `linux/inet_diag.h`.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use net::Family;
use nix::{errno::Errno, libc};

use crate::{Error, Malformed, Message, Request, Socket};

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// Size of `struct inet_diag_sockid`.
const ID: usize = 48;
/// Size of the fields before the id in `struct inet_diag_req_v2`.
const ASKED: usize = 8;
/// Size of the fields before the id in `struct inet_diag_msg`.
const ANSWERED: usize = 4;
/// Size of `struct inet_diag_msg`, which ends with the user and the inode of the socket.
const MESSAGE: usize = ANSWERED + ID + 20;

/// States in which bytes may still come from the other end or go there, as bits of their numbers in
/// `enum` of `net/tcp_states.h`: all but `TIME_WAIT` (6), `CLOSE` (7) and `LISTEN` (10). A
/// handshake under way is `SYN_RECV` (3) or, in the kernel's own words, `NEW_SYN_RECV` (12); a
/// handshake that this end began is `SYN_SENT` (2).
const OPEN: u32 = 1 << 1 | 1 << 3 | 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11 | 1 << 12;

/// `TCP_LISTEN` of `net/tcp_states.h`, as a bit of its number.
const LISTENING: u32 = 1 << 10;

/// The two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// The end in this network namespace.
    pub local: SocketAddr,
    /// The other end, which may be here, too.
    pub remote: SocketAddr,
}

/// Lists the open TCP connections of `family`. The cost is one pass over all sockets of
/// TCP.
///
/// # Errors
/// When the kernel cannot list them, as without `tcp_diag` (ENOENT), or its answer cannot be
/// read. The `socket` is one of [`Protocol::SocketDiagnosis`].
///
/// [`Protocol::SocketDiagnosis`]: crate::Protocol::SocketDiagnosis
pub fn tcp(socket: &mut Socket, family: Family) -> Result<Vec<Connection>, Error> {
    list(socket, family, OPEN)
}

/// Lists the ports that TCP sockets of `family` listen on, at any address.
///
/// # Errors
/// The same as for [`tcp`].
pub fn listening(socket: &mut Socket, family: Family) -> Result<HashSet<u16>, Error> {
    let sockets = list(socket, family, LISTENING)?.into_iter();
    Ok(sockets.map(|socket| socket.local.port()).collect())
}

/// Returns the user whose socket is the local end of `connection`, as its number in this user
/// namespace; `None`: no program has such a socket open. The cost does not depend on the number of
/// sockets.
///
/// # Errors
/// The same as for [`tcp`].
pub fn user(socket: &mut Socket, connection: Connection) -> Result<Option<u32>, Error> {
    let family = Family::of(&connection.local.ip());
    let mut header = asked(family, u32::MAX);
    let id = &mut header[ASKED..];
    id[0..2].copy_from_slice(&connection.local.port().to_be_bytes());
    id[2..4].copy_from_slice(&connection.remote.port().to_be_bytes());
    for (at, end) in [(4, connection.local), (20, connection.remote)] {
        match end.ip() {
            IpAddr::V4(ip) => id[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => id[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    // INET_DIAG_NOCOOKIE: with any cookie.
    id[ID - 8..].fill(0xff);
    let object = format!("socket of TCP at {}", connection.local);
    let request = Request::new(BY_FAMILY, 0, "find", object).header(&header);
    let found = socket.call(&request, |message| user_of(message, connection));
    match found {
        Ok(found) => Ok(found.into_iter().next().flatten()),
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the user of the socket. A socket that no program has open has no inode; older kernels say
/// that root has it.
fn user_of(message: Message<'_>, connection: Connection) -> Result<Option<Option<u32>>, Malformed> {
    if message.kind != BY_FAMILY {
        return Ok(None);
    }
    let header: [u8; MESSAGE] = message.header()?;
    let number = |at: usize| {
        u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let (user, inode) = (number(MESSAGE - 8), number(MESSAGE - 4));
    // A socket of IPv6 may have a connection of IPv4.
    let mut families = Family::ALL.into_iter();
    let family = families.find(|family| family.number() == header[0]);
    let family = family.ok_or(Malformed("of an unknown IP family"))?;
    let found = ends(&header[ANSWERED..], family);
    // The kernel may have found a listening socket at that address instead.
    let is_it = found.local.ip().to_canonical() == connection.local.ip()
        && found.remote.ip().to_canonical() == connection.remote.ip()
        && found.local.port() == connection.local.port()
        && found.remote.port() == connection.remote.port();
    Ok(Some((is_it && inode != 0).then_some(user)))
}

fn list(socket: &mut Socket, family: Family, states: u32) -> Result<Vec<Connection>, Error> {
    let object = format!("{family} sockets of TCP");
    // An empty id means every socket.
    let request = Request::new(BY_FAMILY, 0, "list", object).header(&asked(family, states));
    socket.dump(&request, |message| parse(message, family))
}

/// Writes `struct inet_diag_req_v2` with an empty id: family, protocol, further fields to report,
/// padding, states.
fn asked(family: Family, states: u32) -> [u8; ASKED + ID] {
    let mut header = [0; ASKED + ID];
    header[0] = family.number();
    header[1] = libc::IPPROTO_TCP as u8;
    header[4..ASKED].copy_from_slice(&states.to_ne_bytes());
    header
}

/// Reads a connection; `None` for one of another family.
pub fn parse(message: Message<'_>, family: Family) -> Result<Option<Connection>, Malformed> {
    let header: [u8; ANSWERED + ID] = message.header()?;
    if message.kind != BY_FAMILY || header[0] != family.number() {
        return Ok(None);
    }
    Ok(Some(ends(&header[ANSWERED..], family)))
}

/// Reads `struct inet_diag_sockid`: source port, destination port, source, destination.
fn ends(id: &[u8], family: Family) -> Connection {
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    let address = |at: usize| -> IpAddr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&id[at..at + 16]);
        match family {
            Family::V4 => [octets[0], octets[1], octets[2], octets[3]].into(),
            Family::V6 => octets.into(),
        }
    };
    Connection {
        local: SocketAddr::new(address(4), port(0)),
        remote: SocketAddr::new(address(20), port(2)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use testing::in_namespace;

    use super::*;
    use crate::Protocol;

    #[test]
    fn both_ends_are_listed_until_they_are_closed() {
        in_namespace(|| {
            for (family, at) in [(Family::V4, "127.0.0.1:0"), (Family::V6, "[::1]:0")] {
                let listener = TcpListener::bind(at).unwrap();
                let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let ends = Connection {
                    local: client.local_addr().unwrap(),
                    remote: client.peer_addr().unwrap(),
                };
                let other = Connection {
                    local: ends.remote,
                    remote: ends.local,
                };
                let mut socket = Socket::open(Protocol::SocketDiagnosis).unwrap();
                let found = tcp(&mut socket, family).unwrap();
                assert_eq!(found.len(), 2, "{found:?}");
                assert!(found.contains(&ends) && found.contains(&other), "{found:?}");
                let ports = listening(&mut socket, family).unwrap();
                assert_eq!(ports, [ends.remote.port()].into());
                let own = nix::unistd::geteuid().as_raw();
                assert_eq!(user(&mut socket, ends).unwrap(), Some(own));
                // No program has accepted it.
                assert_eq!(user(&mut socket, other).unwrap(), None);
                let nobody = Connection {
                    remote: SocketAddr::new(ends.remote.ip(), 1),
                    ..ends
                };
                assert_eq!(user(&mut socket, nobody).unwrap(), None);
                // A connection that no program has accepted counts, too, and a reset ends it.
                drop(listener);
                assert_eq!(tcp(&mut socket, family).unwrap(), []);
            }
        });
    }
}
