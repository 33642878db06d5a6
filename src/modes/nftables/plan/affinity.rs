//! Session affinity: maps of clients, which rules write after the destination of a new
//! connection was translated, and which are looked up before an endpoint is drawn.
//!
//! Each ServicePort has maps of its own, so that none can use up the room of another. Clients that
//! may be sent to all endpoints are in one map and clients that may be sent to endpoints of this
//! node alone in another: all clients of a map may be sent to the same endpoints, at any of the
//! ServicePort's addresses.

use std::{sync::Arc, time::Duration};

use net::Family;
use nftables::{Chain, Comment, Data, Dynset, Field, Hook, Rule, Set, Statement, Type, Verdict};

use super::{
    Options, Sets,
    frontend::Role,
    matches::{Side, by_service_port, hook_of_translated, is_local, is_nodes_own},
    names, sets,
    slots::Endpoints,
};
use crate::services::ServicePortName;

/// Just after the kernel translated destinations (`NF_IP_PRI_NAT_DST`).
const AFTER_DNAT: i32 = -99;

/// The chains that all ServicePorts with affinity share: the last two are called by the kernel and
/// jump to the first.
pub(super) const SHARED: [&str; 3] = ["remember", "remember-prerouting", "remember-output"];

/// A map of the clients of one ServicePort: client address to endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientMap {
    /// The ServicePort that these clients call.
    pub port: ServicePortName,
    /// The endpoints to which these clients may be sent.
    pub to: Endpoints,
}

impl ClientMap {
    /// The name of the map, from the ServicePort and the endpoints.
    pub fn name(&self) -> String {
        let kind = match self.to {
            Endpoints::All => "affinity",
            Endpoints::Local => "affinity-local",
        };
        format!("{kind}/{}", names::own(&self.port))
    }

    /// Returns the map. Its size is left to the kernel, so that a small one takes little memory.
    pub fn set(&self) -> Arc<Set> {
        let address = sets::address(self.port.family);
        let endpoint = Data::Values(Type::Named(sets::of_endpoint(address)));
        let set = Set {
            dynamic: true,
            timeouts: true,
            comment: Some(Comment::new("clients, and where they were sent")),
            ..Set::map(&self.name(), Type::Named(vec![address]), endpoint)
        };
        Arc::new(set)
    }
}

/// Name of the chain that remembers clients of `port`: in the map of clients that may be sent `to`
/// these endpoints, or, for `None`, in a map that depends on the caller.
pub(super) fn chain_name(
    port: &ServicePortName,
    to: Option<Endpoints>,
    timeout: Duration,
) -> String {
    let kind = match to {
        Some(Endpoints::All) => "",
        Some(Endpoints::Local) => "-local",
        None => "-by-caller",
    };
    let seconds = timeout.as_secs();
    format!("remember-{seconds}{kind}/{}", names::own(port))
}

/// Returns the rules that remember a client in `map`. An entry that exists keeps its endpoint, and
/// its timeout begins again.
pub(super) fn remember(map: &ClientMap, timeout: Duration) -> Vec<Rule> {
    let family = map.port.family;
    let update = Statement::Dynset(Dynset {
        set: (&*map.set()).into(),
        key: vec![Field::SourceAddress(family)],
        timeout,
        data: sets::endpoint(family),
    });
    vec![
        Rule::new([update, Statement::Verdict(Verdict::Return)]),
        // A full map ends the rule above at its update (`nft_dynset_eval`).
        Rule::new([Statement::Counter]).commented("there was no room for the client"),
    ]
}

/// Returns the rules that remember clients of an address with an external policy of Local: pods of
/// this node and the node itself may be sent to all endpoints.
pub(super) fn by_caller(
    port: &ServicePortName,
    timeout: Duration,
    options: &Options,
    sets: &Sets,
) -> Vec<Rule> {
    let goto = |to| {
        let chain = chain_name(port, Some(to), timeout);
        Statement::Verdict(Verdict::Goto(chain.into()))
    };
    let pods = is_local(&options.detect_local, options.family);
    let node = is_nodes_own(Side::Source, options, sets);
    let inside = pods.into_iter().chain([node]);
    let mut rules: Vec<Rule> = inside
        .map(|matched| Rule::new([matched, goto(Endpoints::All)]))
        .collect();
    rules.push(Rule::new([goto(Endpoints::Local)]));
    rules
}

/// Returns the chains that send new connections to the chains of their ServicePorts.
pub(super) fn hooks(family: Family, sets: &Sets) -> Vec<(Chain, Vec<Rule>)> {
    let rules = by_service_port(Role::Affinity, family, sets);
    let [remember, prerouting, output] = SHARED;
    let hook = |name, hook| hook_of_translated(name, hook, AFTER_DNAT, remember);
    vec![
        (Chain::new(remember), rules),
        hook(prerouting, Hook::Prerouting),
        hook(output, Hook::Output),
    ]
}
