//! Tripod's own routes ([`PROTOCOL`]) in any table (`linux/rtnetlink.h`).

use std::{fmt, net::IpAddr};

use ipnet::IpNet;
use net::{Family, octets};
use nix::{errno::Errno, libc};

use super::PROTOCOL;
use crate::{Error, Malformed, Message, Request, RtMsg, Socket};

/// The table of the kernel's own local routes (`RT_TABLE_LOCAL`), which has the
/// node's addresses and is searched before every rule of Tripod.
pub const TABLE_LOCAL: u32 = libc::RT_TABLE_LOCAL as u32;

/// The kernel's treatment of a packet that takes a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The packet is delivered to a socket here, through the interface of that
    /// index.
    Local(u32),
    /// The packet is refused: programs here get EACCES, others an ICMP
    /// "prohibited".
    Prohibit,
}

/// A route that Tripod owns.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// Number of the routing table that contains it.
    pub table: u32,
    /// Destination of the packets that take it.
    pub destination: IpNet,
    /// The kernel's treatment of these packets.
    pub kind: Kind,
    /// Source address of packets that programs of this node send by this route without having
    /// chosen one; `None`: the kernel chooses.
    pub source: Option<IpAddr>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Local(_) => "local",
            Kind::Prohibit => "prohibit",
        };
        write!(f, "route {kind} {} table {}", self.destination, self.table)
    }
}

impl Route {
    fn request(&self, kind: u16, flags: i32, operation: &'static str) -> Request {
        let (number, scope) = match self.kind {
            Kind::Local(_) => (libc::RTN_LOCAL, libc::RT_SCOPE_HOST),
            Kind::Prohibit => (libc::RTN_PROHIBIT, libc::RT_SCOPE_UNIVERSE),
        };
        // A deletion matches any scope (`RT_SCOPE_NOWHERE`).
        let scope = if kind == libc::RTM_DELROUTE {
            libc::RT_SCOPE_NOWHERE
        } else {
            scope
        };
        let header = RtMsg {
            family: Family::of(&self.destination.addr()).number(),
            dst_len: self.destination.prefix_len(),
            // See RTA_TABLE.
            table: 0,
            protocol: PROTOCOL,
            scope,
            kind: number,
        };
        let mut request = Request::new(kind, flags as u16, operation, self.to_string())
            .rtmsg(header)
            .u32(libc::RTA_TABLE, self.table)
            .attribute(libc::RTA_DST, &octets(&self.destination.addr()));
        if let Kind::Local(index) = self.kind {
            request = request.u32(libc::RTA_OIF, index);
        }
        if let Some(source) = &self.source {
            request = request.attribute(libc::RTA_PREFSRC, &octets(source));
        }
        request
    }
}

/// Adds routes; existing ones are no error. Returns the outcome of each.
///
/// # Errors
/// When the socket fails.
pub fn add(socket: &mut Socket, routes: &[Route]) -> Result<Vec<Result<(), Error>>, Error> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let requests: Vec<_> = routes
        .iter()
        .map(|r| r.request(libc::RTM_NEWROUTE, flags, "add"))
        .collect();
    socket.batch(&requests, &[Errno::EEXIST])
}

/// Adds routes to the main table that lead through `gateway`, as `ip route add DESTINATION via
/// GATEWAY` does. They are not marked as Tripod's own; existing ones are no error.
///
/// # Errors
/// When the socket fails, or the kernel refuses one of them.
pub fn add_over_gateway(
    socket: &mut Socket,
    destinations: &[IpNet],
    gateway: IpAddr,
) -> Result<(), Error> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let requests: Vec<_> = destinations
        .iter()
        .map(|destination| {
            let header = RtMsg {
                family: Family::of(&gateway).number(),
                dst_len: destination.prefix_len(),
                table: libc::RT_TABLE_MAIN,
                protocol: libc::RTPROT_STATIC,
                scope: libc::RT_SCOPE_UNIVERSE,
                kind: libc::RTN_UNICAST,
            };
            let object = format!("route {destination} via {gateway}");
            Request::new(libc::RTM_NEWROUTE, flags as u16, "add", object)
                .rtmsg(header)
                .attribute(libc::RTA_DST, &octets(&destination.addr()))
                .attribute(libc::RTA_GATEWAY, &octets(&gateway))
        })
        .collect();
    socket.batch_all(&requests, &[Errno::EEXIST])
}

/// Errors of the kernel for deleting an object that does not exist. ESRCH: no such route. ENOENT:
/// no such rule or table, or no such route (IPv6). EAFNOSUPPORT, EOPNOTSUPP: no such family, so
/// none of its routes and rules either.
pub(super) const GONE: [Errno; 4] = [
    Errno::ESRCH,
    Errno::ENOENT,
    Errno::EAFNOSUPPORT,
    Errno::EOPNOTSUPP,
];

/// Returns the routes or rules that were `listed`; none where the kernel lacks the
/// family, or policy routing in it.
pub(super) fn if_known<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match listed {
        Err(e) if matches!(e.errno(), Some(Errno::EAFNOSUPPORT | Errno::EOPNOTSUPP)) => {
            Ok(Vec::new())
        }
        listed => listed,
    }
}

/// Deletes routes; missing ones are no error.
///
/// # Errors
/// The first deletion that the kernel refused.
pub fn delete(socket: &mut Socket, routes: &[Route]) -> Result<(), Error> {
    let requests: Vec<_> = routes
        .iter()
        .map(|r| r.request(libc::RTM_DELROUTE, 0, "delete"))
        .collect();
    socket.batch_all(&requests, &GONE)
}

/// Deletes the local route of `address` from the kernel's own table, which the
/// kernel put there because the address is assigned to interface `index`.
pub(super) fn withdraw(address: IpAddr, index: u32) -> Request {
    let header = RtMsg {
        family: Family::of(&address).number(),
        dst_len: Family::of(&address).bits(),
        table: 0,
        protocol: libc::RTPROT_KERNEL,
        scope: libc::RT_SCOPE_NOWHERE,
        kind: libc::RTN_LOCAL,
    };
    Request::new(
        libc::RTM_DELROUTE,
        0,
        "delete",
        format!("the kernel's route to {address}"),
    )
    .rtmsg(header)
    .u32(libc::RTA_TABLE, TABLE_LOCAL)
    .attribute(libc::RTA_DST, &octets(&address))
    .u32(libc::RTA_OIF, index)
}

/// Adds or deletes (`kind`) a local route of `address` in addition to the kernel's own,
/// which is preferred. It uses the loopback interface, whose routes stay when another
/// loses its last address.
pub(super) fn stand_in(kind: u16, address: IpAddr) -> Request {
    let destination = address.into();
    let route = Route {
        table: TABLE_LOCAL,
        destination,
        kind: Kind::Local(LOOPBACK),
        source: None,
    };
    let (flags, operation) = match kind {
        libc::RTM_NEWROUTE => (libc::NLM_F_CREATE, "add"),
        _ => (0, "delete"),
    };
    let request = route.request(kind, flags, operation);
    request.u32(libc::RTA_PRIORITY, 1)
}

/// Index of the loopback interface in any network namespace
/// (`LOOPBACK_IFINDEX` of `net/flow.h`).
const LOOPBACK: u32 = 1;

/// Returns all routes of [`PROTOCOL`] in all tables that are of a [`Kind`];
/// none where the kernel lacks the family.
///
/// # Errors
/// When the kernel cannot list routes.
pub fn list(socket: &mut Socket, family: Family) -> Result<Vec<Route>, Error> {
    // A kernel that knows strict checks filters by protocol itself; an older
    // one lists everything.
    let header = RtMsg {
        family: family.number(),
        protocol: PROTOCOL,
        ..RtMsg::default()
    };
    let object = format!("{family} routes");
    let request = Request::new(libc::RTM_GETROUTE, 0, "list", object).rtmsg(header);
    if_known(socket.dump(&request, |message| parse(message, family)))
}

/// Reads a route of Tripod; `None`: the message is about something else.
///
/// # Errors
/// When the message does not have the kernel's format.
pub fn parse(message: Message<'_>, family: Family) -> Result<Option<Route>, Malformed> {
    let header: [u8; 12] = message.header()?;
    let [number, prefix, _, _, table, protocol, _, kind, ..] = header;
    if message.kind != libc::RTM_NEWROUTE || number != family.number() || protocol != PROTOCOL {
        return Ok(None);
    }
    let (mut table, mut destination, mut index, mut source) = (u32::from(table), None, None, None);
    for attribute in message.attributes(12) {
        let attribute = attribute?;
        match attribute.kind {
            libc::RTA_TABLE => table = attribute.u32()?,
            libc::RTA_DST => destination = Some(attribute.ip()?),
            libc::RTA_OIF => index = Some(attribute.u32()?),
            libc::RTA_PREFSRC => source = Some(attribute.ip()?),
            _ => {}
        }
    }
    let kind = match (kind, index) {
        (libc::RTN_LOCAL, Some(index)) => Kind::Local(index),
        (libc::RTN_PROHIBIT, _) => Kind::Prohibit,
        _ => return Ok(None),
    };
    let Some(destination) = destination else {
        return Ok(None);
    };
    let destination =
        IpNet::new(destination, prefix).map_err(|_| Malformed("prefix longer than its address"))?;
    Ok(Some(Route {
        table,
        destination,
        kind,
        source,
    }))
}
