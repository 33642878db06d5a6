//! A portal: the addresses of a ServicePort that are treated alike, and where
//! their traffic goes. Workers read it without locks; a sync swaps what it
//! points to.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use arc_swap::ArcSwap;
use ipnet::IpNet;

use super::{
    affinity::Affinity,
    backends::{Backends, Endpoint, Tried},
    failing::Failing,
    insiders::Insiders,
};
use crate::{
    sched::{Flow, RealServer},
    services::{ProxyProtocol, Retry},
};

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
    /// The header that TCP connections to endpoints begin with.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// What may be tried again on another endpoint.
    pub retry: Retry,
}

impl Routing {
    fn backends_for(&self, flow: &Flow, insiders: &Insiders) -> &Backends {
        match &self.inside {
            Some(backends) if insiders.contains(flow) => backends,
            _ => &self.backends,
        }
    }

    /// All endpoints, for whomever.
    pub fn servers(&self) -> impl Iterator<Item = &RealServer> {
        std::iter::once(&self.backends)
            .chain(&self.inside)
            .flat_map(Backends::servers)
    }
}

/// The data path's view of one group of addresses of a ServicePort.
#[derive(Debug)]
pub struct Portal {
    /// The ServicePort, for logs.
    pub label: Arc<str>,
    insiders: Arc<Insiders>,
    failing: Failing,
    routing: ArcSwap<Routing>,
}

impl Portal {
    /// A portal that sends its traffic along `routing`.
    pub fn new(label: Arc<str>, insiders: Arc<Insiders>, routing: Routing) -> Self {
        Portal {
            label,
            insiders,
            failing: Failing::default(),
            routing: ArcSwap::from_pointee(routing),
        }
    }

    /// Where traffic goes now.
    pub fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Sends new traffic along `next`.
    pub fn reroute(&self, next: Routing) {
        self.routing.store(Arc::new(next));
    }

    /// Notes that an endpoint refused a connection or did not answer in time.
    pub fn failed(&self, endpoint: SocketAddr) {
        self.failing.failed(endpoint);
    }

    /// Notes that an endpoint answered.
    pub fn answered(&self, endpoint: SocketAddr) {
        self.failing.answered(endpoint);
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
    pub fn pick(&self, flow: &Flow, tried: &mut Tried) -> Option<Endpoint> {
        let routing = self.routing.load();
        let backends = routing.backends_for(flow, &self.insiders);
        let Some(affinity) = &routing.affinity else {
            return backends.pick(flow, tried, &self.failing);
        };
        affinity.pin(flow.client.ip(), |current| {
            let endpoint = current
                .filter(|address| !tried.has(address))
                .and_then(|address| backends.usable(address))
                .or_else(|| backends.pick(flow, tried, &self.failing))?;
            Some((endpoint.address, endpoint))
        })
    }
}
