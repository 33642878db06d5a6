//! A packet, and its way through the kernel.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

/// The first packet of a connection, or a later one of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Who sends it.
    pub source: SocketAddr,
    /// The called address and port.
    pub destination: SocketAddr,
    /// Number of the transport protocol: `IPPROTO_*` of `linux/in.h`.
    pub protocol: u8,
    /// The interface by which it comes; `None`: this node sends it.
    pub input: Option<&'static str>,
    /// Where an established connection was forwarded.
    pub established: Option<SocketAddr>,
}

/// Final decision on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disposition {
    /// It continues to its destination, which may be another now.
    Passes(SocketAddr),
    /// It is dropped.
    Dropped,
    /// It is refused, with an answer.
    Refused,
}

/// The kernel's memory of a packet, so that its client stays on an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Update {
    /// The name of the map or list.
    pub set: Arc<str>,
    /// The key of the element.
    pub key: Box<[u8]>,
    /// The data of the element.
    pub data: Option<Box<[u8]>>,
    /// How long it stays.
    pub timeout: Option<Duration>,
}

/// State of a packet on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    pub destination: SocketAddr,
    pub mark: u32,
    pub masqueraded: bool,
    pub updates: Vec<Update>,
}

impl Way {
    /// Begins a way to `destination`.
    pub fn to(destination: SocketAddr) -> Way {
        Way {
            destination,
            mark: 0,
            masqueraded: false,
            updates: Vec::new(),
        }
    }
}

/// How a chain ends for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Continues with the rule after the jump, or with the policy.
    Returns,
    Accepted,
    Dropped,
    Refused,
}

/// All ways that a packet may take, each with how the last chain ended.
pub(super) type Ways = Few<(Way, End)>;

/// A set of a handful of values, in the order in which they came. A vector that is searched is
/// cheaper for so few than a tree.
#[derive(Debug)]
pub(super) struct Few<T>(Vec<T>);

impl<T: PartialEq> Few<T> {
    /// Returns a set without a value.
    pub fn new() -> Few<T> {
        Few(Vec::new())
    }

    /// Adds a value, if it is not there.
    pub fn insert(&mut self, value: T) {
        if !self.0.contains(&value) {
            self.0.push(value);
        }
    }

    /// Returns the values by reference.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }
}

impl<T> From<T> for Few<T> {
    fn from(value: T) -> Few<T> {
        Few(vec![value])
    }
}

impl<T: PartialEq> Extend<T> for Few<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.insert(value));
    }
}

impl<T: PartialEq> FromIterator<T> for Few<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Few<T> {
        let mut few = Few::new();
        few.extend(values);
        few
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The outcomes of packets at the end of their ways.
pub(super) fn outcomes(ways: Ways) -> Outcomes {
    let of = |(way, end): (Way, End)| Outcome {
        disposition: match end {
            End::Returns | End::Accepted => Disposition::Passes(way.destination),
            End::Dropped => Disposition::Dropped,
            End::Refused => Disposition::Refused,
        },
        masqueraded: way.masqueraded,
        updates: way.updates,
    };
    ways.into_iter().map(of).collect()
}

/// A possible outcome for a packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outcome {
    /// Where it gets.
    pub disposition: Disposition,
    /// It continues with an address of this node as its source.
    pub masqueraded: bool,
    /// The elements that the kernel then stores.
    pub updates: Vec<Update>,
}

/// All that may become of a packet.
pub type Outcomes = BTreeSet<Outcome>;
