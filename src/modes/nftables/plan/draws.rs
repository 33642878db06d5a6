//! How a chain chooses the slot of an endpoint, and whose source it translates.

use std::iter::repeat_n;

use net::Family;
use nftables::{Field, Jhash, MarkValue, Numgen, Rule, Statement};

use super::{
    Options,
    matches::not_local,
    slots::{LOCAL, Taken},
};
use crate::{kernel::probe::NftPart, modes::detect_local::DetectLocal, services::ServicePortName};

/// The seed of the first draw by a hash; each further draw has the next number. Any
/// numbers will do except 0, for which the kernel would take a random one.
const SEED: u32 = 0x7472_6970;

/// Which callers' source is translated to the node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Masquerade {
    /// The source of no caller is translated.
    None,
    /// The sources of callers other than this node's pods are translated.
    NotLocal,
    /// The source of every caller is translated.
    All,
}

/// The way to choose a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheduler {
    /// A random one for each connection.
    Random,
    /// By a hash of the client, in a table of consistent hashing.
    Hash(HashOf),
    /// One after the other. The kernel counts for each rule, so each ServicePort
    /// has a chain of its own.
    RoundRobin(ServicePortName),
}

/// The part of a client that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HashOf {
    /// Its address.
    Address,
    /// Its address and port.
    AddressAndPort,
}

impl Masquerade {
    /// A caller other than a pod of this node may have the whole service network routed
    /// to this node, and the endpoint may be on another: answers must come back here.
    pub(super) fn of_cluster_ip(options: &Options) -> Masquerade {
        match (options.masquerade_all, &options.detect_local) {
            (true, _) => Masquerade::All,
            (false, DetectLocal::Unknown) => Masquerade::None,
            (false, _) => Masquerade::NotLocal,
        }
    }

    /// Returns the rule that marks packets to be masqueraded.
    pub(super) fn rule(self, options: &Options) -> Option<Rule> {
        let mark = Statement::SetMark(MarkValue::Or(options.masquerade_mark));
        match self {
            Masquerade::None => None,
            Masquerade::NotLocal => {
                let not_local = not_local(&options.detect_local, options.family)?;
                Some(Rule::new([not_local, mark]))
            }
            Masquerade::All => Some(Rule::new([mark])),
        }
    }
}

impl Scheduler {
    /// Returns among how many slots it chooses. Only if it is random may some have no endpoint.
    pub(super) fn slots(&self, of: &Taken) -> u32 {
        match self {
            Scheduler::Random => of.out_of,
            Scheduler::Hash(_) | Scheduler::RoundRobin(_) => {
                u32::try_from(of.endpoints.len()).unwrap_or(LOCAL)
            }
        }
    }

    /// Returns rules that choose one of the `slots` from the `first` one on, by a statement that is
    /// the last one for a packet if there is an endpoint in the slot.
    pub(super) fn draws(
        &self,
        slots: u32,
        first: u32,
        options: &Options,
        draw: impl Fn(Field) -> Statement,
    ) -> Vec<Rule> {
        let draws = self.numbers(slots).into_iter().zip(SEED..);
        draws
            .map(|(modulus, seed)| Rule::new([draw(self.slot(options, modulus, seed, first))]))
            .collect()
    }

    /// Returns for each draw, until a slot with an endpoint is found, among how many of
    /// the first slots it draws. As more than a quarter of the slots is taken, this
    /// number of draws favours no endpoint by more than one connection in a hundred.
    fn numbers(&self, slots: u32) -> Vec<u32> {
        let times: &[(u32, usize)] = match self {
            Scheduler::Random => &[(1, 8), (2, 4), (4, 1)],
            Scheduler::Hash(_) | Scheduler::RoundRobin(_) => &[(1, 1)],
        };
        let among = |&(part, times): &(u32, usize)| repeat_n(slots / part, times);
        let draws = times.iter().flat_map(among).filter(|slots| *slots > 1);
        // The number of slots and their contents change at once, but not for a packet that is
        // between two rules: the first slot is there as long as any.
        draws.chain([1]).collect()
    }

    /// Returns a field that draws one of `modulus` slots from `offset` on.
    fn slot(&self, options: &Options, modulus: u32, seed: u32, offset: u32) -> Field {
        let family = options.family;
        let number = |random| {
            Field::Numgen(Numgen {
                random,
                modulus,
                offset,
            })
        };
        let hash = |of| {
            Field::Jhash(Jhash {
                of,
                modulus,
                seed,
                offset,
            })
        };
        match self {
            Scheduler::Hash(HashOf::Address) => hash(vec![Field::SourceAddress(family)]),
            Scheduler::Hash(HashOf::AddressAndPort) => {
                hash(vec![Field::SourceAddress(family), Field::SourcePort])
            }
            Scheduler::RoundRobin(_) => number(false),
            Scheduler::Random if options.features.contains(NftPart::Numgen) => number(true),
            // Each connection of a client has another port. With an address of
            // IPv6 the hash would need more registers than there are.
            Scheduler::Random => hash(match family {
                Family::V4 => vec![Field::SourceAddress(family), Field::SourcePort],
                Family::V6 => vec![Field::SourcePort],
            }),
        }
    }
}
