//! A portal: the addresses of a ServicePort that are treated alike, and where
//! their traffic goes. Workers read it without locks; a sync swaps what it
//! points to.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use arc_swap::ArcSwap;
use hashbrown::HashSet;
use ipnet::IpNet;

use super::{
    affinity::Affinity,
    backends::{Backends, EndpointState},
    insiders::Insiders,
};
use crate::sched::Flow;

/// Where a portal's traffic goes. Immutable; a change swaps in a new one.
#[derive(Debug)]
pub struct Routing {
    /// The endpoints.
    pub backends: Backends,
    /// The endpoints for who calls from inside the cluster, where they differ.
    pub inside: Option<Backends>,
    /// The clients' pins, for a Service with ClientIP affinity.
    pub affinity: Option<Arc<Affinity>>,
    /// Peers that may call; empty: everyone.
    pub allowed: Box<[IpNet]>,
}

impl Routing {
    fn backends_for(&self, flow: &Flow, insiders: &Insiders) -> &Backends {
        match &self.inside {
            Some(backends) if insiders.contains(flow) => backends,
            _ => &self.backends,
        }
    }

    /// All endpoints, for whomever.
    pub fn endpoints(&self) -> impl Iterator<Item = &Arc<EndpointState>> {
        std::iter::once(&self.backends)
            .chain(&self.inside)
            .flat_map(Backends::endpoints)
    }

    /// Ends what hangs on endpoints that are not among `kept`.
    pub fn retire_except(&self, kept: &HashSet<SocketAddr>) {
        self.endpoints()
            .filter(|endpoint| !kept.contains(&endpoint.address))
            .for_each(|endpoint| endpoint.remove());
    }
}

/// The data path's view of one group of addresses of a ServicePort.
#[derive(Debug)]
pub struct Portal {
    /// The ServicePort, for logs.
    pub label: Arc<str>,
    insiders: Arc<Insiders>,
    routing: ArcSwap<Routing>,
}

impl Portal {
    /// A portal that sends its traffic along `routing`.
    pub fn new(label: Arc<str>, insiders: Arc<Insiders>, routing: Routing) -> Self {
        Portal {
            label,
            insiders,
            routing: ArcSwap::from_pointee(routing),
        }
    }

    /// Where traffic goes now.
    pub fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Sends new traffic along `next`, and tells what hangs on endpoints that
    /// are no longer there. Open TCP connections run on.
    pub fn reroute(&self, next: Routing) {
        let next = Arc::new(next);
        let before = self.routing.swap(Arc::clone(&next));
        let kept = next.endpoints().map(|e| e.address).collect();
        before.retire_except(&kept);
    }

    /// Whether source ranges let the client of `flow` call.
    pub fn admits(&self, flow: &Flow) -> bool {
        let routing = self.routing.load();
        let allowed = |peer: &IpAddr| routing.allowed.iter().any(|range| range.contains(peer));
        routing.allowed.is_empty() || self.insiders.any_address(flow, allowed)
    }

    /// The endpoint for a new flow, beside those it `tried`. A client with
    /// affinity stays on the endpoint it is pinned to, or is pinned to the one
    /// picked.
    pub fn pick(&self, flow: &Flow, tried: &[SocketAddr]) -> Option<Arc<EndpointState>> {
        let routing = self.routing.load();
        let backends = routing.backends_for(flow, &self.insiders);
        let fresh = || backends.pick(flow, tried).map(Arc::clone);
        let Some(affinity) = &routing.affinity else {
            return fresh();
        };
        affinity.pin(flow.client.ip(), |current| {
            let endpoint = current
                .filter(|address| !tried.contains(address))
                .and_then(|address| backends.usable(address))
                .map(Arc::clone)
                .or_else(fresh)?;
            Some((endpoint.address, endpoint))
        })
    }
}
