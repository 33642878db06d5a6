//! Chains that are there while a ServicePort needs them. ServicePorts share them, one for each
//! number of slots and the like: their number depends on the kinds of ServicePorts, not on how
//! many there are. Only ServicePorts with affinity or scheduler `rr`, and Services with limits, have
//! chains of their own.

use std::{iter::repeat_n, time::Duration};

use net::Family;
use nftables::{Chain, Field, Jhash, MarkValue, Numgen, Rule, Set, Statement, Verdict};

use super::{
    Options, Sets,
    affinity::{self, ClientMap},
    frontend::{Called, Role},
    limits::{self, Limits},
    matches::{not_local, of_protocol},
    names,
    sets::{self, SetId},
    slots::{Endpoints, LOCAL},
};
use crate::{kernel::probe::NftPart, services::ServicePortName};

/// The seed of the first draw by a hash; each further draw has the next number. Any
/// numbers will do except 0, for which the kernel would take a random one.
const SEED: u32 = 0x7472_6970;

/// A chain that is there while a ServicePort needs it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharedChain {
    /// Chooses an endpoint.
    Pick(Pick),
    /// Remembers in this map, for that time, where a client was sent.
    Remember(ClientMap, Duration),
    /// Does so in the map of clients that the caller belongs to.
    RememberByCaller(ServicePortName, Duration),
    /// Sends new connections of clients that stay on their endpoint to the chains above.
    RememberHooks,
    /// Counts the connections of a Service, and refuses those that are too many.
    Limit(Limits),
    /// Sends new connections of Services with limits to the chains above.
    LimitHooks,
}

/// How an endpoint is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pick {
    /// Number of slots among which one is drawn. Only if it is random may some of them have no
    /// endpoint.
    pub slots: u32,
    /// Endpoints among which it chooses: all, or those on this node.
    pub from: Endpoints,
    /// Kind of address that the client called.
    pub called: Called,
    /// Callers whose source address is translated.
    pub masquerade: Masquerade,
    /// Where the endpoints on which clients stay are looked up before one is drawn; `None`: clients
    /// do not stay.
    pub affinity: Option<ClientMap>,
    /// The way to choose a slot.
    pub scheduler: Scheduler,
}

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

impl SharedChain {
    /// Returns the chains and their rules, each after those to which it jumps.
    pub fn chains(&self, options: &Options, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
        match self {
            SharedChain::Pick(pick) => vec![(Chain::new(pick.name()), pick.rules(options, sets))],
            SharedChain::Remember(map, timeout) => {
                let name = affinity::chain_name(&map.port, Some(map.to), *timeout);
                vec![(Chain::new(name), affinity::remember(map, *timeout))]
            }
            SharedChain::RememberByCaller(port, timeout) => {
                let rules = affinity::by_caller(port, *timeout, options, sets);
                let name = affinity::chain_name(port, None, *timeout);
                vec![(Chain::new(name), rules)]
            }
            SharedChain::RememberHooks => affinity::hooks(options.family, sets),
            SharedChain::Limit(limits) => {
                let chain = Chain::new(limits.chain_name());
                vec![(chain, limits.rules(options.features))]
            }
            SharedChain::LimitHooks => limits::shared(options, sets),
        }
    }

    /// The names of these chains, as they are in the kernel.
    pub fn names(&self) -> Vec<String> {
        match self {
            SharedChain::Pick(pick) => vec![pick.name()],
            SharedChain::Remember(map, timeout) => {
                vec![affinity::chain_name(&map.port, Some(map.to), *timeout)]
            }
            SharedChain::RememberByCaller(port, timeout) => {
                vec![affinity::chain_name(port, None, *timeout)]
            }
            SharedChain::RememberHooks => affinity::SHARED.map(str::to_owned).into(),
            SharedChain::Limit(limits) => vec![limits.chain_name()],
            SharedChain::LimitHooks => limits::SHARED.map(str::to_owned).into(),
        }
    }

    /// The set that its rules write, and that is there for as long as the chain; `None`: there is
    /// none. Maps of clients may be older than their chains, and are not meant.
    pub fn set(&self) -> Option<Set> {
        match self {
            SharedChain::Limit(limits) => limits.clients(),
            _ => None,
        }
    }

    /// Returns a verdict that goes to this chain.
    pub(super) fn goto(&self) -> Verdict {
        let name = self.names().into_iter().next().unwrap_or_default();
        Verdict::Goto(name.into())
    }
}

impl Pick {
    fn name(&self) -> String {
        let called = match self.called {
            Called::Address => "pick",
            Called::NodePort => "node-port",
        };
        let mut name = format!("{called}-{}", self.slots);
        if self.from == Endpoints::Local {
            name.push_str("-local");
        }
        match self.masquerade {
            Masquerade::None => {}
            Masquerade::NotLocal => name.push_str("-masquerade-not-local"),
            Masquerade::All => name.push_str("-masquerade"),
        }
        match &self.scheduler {
            Scheduler::Random => {}
            Scheduler::Hash(HashOf::Address) => name.push_str("-mh"),
            Scheduler::Hash(HashOf::AddressAndPort) => name.push_str("-mh-port"),
            Scheduler::RoundRobin(_) => name.push_str("-rr"),
        }
        match (&self.affinity, &self.scheduler) {
            (Some(map), _) => name + "-" + &map.name(),
            (None, Scheduler::RoundRobin(port)) => name + "/" + &names::own(port),
            (None, _) => name,
        }
    }

    /// Returns the chain that draws an endpoint for clients that have none to stay on.
    pub(super) fn without_affinity(&self) -> Pick {
        Pick {
            masquerade: Masquerade::None,
            affinity: None,
            ..self.clone()
        }
    }

    fn rules(&self, options: &Options, sets: &Sets) -> Vec<Rule> {
        let family = options.family;
        let mut rules = Vec::new();
        let mark = || Statement::SetMark(MarkValue::Or(options.masquerade_mark));
        match self.masquerade {
            Masquerade::None => {}
            Masquerade::NotLocal => {
                let not_local = not_local(&options.detect_local, family);
                rules.extend(not_local.map(|not_local| Rule::new([not_local, mark()])));
            }
            Masquerade::All => rules.push(Rule::new([mark()])),
        }
        let to = |key: Vec<Field>, map: &Set| Statement::Dnat(family, key, map.into());
        if let Some(map) = &self.affinity {
            let known = to(vec![Field::SourceAddress(family)], &map.set());
            // `nft` takes no port without it.
            let protocol = of_protocol(map.port.protocol);
            let draw = SharedChain::Pick(self.without_affinity()).goto();
            rules.push(Rule::new([protocol, known]));
            rules.push(Rule::new([Statement::Verdict(draw)]));
            return rules;
        }
        let called = sets::fields(self.called, family);
        let map = SetId::Of(Role::Endpoints, self.called);
        let with = |slot: Field| {
            let key = [called.clone(), vec![slot]].concat();
            Rule::new([to(key, sets.get(map))])
        };
        let draws = self.draws().into_iter().zip(SEED..);
        rules.extend(draws.map(|(modulus, seed)| with(self.slot(options, modulus, seed))));
        rules
    }

    /// Returns for each draw, until a slot with an endpoint is found, among how many of
    /// the first slots it draws. As more than a quarter of the slots is taken, this
    /// number of draws favours no endpoint by more than one connection in a hundred.
    fn draws(&self) -> Vec<u32> {
        let times: &[(u32, usize)] = match self.scheduler {
            Scheduler::Random => &[(1, 8), (2, 4), (4, 1)],
            Scheduler::Hash(_) | Scheduler::RoundRobin(_) => &[(1, 1)],
        };
        let among = |&(part, times): &(u32, usize)| repeat_n(self.slots / part, times);
        let draws = times.iter().flat_map(among).filter(|slots| *slots > 1);
        // The number of slots and their contents change at once, but not for a packet that is
        // between two rules: the first slot is there as long as any.
        draws.chain([1]).collect()
    }

    fn offset(&self) -> u32 {
        match self.from {
            Endpoints::All => 0,
            Endpoints::Local => LOCAL,
        }
    }

    /// Returns a field that draws one of the first `modulus` slots.
    fn slot(&self, options: &Options, modulus: u32, seed: u32) -> Field {
        let (family, offset) = (options.family, self.offset());
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
        match self.scheduler {
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
