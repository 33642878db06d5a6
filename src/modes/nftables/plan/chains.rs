//! Chains that are there while a ServicePort needs them. ServicePorts share them, one for each
//! number of slots and the like: their number depends on the kinds of ServicePorts, not on how
//! many there are. Only ServicePorts with affinity or scheduler `rr`, and Services with limits, have
//! chains of their own.

use std::{sync::Arc, time::Duration};

use nftables::{Chain, Field, Rule, Set, Statement, Verdict};

use super::{
    Options, Sets,
    affinity::{self, ClientMap},
    draws::{HashOf, Masquerade, Scheduler},
    frontend::{Called, Role},
    limits::{self, Limits},
    matches::of_protocol,
    names,
    range_chains::{self, RangeChain},
    sets::{self, SetId},
    slots::{Endpoints, LOCAL},
};
use crate::services::ServicePortName;

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
    /// Treats packets to a range of ports. Other rules have the same name.
    Range(RangeChain),
    /// Sends packets to ranges of ports to the chains above.
    RangeHooks,
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
            SharedChain::Range(range) => {
                vec![(Chain::new(range.name()), range.rules(options, sets))]
            }
            SharedChain::RangeHooks => range_chains::shared(options, sets),
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
            SharedChain::Range(range) => vec![range.name()],
            SharedChain::RangeHooks => range_chains::SHARED.map(str::to_owned).into(),
        }
    }

    /// The sets that are there for as long as the chain. Maps of clients may be older than their
    /// chains, and are not meant.
    pub fn sets(&self, sets: &Sets) -> Vec<Arc<Set>> {
        match self {
            SharedChain::Limit(limits) => limits.clients().map(Arc::new).into_iter().collect(),
            SharedChain::RangeHooks => sets.of_ranges().map(|(_, set)| Arc::clone(set)).collect(),
            _ => Vec::new(),
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
        let mut rules: Vec<Rule> = self.masquerade.rule(options).into_iter().collect();
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
        let draw = |slot: Field| to([called.clone(), vec![slot]].concat(), sets.get(map));
        let first = match self.from {
            Endpoints::All => 0,
            Endpoints::Local => LOCAL,
        };
        rules.extend(self.scheduler.draws(self.slots, first, options, draw));
        rules
    }
}
