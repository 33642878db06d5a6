//! Selects the endpoints that traffic may reach: readiness, fallback to terminating endpoints
//! (KEP-1669), topology hints (KEP-2433, KEP-3015), traffic policies.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use hashbrown::HashMap;

use super::{Endpoint, Endpoints, extensions::DEFAULT_WEIGHT, slice::Hints};

/// The node on which traffic is proxied.
#[derive(Clone, Debug)]
pub(super) struct ThisNode {
    pub(super) name: Arc<str>,
    pub(super) zone: Option<Arc<str>>,
}

/// Weights of the nodes that have one.
pub(super) type NodeWeights = HashMap<Arc<str>, u16>;

/// The kinds of endpoint sets to which a ServicePort may send traffic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uses {
    /// Endpoints of the whole cluster: needed even with an external policy of Local, since pods and
    /// the node itself short-circuit that policy.
    pub(super) cluster: bool,
    /// Endpoints of this node.
    pub(super) local: bool,
}

/// An endpoint, with the zones and nodes for which it is meant.
pub(super) struct Candidate<'a> {
    pub(super) endpoint: Endpoint,
    pub(super) hints: Option<&'a Hints>,
}

/// Determines which endpoints of a ServicePort traffic may reach. `candidates` are sorted by
/// address and without duplicates. Endpoints that are `ejected` get weight 0, unless a policy would
/// leave traffic no other one.
pub(super) fn select(
    candidates: Vec<Candidate<'_>>,
    uses: Uses,
    node: &ThisNode,
    ejected: &BTreeSet<SocketAddr>,
) -> Endpoints {
    let mut cluster = Vec::new();
    let mut local = Vec::new();
    if uses.cluster {
        let topology = Topology::of(&candidates, node, ejected);
        cluster = indices(&candidates, |candidate| {
            candidate.endpoint.ready && topology.admits(candidate.hints, node)
        });
        // The topology admits some ready endpoint if there is any, so if there is none here, there
        // is none anywhere.
        if cluster.is_empty() {
            cluster = indices(&candidates, |candidate| terminating(&candidate.endpoint));
        }
    }
    if uses.local {
        local = indices(&candidates, |Candidate { endpoint, .. }| {
            endpoint.local && endpoint.ready
        });
        if local.is_empty() {
            local = indices(&candidates, |Candidate { endpoint, .. }| {
                endpoint.local && terminating(endpoint)
            });
        }
    }
    let mut all_reachable: Vec<u32> = cluster.iter().chain(&local).copied().collect();
    all_reachable.sort_unstable();
    all_reachable.dedup();
    let has_any = candidates
        .iter()
        .any(|Candidate { endpoint, .. }| endpoint.ready || terminating(endpoint));
    let weighed = |Candidate { endpoint, .. }: &Candidate| {
        endpoint.weight > DEFAULT_WEIGHT || endpoint.grown.is_slow_start()
    };
    let mut endpoints = Endpoints {
        weighed: candidates.iter().any(weighed),
        all: candidates
            .into_iter()
            .map(|candidate| candidate.endpoint)
            .collect(),
        cluster: cluster.into(),
        local: local.into(),
        all_reachable: all_reachable.into(),
        has_any,
        ejected: Box::default(),
        forbidden: Box::default(),
        are_too_many: false,
        absence: None,
    };
    if !ejected.is_empty() {
        endpoints.eject(ejected);
    }
    endpoints
}

impl Endpoints {
    /// Sets the weight of endpoints that are `ejected` to 0, unless a policy would leave traffic no
    /// other one.
    fn eject(&mut self, ejected: &BTreeSet<SocketAddr>) {
        let takes = |at: &&u32| self.all.get(**at as usize).is_some_and(|e| e.weight > 0);
        let is_ejected = |at: &u32| {
            let endpoint = self.all.get(*at as usize);
            endpoint.is_some_and(|endpoint| ejected.contains(&endpoint.address))
        };
        let mut out: BTreeSet<u32> = BTreeSet::new();
        let mut spared: BTreeSet<u32> = BTreeSet::new();
        for set in [&self.cluster, &self.local] {
            let taking: Vec<u32> = set.iter().filter(takes).copied().collect();
            let failing = taking.iter().copied().filter(is_ejected);
            let into = if taking.iter().all(is_ejected) {
                &mut spared
            } else {
                &mut out
            };
            into.extend(failing);
        }
        self.ejected = out.difference(&spared).copied().collect();
        for at in &self.ejected {
            if let Some(endpoint) = self.all.get_mut(*at as usize) {
                endpoint.weight = 0;
            }
        }
    }
}

fn terminating(endpoint: &Endpoint) -> bool {
    endpoint.serving && endpoint.terminating
}

fn indices(candidates: &[Candidate<'_>], is: impl Fn(&Candidate<'_>) -> bool) -> Vec<u32> {
    let numbered = (0..).zip(candidates);
    let matching = numbered.filter(|(_, candidate)| is(candidate));
    matching.map(|(index, _)| index).collect()
}

/// The hints that count. Hints count only if every ready endpoint has them and some endpoint that
/// takes connections is meant for this node or zone: while some lack them the controller has not
/// finished, and following the others would overload the endpoints that have them. If all that are
/// meant for this node or zone have weight 0 or are ejected, those elsewhere serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Topology {
    Everywhere,
    SameZone,
    SameNode,
}

impl Topology {
    fn of(
        candidates: &[Candidate<'_>],
        node: &ThisNode,
        ejected: &BTreeSet<SocketAddr>,
    ) -> Topology {
        let none = Hints::default();
        let ready = || candidates.iter().filter(|c| c.endpoint.ready);
        let weighted = || ready().filter(|c| c.endpoint.weight > 0);
        let is_ejected = |c: &Candidate<'_>| ejected.contains(&c.endpoint.address);
        // If all are ejected, they are used anyway.
        let heeds_ejections = !ejected.is_empty() && !weighted().all(is_ejected);
        let every = |has: fn(&Hints) -> bool| ready().all(|c| has(c.hints.unwrap_or(&none)));
        let any_taking = |is_meant: &dyn Fn(&Hints) -> bool| {
            let mut taking = weighted().filter(|c| !(heeds_ejections && is_ejected(c)));
            taking.any(|c| c.hints.is_some_and(is_meant))
        };
        if every(|hints| !hints.nodes.is_empty())
            && any_taking(&|hints| hints.nodes.contains(&node.name))
        {
            Topology::SameNode
        } else if every(|hints| !hints.zones.is_empty())
            && let Some(zone) = &node.zone
            && any_taking(&|hints| hints.zones.contains(zone))
        {
            Topology::SameZone
        } else {
            Topology::Everywhere
        }
    }

    fn admits(self, hints: Option<&Hints>, node: &ThisNode) -> bool {
        match self {
            Topology::Everywhere => true,
            Topology::SameNode => hints.is_some_and(|hints| hints.nodes.contains(&node.name)),
            Topology::SameZone => hints
                .zip(node.zone.as_ref())
                .is_some_and(|(hints, zone)| hints.zones.contains(zone)),
        }
    }
}

#[cfg(test)]
mod tests;
