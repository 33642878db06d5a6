//! Deletes the entries of connections that were not answered.
//!
//! Rules of nat apply to the first packet for which there is no entry. The SYN that a client sends
//! again therefore goes to the endpoint that its first SYN went to, for as long as there is the
//! entry (`nf_conntrack_tcp_timeout_syn_sent`, 120 seconds), and so does a new connection from the
//! same port. Without the entry it goes where the rules send it now.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    slice,
};

use net::{Family, Frontend, Protocol};

use super::{
    flows::{self, Flow, Match, STATUS, TCP},
    state::SEEN_REPLY,
};
use crate::{Error, Socket};

/// `CTA_STATUS_MASK` of `linux/netfilter/nfnetlink_conntrack.h`: which bits of the status a dump is
/// filtered by. Kernels that do not have it list entries of any status.
const STATUS_MASK: u16 = 26;

/// Deletes the entries of TCP connections of `family` that were translated to an endpoint that `is`
/// true for, and that it did not answer; returns how many there were. One that it answers while the
/// table is read stays.
///
/// # Errors
/// When the kernel refuses, as without CAP_NET_ADMIN (EPERM) or without ctnetlink (EINVAL), or its
/// answer cannot be read: the first that it refused, after all others have been deleted.
pub fn delete(
    socket: &mut Socket,
    family: Family,
    is: impl Fn(&SocketAddr) -> bool,
) -> Result<usize, Error> {
    delete_if(socket, family, TCP, |flow| {
        let endpoint = flow.reply.source;
        flow.original.destination != endpoint && is(&endpoint)
    })
}

/// Deletes the entries of connections of `protocol` to one of `frontends` that were neither
/// translated nor answered, and returns how many there were: they began before the frontend was
/// served. A node port is looked for on any address.
///
/// # Errors
/// The same as for [`delete`].
pub fn delete_untranslated(
    socket: &mut Socket,
    family: Family,
    protocol: Protocol,
    frontends: &HashSet<Frontend>,
) -> Result<usize, Error> {
    let mut ranges: HashMap<_, Vec<_>> = HashMap::new();
    for at in frontends.iter().filter(|at| at.last_port.is_some()) {
        ranges
            .entry((at.protocol, at.address))
            .or_default()
            .push(at.ports());
    }
    delete_if(socket, family, protocol.number(), |flow| {
        let called = flow.original.destination;
        let service = Frontend::service(protocol, called.ip(), called.port());
        let node_port = Frontend::node_port(protocol, family, called.port());
        let in_range = || {
            let ranges = ranges.get(&(protocol, service.address));
            ranges.is_some_and(|all| all.iter().any(|ports| ports.contains(&called.port())))
        };
        flow.reply.source == called
            && (frontends.contains(&service) || frontends.contains(&node_port) || in_range())
    })
}

fn delete_if(
    socket: &mut Socket,
    family: Family,
    protocol: u8,
    is: impl Fn(&Flow) -> bool,
) -> Result<usize, Error> {
    let request = flows::dump(family, &[Match::all(protocol)])
        .be32(STATUS, 0)
        .be32(STATUS_MASK, SEEN_REPLY);
    let found = socket.dump(&request, |message| {
        let flow = flows::parse(message)?;
        let is_meant =
            |flow: &Flow| flow.protocol == protocol && !flow.state.is_answered() && is(flow);
        Ok(flow.filter(is_meant))
    })?;
    let (mut deleted, mut refused) = (0, Ok(()));
    for flow in found {
        // The endpoint may have answered while the table was read: the next packet of a connection
        // without its entry is taken for the first packet of another one.
        let outcome = match flows::look_up(socket, &flow) {
            Ok(Some(now)) if !now.state.is_answered() => {
                flows::delete_all(socket, family, slice::from_ref(&flow))
            }
            Ok(_) => Ok(0),
            Err(error) => Err(error),
        };
        match outcome {
            Ok(count) => deleted += count,
            Err(error) => refused = refused.and(Err(error)),
        }
    }
    refused.map(|()| deleted)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use testing::in_namespace;

    use super::*;
    use crate::conntrack::{
        entries,
        flows::{Tuple, UDP},
    };

    /// How long entries last without packets.
    const SECONDS: u32 = 600;
    /// `IPS_CONFIRMED`, which every entry of the table has.
    const CONFIRMED: u32 = 1 << 3;

    #[test]
    fn connections_that_were_not_answered_are_deleted() {
        in_namespace(|| {
            let mut socket = Socket::open(crate::Protocol::Netfilter).unwrap();
            let at = |address: &str| address.parse::<SocketAddr>().unwrap();
            let families = [
                (
                    Family::V4,
                    ["192.0.2.1", "10.96.0.1:80", "10.1.0.7:80", "10.1.0.8:80"],
                ),
                (
                    Family::V6,
                    [
                        "[2001:db8::1]",
                        "[fd96::1]:80",
                        "[fd01::7]:80",
                        "[fd01::8]:80",
                    ],
                ),
            ];
            for (_, [client, called, gone, other]) in families {
                let tuples = |port: u16, served: &str| {
                    let source = at(&format!("{client}:{port}"));
                    let destination = at(if port == 4 { served } else { called });
                    let original = Tuple {
                        source,
                        destination,
                    };
                    let reply = Tuple {
                        source: at(served),
                        destination: source,
                    };
                    (original, reply)
                };
                for (protocol, port, served) in [
                    (TCP, 1, gone),
                    (TCP, 2, other),
                    (TCP, 4, gone),
                    (UDP, 5, gone),
                ] {
                    let (original, reply) = tuples(port, served);
                    let flow = entries::flow(protocol, original, reply, SECONDS);
                    socket.call(&flow, |_| Ok(None::<()>)).unwrap();
                }
                let (original, reply) = tuples(3, gone);
                let answered = entries::flow(TCP, original, reply, SECONDS);
                let answered = answered.be32(STATUS, SEEN_REPLY | CONFIRMED);
                socket.call(&answered, |_| Ok(None::<()>)).unwrap();
            }
            for (family, [_, _, gone, _]) in families {
                let deleted =
                    delete(&mut socket, family, |endpoint| *endpoint == at(gone)).unwrap();
                assert_eq!(deleted, 1, "{family}");
                let mut left = flows::list(&mut socket, family, &[Match::all(TCP)]).unwrap();
                left.sort_by_key(|flow| flow.original.source.port());
                let ports = left.iter().map(|flow| flow.original.source.port());
                assert_eq!(ports.collect::<Vec<_>>(), [2, 3, 4], "{family}");
                let udp = flows::list(&mut socket, family, &[Match::all(UDP)]).unwrap();
                assert_eq!(udp.len(), 1, "{family}");
            }
        });
    }

    #[test]
    fn connections_that_began_before_their_frontend_are_deleted() {
        in_namespace(|| {
            let mut socket = Socket::open(crate::Protocol::Netfilter).unwrap();
            let at = |address: &str| address.parse::<SocketAddr>().unwrap();
            let (node, service, endpoint) = ("10.7.0.1:30080", "10.96.0.1:80", "10.1.0.7:80");
            let mut enter = |port: u16, called: &str, served: &str, status: u32| {
                let source = at(&format!("192.0.2.1:{port}"));
                let original = Tuple {
                    source,
                    destination: at(called),
                };
                let reply = Tuple {
                    source: at(served),
                    destination: source,
                };
                let entry =
                    entries::flow(TCP, original, reply, SECONDS).be32(STATUS, status | CONFIRMED);
                socket.call(&entry, |_| Ok(None::<()>)).unwrap();
            };
            enter(1, service, service, 0);
            enter(2, service, endpoint, 0);
            enter(3, service, service, SEEN_REPLY);
            enter(4, "10.96.0.1:81", "10.96.0.1:81", 0);
            enter(5, node, node, 0);
            enter(6, "10.96.0.1:101", "10.96.0.1:101", 0);
            let tcp = Protocol::Tcp;
            let frontends = [
                Frontend::service(tcp, at(service).ip(), 80),
                Frontend::node_port(tcp, Family::V4, 30_080),
                Frontend::range(tcp, at(service).ip(), 100, NonZeroU16::new(102).unwrap()),
            ];
            let frontends = frontends.into();
            for expected in [3, 0] {
                let found = delete_untranslated(&mut socket, Family::V4, tcp, &frontends);
                assert_eq!(found.unwrap(), expected);
            }
            let mut left = flows::list(&mut socket, Family::V4, &[Match::all(TCP)]).unwrap();
            left.sort_by_key(|flow| flow.original.source.port());
            let ports = left.iter().map(|flow| flow.original.source.port());
            assert_eq!(ports.collect::<Vec<_>>(), [2, 3, 4]);
        });
    }
}
