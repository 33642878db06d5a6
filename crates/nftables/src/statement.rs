//! The statements of a rule: conditions and actions, in the words of `nft`.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use net::Family;

use super::{
    datatype::{DataType, Span},
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
    /// Sets the mark of the packet.
    SetMark(MarkValue),
    /// Translates the destination to the data that a map has for a concatenation, an address alone
    /// or with a port; the rule continues if the map does not have it.
    Dnat(Family, Vec<Field>, SetName),
    /// Translates the source to this node's address, and takes ports at random (`fully-random`).
    Masquerade,
    /// Refuses the packet, with an answer to its sender.
    Reject(Reject),
    /// Adds an element with fields of the packet to a set.
    Dynset(Dynset),
    /// Counts the packet's connection until it has ended; continues if this rule counts more than so
    /// many. It has to see no more than the first packet of a connection.
    ConnectionsOver(u32),
    /// The same for the connections of one key, which is an element of a dynamic set for as long as
    /// it has some.
    ConnectionsOfKeyOver(SetName, Vec<Field>, u32),
    /// Counts packets and bytes.
    Counter,
    /// Continues for at most so many packets in a second.
    Limit(u32),
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

/// The new value of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkValue {
    /// The mark keeps its bits, and these are set.
    Or(u32),
    /// The mark has these bits inverted.
    Xor(u32),
}

/// How a packet is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// ICMP: port unreachable.
    PortUnreachable(Family),
    /// TCP: reset. It takes a match of TCP before it.
    TcpReset,
}

/// Adds an element with fields of a packet to a set, or starts the timeout of an existing one again,
/// which is found by its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dynset {
    /// Which set; it has to be dynamic.
    pub set: SetName,
    /// The fields that make the key.
    pub key: Vec<Field>,
    /// Timeout of the element.
    pub timeout: Duration,
    /// The data, for a map. Key and data have to fit 64 octets.
    pub data: Vec<Field>,
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Statement::Match(field, test) => write_match(field, test, f),
            Statement::In(key, set) => write!(f, "{} @{}", Concat(key), set.name),
            Statement::NotIn(key, set) => write!(f, "{} != @{}", Concat(key), set.name),
            Statement::VerdictMap(key, map) => write!(f, "{} vmap @{}", Concat(key), map.name),
            Statement::Verdict(verdict) => verdict.fmt(f),
            Statement::SetMark(MarkValue::Or(bits)) => {
                write!(f, "meta mark set meta mark | {bits:#010x}")
            }
            Statement::SetMark(MarkValue::Xor(bits)) => {
                write!(f, "meta mark set meta mark ^ {bits:#010x}")
            }
            Statement::Dnat(family, key, map) => {
                f.write_str("dnat ")?;
                // As `nft` lists it; a map of addresses alone it lists without.
                if map.data.len() > 1 {
                    write!(f, "{} ", super::table::word(*family))?;
                }
                write!(f, "to {} map @{}", Concat(key), map.name)
            }
            Statement::Masquerade => f.write_str("masquerade fully-random"),
            Statement::Reject(reject) => f.write_str(match reject {
                Reject::PortUnreachable(Family::V4) => "reject with icmp port-unreachable",
                Reject::PortUnreachable(Family::V6) => "reject with icmpv6 port-unreachable",
                Reject::TcpReset => "reject with tcp reset",
            }),
            Statement::Dynset(dynset) => dynset.fmt(f),
            Statement::ConnectionsOver(over) => write!(f, "ct count over {over}"),
            Statement::ConnectionsOfKeyOver(set, key, over) => {
                write!(
                    f,
                    "add @{} {{ {} ct count over {over} }}",
                    set.name,
                    Concat(key)
                )
            }
            Statement::Counter => f.write_str("counter"),
            Statement::Limit(rate) => write!(f, "limit rate {rate}/second burst {rate} packets"),
            Statement::Notrack => f.write_str("notrack"),
            Statement::BeginsTcp => f.write_str("tcp flags & (fin | syn | rst | ack) == syn"),
            Statement::Trace => f.write_str("meta nftrace set 1"),
        }
    }
}

fn write_match(field: &Field, test: &Test, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let of = field.data_type();
    let operator = match (field, test) {
        (_, Test::IsNot(_) | Test::NotPrefix(..)) => " != ",
        // Without `==`, `nft` would take a comparison for a part of the mask.
        (Field::Masked(..), _) => " == ",
        _ => " ",
    };
    write!(f, "{field}{operator}")?;
    match test {
        Test::Is(octets) | Test::IsNot(octets) => of.write(octets, f),
        Test::Prefix(ip, length) | Test::NotPrefix(ip, length) => write!(f, "{ip}/{length}"),
        Test::Any(bits) => of.write(&bits.to_ne_bytes(), f),
    }
}

impl fmt::Display for Dynset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (set, key, timeout) = (&self.set.name, Concat(&self.key), Span(self.timeout));
        write!(f, "update @{set} {{ {key} timeout {timeout}")?;
        if !self.data.is_empty() {
            write!(f, " : {}", Concat(&self.data))?;
        }
        f.write_str(" }")
    }
}
