//! The statements of a rule: conditions and actions, in the words of `nft`.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use net::Family;

use super::{
    datatype::{DataType, Span, write_range},
    expression::{DynsetOp, Limit},
    field::{Concat, Field},
    set::Set,
    verdict::Verdict,
};

/// One condition or action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// Continues if a field passes a test.
    Match(Field, Test),
    /// Continues if a concatenation is an element of a set.
    In(Vec<Field>, SetName),
    /// Continues if it is not an element of the set.
    NotIn(Vec<Field>, SetName),
    /// Looks a concatenation up in a verdict map; continues if the map does not have it.
    VerdictMap(Vec<Field>, SetName),
    /// Ends with a verdict.
    Verdict(Verdict),
    /// Sets the mark of the packet or the connection.
    SetMark(Mark, MarkValue),
    /// Translates the destination.
    Dnat(Family, Target),
    /// Translates the source.
    Snat(Family, Target),
    /// Translates the source to this node's address.
    Masquerade {
        /// Ports are taken at random (`fully-random`).
        fully_random: bool,
    },
    /// Translates the destination to this node's address, and to this port. A
    /// port takes a match of the protocol before it.
    Redirect(Option<u16>),
    /// Refuses the packet, with an answer to its sender.
    Reject(Reject),
    /// Changes a set with fields of the packet.
    Dynset(Dynset),
    /// Counts packets and bytes.
    Counter,
    /// Continues while a rate is kept, or is not.
    Limit(Limit),
    /// The packet's connection is not tracked.
    Notrack,
    /// Continues for packets that begin a TCP connection. It takes a match of TCP before it.
    BeginsTcp,
    /// The kernel notifies of the packet's way, from here on.
    Trace,
}

/// A condition on a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Equal to these octets (see [`Value::octets`](super::Value::octets)).
    Is(Vec<u8>),
    /// Not equal to these octets.
    IsNot(Vec<u8>),
    /// At least the first, at most the second.
    Within(Vec<u8>, Vec<u8>),
    /// Below the first or above the second.
    Outside(Vec<u8>, Vec<u8>),
    /// An address of this prefix.
    Prefix(IpAddr, u8),
    /// An address outside of it.
    NotPrefix(IpAddr, u8),
    /// Has one of these bits, for `ct state` and `ct status`.
    Any(u32),
}

/// A set as a rule refers to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetName {
    /// The name of the set.
    pub name: Arc<str>,
    /// It holds ranges: then `nft` expects numbers of the key in network order.
    pub ranges: bool,
    /// Types of the data, of a map.
    pub data: Vec<DataType>,
}

impl From<&Set> for SetName {
    fn from(set: &Set) -> SetName {
        SetName {
            name: set.name.clone(),
            ranges: set.interval,
            data: set.data_types(),
        }
    }
}

/// Which mark a statement sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The mark of the packet.
    Packet,
    /// The mark of the connection.
    Connection,
}

/// The new value of a mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MarkValue {
    /// The mark becomes this number.
    Is(u32),
    /// The mark keeps its bits, and these are set.
    Or(u32),
    /// The mark keeps these bits only.
    And(u32),
    /// The mark has these bits inverted.
    Xor(u32),
    /// The value of a field.
    Of(Field),
}

/// The new address, and port, of a translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address, and a port: that takes a match of the protocol before it.
    To(IpAddr, Option<u16>),
    /// The data that a map has for a concatenation, an address alone or with a port; the rule
    /// continues if the map does not have it.
    Map(Vec<Field>, SetName),
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// ICMP: port unreachable.
    PortUnreachable(Family),
    /// ICMP: forbidden by an administrator.
    AdminProhibited(Family),
    /// TCP: reset. It takes a match of TCP before it.
    TcpReset,
}

/// A change of a set with fields of a packet. An existing element is found by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dynset {
    /// The change of the element.
    pub op: DynsetOp,
    /// Which set; it has to be dynamic.
    pub set: SetName,
    /// The fields that make the key.
    pub key: Vec<Field>,
    /// Timeout of the element; `None`: that of the set.
    pub timeout: Option<Duration>,
    /// The data, for a map. Key and data have to fit 64 octets.
    pub data: Vec<Field>,
    /// Whether the element has a counter of packets and bytes.
    pub counter: bool,
    /// Rate limit that the element and the rule keep for each key; `None`: there is none.
    pub limit: Option<Limit>,
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Match(field, test) => write_match(field, test, f),
            Statement::In(key, set) => write!(f, "{} @{}", Concat(key), set.name),
            Statement::NotIn(key, set) => write!(f, "{} != @{}", Concat(key), set.name),
            Statement::VerdictMap(key, map) => write!(f, "{} vmap @{}", Concat(key), map.name),
            Statement::Verdict(verdict) => verdict.fmt(f),
            Statement::SetMark(of, value) => {
                let mark = match of {
                    Mark::Packet => "meta mark",
                    Mark::Connection => "ct mark",
                };
                write!(f, "{mark} set ")?;
                match value {
                    MarkValue::Is(number) => write!(f, "{number:#010x}"),
                    MarkValue::Or(bits) => write!(f, "{mark} | {bits:#010x}"),
                    MarkValue::And(bits) => write!(f, "{mark} & {bits:#010x}"),
                    MarkValue::Xor(bits) => write!(f, "{mark} ^ {bits:#010x}"),
                    MarkValue::Of(field) => field.fmt(f),
                }
            }
            Statement::Dnat(family, target) => write_target("dnat", *family, target, f),
            Statement::Snat(family, target) => write_target("snat", *family, target, f),
            Statement::Masquerade { fully_random } => {
                let random = if *fully_random { " fully-random" } else { "" };
                write!(f, "masquerade{random}")
            }
            Statement::Redirect(None) => f.write_str("redirect"),
            Statement::Redirect(Some(port)) => write!(f, "redirect to :{port}"),
            Statement::Reject(reject) => f.write_str(match reject {
                Reject::PortUnreachable(Family::V4) => "reject with icmp port-unreachable",
                Reject::PortUnreachable(Family::V6) => "reject with icmpv6 port-unreachable",
                Reject::AdminProhibited(Family::V4) => "reject with icmp admin-prohibited",
                Reject::AdminProhibited(Family::V6) => "reject with icmpv6 admin-prohibited",
                Reject::TcpReset => "reject with tcp reset",
            }),
            Statement::Dynset(dynset) => dynset.fmt(f),
            Statement::Counter => f.write_str("counter"),
            Statement::Limit(limit) => limit.fmt(f),
            Statement::Notrack => f.write_str("notrack"),
            Statement::BeginsTcp => f.write_str("tcp flags & (fin | syn | rst | ack) == syn"),
            Statement::Trace => f.write_str("meta nftrace set 1"),
        }
    }
}

fn write_match(field: &Field, test: &Test, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let of = field.data_type();
    let operator = match (field, test) {
        (_, Test::IsNot(_) | Test::Outside(..) | Test::NotPrefix(..)) => " != ",
        // Without `==`, `nft` would take a comparison for a part of the mask.
        (Field::Masked(..), _) => " == ",
        _ => " ",
    };
    write!(f, "{field}{operator}")?;
    match test {
        Test::Is(octets) | Test::IsNot(octets) => of.write(octets, f),
        Test::Within(low, high) | Test::Outside(low, high) => write_range(of, low, high, f),
        Test::Prefix(ip, length) | Test::NotPrefix(ip, length) => write!(f, "{ip}/{length}"),
        Test::Any(bits) => of.write(&bits.to_ne_bytes(), f),
    }
}

fn write_target(
    verb: &str,
    family: Family,
    target: &Target,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    match target {
        Target::To(ip, None) => write!(f, "{verb} to {ip}"),
        Target::To(IpAddr::V4(ip), Some(port)) => write!(f, "{verb} to {ip}:{port}"),
        Target::To(IpAddr::V6(ip), Some(port)) => write!(f, "{verb} to [{ip}]:{port}"),
        Target::Map(key, map) => {
            // As `nft` lists it; a map of addresses alone it lists without.
            let family = if map.data.len() > 1 {
                [" ", super::table::word(family)].concat()
            } else {
                String::new()
            };
            write!(f, "{verb}{family} to {} map @{}", Concat(key), map.name)
        }
    }
}

impl fmt::Display for Dynset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, set, key) = (self.op.word(), &self.set.name, Concat(&self.key));
        write!(f, "{op} @{set} {{ {key}")?;
        if let Some(timeout) = self.timeout {
            write!(f, " timeout {}", Span(timeout))?;
        }
        if self.counter {
            f.write_str(" counter")?;
        }
        if let Some(limit) = self.limit {
            write!(f, " {limit}")?;
        }
        if !self.data.is_empty() {
            write!(f, " : {}", Concat(&self.data))?;
        }
        f.write_str(" }")
    }
}
