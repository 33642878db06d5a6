//! The next hop of packets to an address (`linux/rtnetlink.h`).

use std::{collections::HashSet, net::IpAddr};

use net::{Family, octets};
use nix::{errno::Errno, libc};

use super::routes::if_known;
use crate::{Error, Malformed, Message, Request, RtMsg, Socket};

/// A gateway of another family than the route.
const RTA_VIA: u16 = libc::RTA_VIA;
/// Offset of the attributes in a `struct rtnexthop`.
const NEXT_HOP_HEADER: usize = 8;

/// The next hop to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NextHop {
    /// There is none: packets to the address are delivered here.
    Here,
    /// The address is a neighbour on the link of that index.
    Neighbour(u32),
    /// A gateway on the link of that index.
    Gateway(u32),
}

impl NextHop {
    /// Index of the link that packets leave through; `None` for this node itself.
    pub fn link(self) -> Option<u32> {
        match self {
            NextHop::Here => None,
            NextHop::Neighbour(link) | NextHop::Gateway(link) => Some(link),
        }
    }
}

/// Returns the next hop to `address` for packets of this node; `None`: there is
/// no way.
///
/// # Errors
/// When the kernel's answer cannot be read.
pub fn to(socket: &mut Socket, address: &IpAddr) -> Result<Option<NextHop>, Error> {
    let family = Family::of(address);
    let header = RtMsg {
        family: family.number(),
        dst_len: family.bits(),
        ..RtMsg::default()
    };
    let object = format!("the route to {address}");
    let request = Request::new(libc::RTM_GETROUTE, 0, "look up", object)
        .rtmsg(header)
        .attribute(libc::RTA_DST, &octets(address));
    let found = socket.call(&request, of_route);
    const NO_WAY: [Errno; 5] = [
        Errno::ENETUNREACH,
        Errno::EHOSTUNREACH,
        Errno::EACCES,
        Errno::EINVAL,
        Errno::EAFNOSUPPORT,
    ];
    match found {
        Err(error) if error.errno().is_some_and(|e| NO_WAY.contains(&e)) => Ok(None),
        other => Ok(other?.pop()),
    }
}

/// Returns the next hop of the route that a message describes; `None`: packets go nowhere.
pub fn of_route(message: Message<'_>) -> Result<Option<NextHop>, Malformed> {
    let header: [u8; 12] = message.header()?;
    if header[7] == libc::RTN_LOCAL {
        return Ok(Some(NextHop::Here));
    }
    if header[7] != libc::RTN_UNICAST {
        return Ok(None);
    }
    let route = RouteAttributes::of(&message)?;
    Ok(route.link.map(|link| {
        if route.gateway {
            NextHop::Gateway(link)
        } else {
            NextHop::Neighbour(link)
        }
    }))
}

/// Attributes of a route that tell its next hops.
#[derive(Default)]
struct RouteAttributes {
    /// Index of its link.
    link: Option<u32>,
    /// Whether it has a gateway.
    gateway: bool,
    /// The links on which next hops of a multipath route have a gateway.
    among: Vec<u32>,
}

impl RouteAttributes {
    fn of(message: &Message<'_>) -> Result<RouteAttributes, Malformed> {
        let mut route = RouteAttributes::default();
        for attribute in message.attributes(12) {
            let attribute = attribute?;
            match attribute.kind {
                libc::RTA_OIF => route.link = Some(attribute.u32()?),
                libc::RTA_GATEWAY | RTA_VIA => route.gateway = true,
                libc::RTA_MULTIPATH => route.among.extend(among(attribute.payload)?),
                _ => {}
            }
        }
        Ok(route)
    }
}

/// Returns the links on which some route of `family`, in any table, has a gateway: hosts on such a
/// link have other routes than through this node.
///
/// # Errors
/// When the kernel cannot list routes.
pub fn with_gateways(socket: &mut Socket, family: Family) -> Result<HashSet<u32>, Error> {
    let header = RtMsg {
        family: family.number(),
        ..RtMsg::default()
    };
    let object = format!("{family} routes");
    let request = Request::new(libc::RTM_GETROUTE, 0, "list", object).rtmsg(header);
    let mut links = HashSet::new();
    let listed = socket.dump(&request, |message| {
        links.extend(gateways(message)?);
        Ok(None::<()>)
    });
    if_known(listed)?;
    Ok(links)
}

/// Indexes of the links on which the route of the message has a gateway.
pub fn gateways(message: Message<'_>) -> Result<Vec<u32>, Malformed> {
    let route = RouteAttributes::of(&message)?;
    let link = route.link.filter(|_| route.gateway);
    Ok(route.among.into_iter().chain(link).collect())
}

/// Returns the same for the next hops of a multipath route: each a `struct
/// rtnexthop` (length, flags, hops, index of the link) with attributes.
fn among(mut hops: &[u8]) -> Result<Vec<u32>, Malformed> {
    let mut links = Vec::new();
    while let Some(&[a, b, _, _, c, d, e, f]) = hops.first_chunk::<NEXT_HOP_HEADER>() {
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let hop = hops
            .get(..length)
            .filter(|hop| hop.len() >= NEXT_HOP_HEADER)
            .ok_or(Malformed("next hop is shorter than it says"))?;
        let message = Message {
            kind: 0,
            flags: 0,
            sequence: 0,
            body: hop,
        };
        for attribute in message.attributes(NEXT_HOP_HEADER) {
            if matches!(attribute?.kind, libc::RTA_GATEWAY | RTA_VIA) {
                links.push(u32::from_ne_bytes([c, d, e, f]));
                break;
            }
        }
        hops = hops.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(links)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use testing::{in_namespace, ip};

    use super::*;
    use crate::{Protocol, links};

    #[test]
    fn neighbours_gateways_and_what_is_here() {
        in_namespace(|| {
            for command in [
                "link add lan type veth peer name far",
                "link set lan up",
                "link set far up",
                "link add pods type bridge",
                "link set pods up",
                "addr add 192.0.2.1/24 dev lan",
                "addr add 10.1.0.1/24 dev pods",
                "addr add 2001:db8::1/64 dev lan nodad",
                "addr add fd00:1::1/64 dev pods nodad",
                "route add 198.51.100.0/24 via 192.0.2.9",
                "route add 2001:db8:51::/64 via 2001:db8::9",
                "route add unreachable 203.0.113.0/24",
                "route add 203.0.114.0/24 nexthop via 192.0.2.7 nexthop via 192.0.2.8",
            ] {
                ip(command);
            }
            let mut socket = Socket::open(Protocol::Route).unwrap();
            let [lan, pods] = ["lan", "pods"].map(|name| links::index(name).unwrap());
            let cases = [
                ("192.0.2.1", Some(NextHop::Here)),
                ("127.0.0.1", Some(NextHop::Here)),
                ("192.0.2.5", Some(NextHop::Neighbour(lan))),
                ("10.1.0.7", Some(NextHop::Neighbour(pods))),
                ("198.51.100.3", Some(NextHop::Gateway(lan))),
                ("203.0.113.3", None),
                ("100.64.0.1", None),
                ("::1", Some(NextHop::Here)),
                ("2001:db8::1", Some(NextHop::Here)),
                ("2001:db8::7", Some(NextHop::Neighbour(lan))),
                ("fd00:1::7", Some(NextHop::Neighbour(pods))),
                ("2001:db8:51::7", Some(NextHop::Gateway(lan))),
                ("2001:db8:99::7", None),
            ];
            // The route of an own IPv6 address comes a moment after the address
            // (addrconf_dad_work).
            let deadline = Instant::now() + Duration::from_secs(10);
            for own in ["2001:db8::1", "fd00:1::1"] {
                let own = own.parse().unwrap();
                while to(&mut socket, &own).unwrap() != Some(NextHop::Here) {
                    assert!(Instant::now() < deadline, "{own} has no route");
                }
            }
            for (address, expected) in cases {
                let found = to(&mut socket, &address.parse().unwrap()).unwrap();
                assert_eq!(found, expected, "{address}");
            }
            let both = Family::ALL.map(|family| with_gateways(&mut socket, family).unwrap());
            assert_eq!(both, [HashSet::from([lan]), HashSet::from([lan])]);
            ip("route del 198.51.100.0/24");
            let several = with_gateways(&mut socket, Family::V4).unwrap();
            assert_eq!(several, HashSet::from([lan]), "among several next hops");
            ip("route del 203.0.114.0/24");
            assert!(with_gateways(&mut socket, Family::V4).unwrap().is_empty());
            for (index, kind) in [
                (lan, Some("veth")),
                (pods, Some("bridge")),
                (1, None),
                (999, None),
            ] {
                assert_eq!(links::kind(&mut socket, index).unwrap().as_deref(), kind);
            }
        });
    }

    #[test]
    fn malformed_next_hops_are_named() {
        assert!(among(&[]).unwrap().is_empty());
        for length in [0u16, 7, 100] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.resize(16, 0);
            assert!(among(&bytes).is_err(), "length {length}");
        }
    }
}
