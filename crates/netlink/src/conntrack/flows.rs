//! The entries of connection tracking, over ctnetlink
//! (`linux/netfilter/nfnetlink_conntrack.h`).
//!
//! NAT rules apply to the first packet of a flow only; the others follow it. A UDP flow lives for
//! as long as its client sends, so that after a change of rules a flow that is translated to
//! something else must be deleted: its next packet is then a first one.
//!
//! ```no_run
//! use net::Family;
//! use netlink::{
//!     Protocol, Socket,
//!     conntrack::flows::{self, Match, Reply, UDP},
//! };
//!
//! # fn main() -> Result<(), netlink::Error> {
//! let mut socket = Socket::open(Protocol::Netfilter)?;
//! // Flows to a Service whose only endpoint is 10.1.0.7:53 now, and that go
//! // to another one.
//! let stale = Match {
//!     protocol: UDP,
//!     destination: Some([10, 96, 0, 10].into()),
//!     port: Some(53),
//!     reply: Reply::NotFrom([([10, 1, 0, 7], 53).into()].into()),
//! };
//! flows::delete(&mut socket, Family::V4, &[stale])?;
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use net::Family;
use nix::{errno::Errno, libc};

pub use super::state::State;
use crate::{Attributes, Error, Malformed, Message, Request, Socket, netfilter_kind};

// Messages `IPCTNL_MSG_CT_*`.
pub(super) const CT_NEW: u16 = netfilter_kind(libc::NFNL_SUBSYS_CTNETLINK, 0);
const CT_GET: u16 = netfilter_kind(libc::NFNL_SUBSYS_CTNETLINK, 1);
pub(super) const CT_DELETE: u16 = netfilter_kind(libc::NFNL_SUBSYS_CTNETLINK, 2);
/// Size of `struct nfgenmsg`: family, version, a number that is 0 here.
const HEADER: usize = 4;

// enum ctattr_type
pub(super) const TUPLE_ORIGINAL: u16 = 1;
pub(super) const TUPLE_REPLY: u16 = 2;
pub(super) const STATUS: u16 = 3;
pub(super) const PROTOCOL_INFO: u16 = 4;
pub(super) const TIMEOUT: u16 = 7;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
// enum ctattr_tuple
pub(super) const TUPLE_IP: u16 = 1;
pub(super) const TUPLE_PROTOCOL: u16 = 2;
// enum ctattr_ip
pub(super) const V4_SOURCE: u16 = 1;
pub(super) const V4_DESTINATION: u16 = 2;
pub(super) const V6_SOURCE: u16 = 3;
pub(super) const V6_DESTINATION: u16 = 4;
// enum ctattr_l4proto
pub(super) const PROTOCOL_NUMBER: u16 = 1;
pub(super) const SOURCE_PORT: u16 = 2;
pub(super) const DESTINATION_PORT: u16 = 3;
/// `CTA_PROTOINFO_TCP_STATE` and `CTA_PROTOINFO_SCTP_STATE`; the protocol's own
/// attribute around it is the only one in the entry.
pub(super) const PROTOCOL_STATE: u16 = 1;
// enum ctattr_filter, and the flags of net/netfilter/nf_internals.h.
const FILTER_ORIGINAL: u16 = 1;
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DESTINATION_PORT: u32 = 1 << 5;

/// The protocol number of UDP, `IPPROTO_UDP`.
pub const UDP: u8 = libc::IPPROTO_UDP as u8;
/// The protocol number of TCP, `IPPROTO_TCP`.
pub const TCP: u8 = libc::IPPROTO_TCP as u8;

/// A pattern of flows. `None` matches anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// `IPPROTO_*` of a protocol with ports.
    pub protocol: u8,
    /// The address that the client called.
    pub destination: Option<IpAddr>,
    /// The port that the client called.
    pub port: Option<u16>,
    /// The source of the answers.
    pub reply: Reply,
}

impl Match {
    /// Matches all flows of `protocol`.
    pub fn all(protocol: u8) -> Match {
        Match {
            protocol,
            destination: None,
            port: None,
            reply: Reply::Any,
        }
    }
}

/// The source of answers: the address that nat translated the packets to, or the one
/// that the client called, if nat did not translate them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Answers come from anywhere.
    Any,
    /// Answers come from one of these.
    From(HashSet<Source>),
    /// Answers come from none of these.
    NotFrom(HashSet<Source>),
}

/// A pattern of sources of answers. `None` matches anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The address that answers.
    pub address: Option<IpAddr>,
    /// The port that answers.
    pub port: Option<u16>,
}

impl<T: Into<SocketAddr>> From<T> for Source {
    fn from(address: T) -> Source {
        let address = address.into();
        Source {
            address: Some(address.ip()),
            port: Some(address.port()),
        }
    }
}

/// A flow in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source of the packets.
    pub source: SocketAddr,
    /// Destination of the packets.
    pub destination: SocketAddr,
}

/// An entry of connection tracking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Protocol number, `IPPROTO_*`.
    pub protocol: u8,
    /// The tuple of packets that the client sends.
    pub original: Tuple,
    /// The tuple of the answers that are expected.
    pub reply: Tuple,
    /// How far the connection has come.
    pub state: State,
    /// The original tuple as the kernel wrote it. It identifies the entry, with the next two.
    pub tuple: Vec<u8>,
    /// A number by which a later entry with the same tuple mostly differs (it hashes the place in
    /// memory too: `nf_ct_get_id`), as the kernel wrote it.
    pub id: Option<Vec<u8>>,
    /// The zone, as the kernel wrote it.
    pub zone: Option<Vec<u8>>,
}

impl Flow {
    /// Returns whether `other` is the same entry, as it was at another time.
    pub fn is_same(&self, other: &Flow) -> bool {
        (&self.tuple, &self.id, &self.zone) == (&other.tuple, &other.id, &other.zone)
            && self.original == other.original
    }

    /// Returns whether nat changes an address or port of its packets.
    pub fn is_translated(&self) -> bool {
        let (there, back) = (self.original, self.reply);
        (there.source, there.destination) != (back.destination, back.source)
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuple {
            source,
            destination,
        } = self.original;
        let (protocol, from) = (self.protocol, self.reply.source);
        write!(
            f,
            "flow of protocol {protocol}, {source} to {destination} answered by {from}"
        )
    }
}

/// Lists the flows of `family` that one of `matches` matches. The cost is one
/// pass over the kernel's table, however many matches there are; none for no
/// matches.
///
/// # Errors
/// When the kernel refuses, as without CAP_NET_ADMIN (EPERM) or without
/// ctnetlink (EINVAL), or its answer cannot be read.
pub fn list(socket: &mut Socket, family: Family, matches: &[Match]) -> Result<Vec<Flow>, Error> {
    list_if(socket, family, matches, |_| true)
}

/// Lists those of the same flows that `is` true for; the others take no memory.
///
/// # Errors
/// The same as for [`list`].
pub fn list_if(
    socket: &mut Socket,
    family: Family,
    matches: &[Match],
    is: impl Fn(&Flow) -> bool,
) -> Result<Vec<Flow>, Error> {
    if matches.is_empty() {
        return Ok(Vec::new());
    }
    let index = Index::new(matches);
    let mut flows = socket.dump(&dump(family, matches), |message| {
        Ok(parse(message)?.filter(|flow| index.means(flow) && is(flow)))
    })?;
    // While the kernel walks its table, an entry may move and come twice.
    let mut seen = HashSet::new();
    flows.retain(|f| seen.insert((f.tuple.clone(), f.zone.clone())));
    Ok(flows)
}

/// An entry at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// How far the flow has come.
    pub state: State,
    /// When the entry ends if no packet comes, in whole seconds; each packet puts it off.
    pub expires_in: Option<u32>,
}

/// Reads the present state of `flow`; `None`: its entry is gone.
///
/// # Errors
/// When the kernel refuses, or its answer cannot be read.
pub fn look_up(socket: &mut Socket, flow: &Flow) -> Result<Option<Snapshot>, Error> {
    let family = Family::of(&flow.original.source.ip());
    let nested = TUPLE_ORIGINAL | libc::NLA_F_NESTED as u16;
    let mut request =
        message(CT_GET, family, "look up", flow.to_string()).attribute(nested, &flow.tuple);
    if let Some(zone) = &flow.zone {
        request = request.attribute(ZONE, zone);
    }
    let found = socket.call(&request, |message| {
        let mut expires_in = None;
        for attribute in message.attributes(HEADER) {
            let attribute = attribute?;
            if attribute.kind == TIMEOUT {
                expires_in = Some(attribute.be32()?);
            }
        }
        // A later flow may have the same addresses and ports.
        let same = parse(message)?.filter(|found| found.id == flow.id);
        Ok(same.map(|found| Snapshot {
            state: found.state,
            expires_in,
        }))
    });
    match found {
        Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
        found => Ok(found?.pop()),
    }
}

/// Deletes the flows of `family` that match one of `matches`, and returns how many there were. A
/// flow that ended meanwhile is no error.
///
/// # Errors
/// The same as for [`list`]; the first deletion that the kernel refused, after all
/// others have been carried out.
pub fn delete(socket: &mut Socket, family: Family, matches: &[Match]) -> Result<usize, Error> {
    let flows = list(socket, family, matches)?;
    delete_all(socket, family, &flows)
}

/// Deletes the flows of `family` that match one of `matches` and are `stale`, and returns how many
/// there were.
///
/// # Errors
/// The same as for [`delete`].
pub fn delete_if(
    socket: &mut Socket,
    family: Family,
    matches: &[Match],
    stale: impl Fn(&Flow) -> bool,
) -> Result<usize, Error> {
    let flows = list_if(socket, family, matches, stale)?;
    delete_all(socket, family, &flows)
}

pub(super) fn delete_all(
    socket: &mut Socket,
    family: Family,
    flows: &[Flow],
) -> Result<usize, Error> {
    let requests: Vec<_> = flows.iter().map(|f| deletion(family, f)).collect();
    let mut deleted = 0;
    for outcome in socket.batch(&requests, &[])? {
        match outcome {
            Ok(()) => deleted += 1,
            Err(error) if error.errno() == Some(Errno::ENOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(deleted)
}

/// Counts the flows of `family` whose address or port is changed by NAT.
///
/// # Errors
/// The same as for [`list`].
pub fn translated(socket: &mut Socket, family: Family) -> Result<usize, Error> {
    let mut count = 0;
    // There may be hundreds of thousands: none is stored.
    socket.dump(&dump(family, &[]), |message| {
        count += usize::from(parse(message)?.is_some_and(|flow| flow.is_translated()));
        Ok(None::<()>)
    })?;
    Ok(count)
}

/// Matches, indexed by their original direction.
struct Index<'a>(HashMap<Key, Vec<&'a Reply>>);

/// Protocol, destination and port of a [`Match`].
type Key = (u8, Option<IpAddr>, Option<u16>);

impl<'a> Index<'a> {
    fn new(matches: &'a [Match]) -> Index<'a> {
        let mut index = HashMap::<Key, Vec<&Reply>>::new();
        for m in matches {
            let key = (m.protocol, m.destination, m.port);
            index.entry(key).or_default().push(&m.reply);
        }
        Index(index)
    }

    fn means(&self, flow: &Flow) -> bool {
        let called = flow.original.destination;
        let keys = or_any(called).map(|(address, port)| (flow.protocol, address, port));
        let mut replies = keys.iter().filter_map(|key| self.0.get(key)).flatten();
        let from = or_any(flow.reply.source).map(|(address, port)| Source { address, port });
        let is_of = |sources: &HashSet<Source>| from.iter().any(|s| sources.contains(s));
        replies.any(|reply| match reply {
            Reply::Any => true,
            Reply::From(sources) => is_of(sources),
            Reply::NotFrom(sources) => !is_of(sources),
        })
    }
}

/// Returns the patterns that match an address and port: both, and with either
/// or both left open.
fn or_any(at: SocketAddr) -> [(Option<IpAddr>, Option<u16>); 4] {
    let (address, port) = (Some(at.ip()), Some(at.port()));
    [(address, port), (None, port), (address, None), (None, None)]
}

fn message(kind: u16, family: Family, operation: &'static str, object: String) -> Request {
    Request::new(kind, 0, operation, object).nfgenmsg(family.number())
}

/// The dump, filtered by the protocol and port that all matches have in common. Not by address:
/// `ctnetlink_filter_match_tuple` of Linux 6.18 takes an IPv6 address the wrong way round. Linux
/// before 5.8 ignores the filter; the answers are filtered here anyway.
pub(super) fn dump(family: Family, matches: &[Match]) -> Request {
    let object = format!("{family} flows of connection tracking");
    let request = message(CT_GET, family, "list", object);
    let Some(first) = matches.first() else {
        return request;
    };
    // The kernel takes a port only together with a protocol.
    if matches.iter().any(|m| m.protocol != first.protocol) {
        return request;
    }
    let same_port = matches.iter().all(|m| m.port == first.port);
    let (port, flags) = match first.port.filter(|_| same_port) {
        Some(port) => (Some(port), BY_PROTOCOL | BY_DESTINATION_PORT),
        None => (None, BY_PROTOCOL),
    };
    request
        .nested(TUPLE_ORIGINAL, |r| {
            r.nested(TUPLE_PROTOCOL, |r| {
                let r = r.attribute(PROTOCOL_NUMBER, &[first.protocol]);
                match port {
                    Some(port) => r.attribute(DESTINATION_PORT, &port.to_be_bytes()),
                    None => r,
                }
            })
        })
        .nested(FILTER, |r| r.u32(FILTER_ORIGINAL, flags))
}

/// Returns the request that deletes an entry, with its tuple: a deletion
/// without one empties the table.
fn deletion(family: Family, flow: &Flow) -> Request {
    let nested = TUPLE_ORIGINAL | libc::NLA_F_NESTED as u16;
    let mut request =
        message(CT_DELETE, family, "delete", flow.to_string()).attribute(nested, &flow.tuple);
    if let Some(id) = &flow.id {
        request = request.attribute(ID, id);
    }
    if let Some(zone) = &flow.zone {
        request = request.attribute(ZONE, zone);
    }
    request
}

/// Reads an entry; `None` for one of a protocol without ports.
pub fn parse(message: Message<'_>) -> Result<Option<Flow>, Malformed> {
    let [family, ..]: [u8; HEADER] = message.header()?;
    if message.kind != CT_NEW || Family::from_number(family).is_none() {
        return Ok(None);
    }
    let (mut original, mut reply, mut id, mut zone) = (None, None, None, None);
    let mut state = State::default();
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        let payload = attribute.payload;
        match attribute.kind {
            TUPLE_ORIGINAL => original = tuple(attribute.nested())?.map(|t| (t, payload)),
            TUPLE_REPLY => reply = tuple(attribute.nested())?,
            STATUS => state.status = attribute.be32()?,
            PROTOCOL_INFO => state.of_protocol = protocol_state(attribute.nested())?,
            ID => id = Some(payload.to_vec()),
            ZONE => zone = Some(payload.to_vec()),
            _ => {}
        }
    }
    let (Some(((protocol, original), tuple)), Some((_, reply))) = (original, reply) else {
        return Ok(None);
    };
    Ok(Some(Flow {
        protocol,
        original,
        reply,
        state,
        tuple: tuple.to_vec(),
        id,
        zone,
    }))
}

fn protocol_state(attributes: Attributes<'_>) -> Result<Option<u8>, Malformed> {
    for of_protocol in attributes {
        for attribute in of_protocol?.nested() {
            let attribute = attribute?;
            if attribute.kind == PROTOCOL_STATE {
                return attribute.u8().map(Some);
            }
        }
    }
    Ok(None)
}

fn tuple(attributes: Attributes<'_>) -> Result<Option<(u8, Tuple)>, Malformed> {
    let (mut source, mut destination) = (None, None);
    let (mut protocol, mut from, mut to) = (None, None, None);
    for outer in attributes {
        let outer = outer?;
        if outer.kind != TUPLE_IP && outer.kind != TUPLE_PROTOCOL {
            continue;
        }
        for inner in outer.nested() {
            let inner = inner?;
            match (outer.kind, inner.kind) {
                (TUPLE_IP, V4_SOURCE | V6_SOURCE) => source = Some(inner.ip()?),
                (TUPLE_IP, V4_DESTINATION | V6_DESTINATION) => destination = Some(inner.ip()?),
                (TUPLE_PROTOCOL, PROTOCOL_NUMBER) => protocol = Some(inner.u8()?),
                (TUPLE_PROTOCOL, SOURCE_PORT) => from = Some(port(inner.payload)?),
                (TUPLE_PROTOCOL, DESTINATION_PORT) => to = Some(port(inner.payload)?),
                _ => {}
            }
        }
    }
    Ok((|| {
        let tuple = Tuple {
            source: SocketAddr::new(source?, from?),
            destination: SocketAddr::new(destination?, to?),
        };
        Some((protocol?, tuple))
    })())
}

/// Reads a port, which is in network order.
fn port(payload: &[u8]) -> Result<u16, Malformed> {
    let bytes = payload.try_into().map(u16::from_be_bytes);
    bytes.map_err(|_| Malformed("port is not a number of 16 bits"))
}
