//! Gives connection tracking entries for connections whose beginning it has not seen.
//!
//! It takes the first packet that it sees of a connection for the first that there was
//! (`nf_conntrack_tcp_loose`), so that rules of nat apply to it. An entry without translation
//! prevents that.

use std::net::IpAddr;

use net::{Family, octets};
use nix::{errno::Errno, libc};

use super::flows::{
    CT_NEW, DESTINATION_PORT, PROTOCOL_INFO, PROTOCOL_NUMBER, PROTOCOL_STATE, SOURCE_PORT, STATUS,
    TCP, TIMEOUT, TUPLE_IP, TUPLE_ORIGINAL, TUPLE_PROTOCOL, TUPLE_REPLY, Tuple, V4_DESTINATION,
    V4_SOURCE, V6_DESTINATION, V6_SOURCE,
};
use crate::{Error, Request, Socket};

/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED` of `enum ip_conntrack_status`
/// (`linux/netfilter/nf_conntrack_common.h`).
const ESTABLISHED_STATUS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// `CTA_PROTOINFO_TCP` of `linux/netfilter/nfnetlink_conntrack.h`.
const OF_TCP: u16 = 1;
/// `CTA_PROTOINFO_TCP_FLAGS_ORIGINAL` and `_REPLY`
const FLAGS: [u16; 2] = [4, 5];
/// `TCP_CONNTRACK_ESTABLISHED` of `linux/netfilter/nf_conntrack_tcp.h`.
const ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_BE_LIBERAL` (`linux/netfilter/nf_conntrack_tcp.h`), as flags and mask of
/// `struct nf_ct_tcp_flags`: the windows are not known.
const LIBERAL: [u8; 2] = [8, 8];
/// How long an entry stays without a packet, in seconds: kube-proxy's value for established
/// connections (`conntrack.tcpEstablishedTimeout`). From the first packet on, the kernel's own
/// setting applies.
const SECONDS: u32 = 86_400;

/// Gives connection tracking an entry without translation for each established TCP
/// connection among `tuples`, from who began it to who was called. Returns how many had
/// none. All are of `family`.
///
/// # Errors
/// When the kernel refuses, as without CAP_NET_ADMIN (EPERM), without ctnetlink (EINVAL) or
/// where its table is full (ENOMEM); the entries before that one have been added.
pub fn add_established(
    socket: &mut Socket,
    family: Family,
    tuples: &[Tuple],
) -> Result<usize, Error> {
    let requests: Vec<_> = tuples.iter().map(|tuple| request(family, tuple)).collect();
    let mut added = 0;
    for outcome in socket.batch(&requests, &[])? {
        match outcome {
            Ok(()) => added += 1,
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(added)
}

fn request(family: Family, tuple: &Tuple) -> Request {
    let object = format!(
        "the entry of the connection from {} to {}",
        tuple.source, tuple.destination
    );
    let reply = Tuple {
        source: tuple.destination,
        destination: tuple.source,
    };
    entry(family, TCP, [tuple, &reply], object)
        .be32(STATUS, ESTABLISHED_STATUS)
        .be32(TIMEOUT, SECONDS)
        .nested(PROTOCOL_INFO, |r| {
            r.nested(OF_TCP, |r| {
                let r = r.attribute(PROTOCOL_STATE, &[ESTABLISHED]);
                FLAGS.iter().fold(r, |r, of| r.attribute(*of, &LIBERAL))
            })
        })
}

/// Returns the request that adds a flow, which ends when no packet came for that many seconds.
pub fn flow(protocol: u8, original: Tuple, reply: Tuple, seconds: u32) -> Request {
    let family = Family::of(&original.source.ip());
    entry(family, protocol, [&original, &reply], "a flow".to_owned()).be32(TIMEOUT, seconds)
}

/// Returns the request that adds an entry, up to its original and reply tuple.
fn entry(family: Family, protocol: u8, [original, reply]: [&Tuple; 2], object: String) -> Request {
    let flags = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
    Request::new(CT_NEW, flags, "add", object)
        .nfgenmsg(family.number())
        .nested(TUPLE_ORIGINAL, |r| write(r, protocol, original))
        .nested(TUPLE_REPLY, |r| write(r, protocol, reply))
}

fn write(request: Request, protocol: u8, tuple: &Tuple) -> Request {
    let (source, destination) = match tuple.source.ip() {
        IpAddr::V4(_) => (V4_SOURCE, V4_DESTINATION),
        IpAddr::V6(_) => (V6_SOURCE, V6_DESTINATION),
    };
    request
        .nested(TUPLE_IP, |r| {
            r.attribute(source, &octets(&tuple.source.ip()))
                .attribute(destination, &octets(&tuple.destination.ip()))
        })
        .nested(TUPLE_PROTOCOL, |r| {
            r.attribute(PROTOCOL_NUMBER, &[protocol])
                .attribute(SOURCE_PORT, &tuple.source.port().to_be_bytes())
                .attribute(DESTINATION_PORT, &tuple.destination.port().to_be_bytes())
        })
}

#[cfg(test)]
mod tests {
    use testing::in_namespace;

    use super::*;
    use crate::{
        Protocol,
        conntrack::flows::{self, Match},
    };

    #[test]
    fn an_entry_is_of_an_established_connection_that_nothing_translates() {
        in_namespace(|| {
            let mut socket = Socket::open(Protocol::Netfilter).unwrap();
            for (family, ends) in [
                (Family::V4, ["192.0.2.1:40000", "10.96.0.1:80"]),
                (Family::V6, ["[2001:db8::1]:40000", "[fd00:96::1]:80"]),
            ] {
                let [source, destination] = ends.map(|end| end.parse().unwrap());
                let tuple = Tuple {
                    source,
                    destination,
                };
                assert_eq!(add_established(&mut socket, family, &[tuple]).unwrap(), 1);
                assert_eq!(add_established(&mut socket, family, &[tuple]).unwrap(), 0);
                let found = flows::list(&mut socket, family, &[Match::all(TCP)]).unwrap();
                assert_eq!(found.len(), 1, "{found:?}");
                assert_eq!(found[0].original, tuple);
                assert_eq!(found[0].state.name(TCP), "ESTABLISHED");
                assert!(found[0].state.is_answered());
                assert_eq!(flows::translated(&mut socket, family).unwrap(), 0);
            }
        });
    }
}
