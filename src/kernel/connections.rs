//! TCP connections that end in this network namespace, whoever's they are: `sock_diag(7)`,
//! `linux/inet_diag.h`.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use nix::libc;

use super::netlink::{Error, Malformed, Message, Request, Socket};
use crate::net::Family;

/// `SOCK_DIAG_BY_FAMILY` of `linux/sock_diag.h`.
const BY_FAMILY: u16 = 20;
/// Size of `struct inet_diag_sockid`.
const ID: usize = 48;
/// Size of what precedes it in `struct inet_diag_req_v2`.
const ASKED: usize = 8;
/// Size of what precedes it in `struct inet_diag_msg`.
const ANSWERED: usize = 4;

/// States in which bytes may still come from the other end or go there, as bits of their
/// numbers in `enum` of `net/tcp_states.h`: all but `TIME_WAIT` (6), `CLOSE` (7) and `LISTEN`
/// (10). A handshake under way is `SYN_RECV` (3) or, in the kernel's own words,
/// `NEW_SYN_RECV` (12); what this end began itself and waits for is `SYN_SENT` (2).
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
/// [`Protocol::SocketDiagnosis`]: super::netlink::Protocol::SocketDiagnosis
pub fn tcp(socket: &mut Socket, family: Family) -> Result<Vec<Connection>, Error> {
    list(socket, family, OPEN)
}

/// Lists the ports that TCP sockets of `family` listen on, at whatever address.
///
/// # Errors
/// The same as for [`tcp`].
pub fn listening(socket: &mut Socket, family: Family) -> Result<HashSet<u16>, Error> {
    let sockets = list(socket, family, LISTENING)?.into_iter();
    Ok(sockets.map(|socket| socket.local.port()).collect())
}

fn list(socket: &mut Socket, family: Family, states: u32) -> Result<Vec<Connection>, Error> {
    // struct inet_diag_req_v2: family, protocol, what else to tell, padding, states; an empty
    // id means every socket.
    let mut header = [0; ASKED + ID];
    header[0] = family.number();
    header[1] = libc::IPPROTO_TCP as u8;
    header[4..ASKED].copy_from_slice(&states.to_ne_bytes());
    let object = format!("{family} sockets of TCP");
    let request = Request::new(BY_FAMILY, 0, "list", object).header(&header);
    socket.dump(&request, |message| parse(message, family))
}

/// Reads a connection; `None` for one of another family.
pub(in crate::kernel) fn parse(
    message: Message<'_>,
    family: Family,
) -> Result<Option<Connection>, Malformed> {
    let header: [u8; ANSWERED + ID] = message.header()?;
    if message.kind != BY_FAMILY || header[0] != family.number() {
        return Ok(None);
    }
    let id = &header[ANSWERED..];
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    let address = |at: usize| -> IpAddr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&id[at..at + 16]);
        match family {
            Family::V4 => [octets[0], octets[1], octets[2], octets[3]].into(),
            Family::V6 => octets.into(),
        }
    };
    // struct inet_diag_sockid: source port, destination port, source, destination.
    Ok(Some(Connection {
        local: SocketAddr::new(address(4), port(0)),
        remote: SocketAddr::new(address(20), port(2)),
    }))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::kernel::{namespace::in_namespace, netlink::Protocol};

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
                // A connection that no program has accepted counts, too, and a reset ends it.
                drop(listener);
                assert_eq!(tcp(&mut socket, family).unwrap(), []);
            }
        });
    }
}
