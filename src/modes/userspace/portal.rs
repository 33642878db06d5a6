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
    backends::{Backends, EndpointState},
};
use crate::sched::Flow;

/// Where a portal's traffic goes. Immutable; a change swaps in a new one.
#[derive(Debug)]
pub struct Routing {
    /// The endpoints.
    pub backends: Backends,
    /// The clients' pins, for a Service with ClientIP affinity.
    pub affinity: Option<Arc<Affinity>>,
    /// Peers that may call; empty: everyone.
    pub allowed: Box<[IpNet]>,
}

/// The data path's view of one group of addresses of a ServicePort.
#[derive(Debug)]
pub struct Portal {
    /// The ServicePort, for logs.
    pub label: Arc<str>,
    routing: ArcSwap<Routing>,
}

impl Portal {
    /// A portal that sends its traffic along `routing`.
    pub fn new(label: Arc<str>, routing: Routing) -> Self {
        Portal {
            label,
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
        before.backends.retire_missing_from(&next.backends);
    }

    /// Whether source ranges let `peer` call.
    pub fn admits(&self, peer: IpAddr) -> bool {
        let routing = self.routing.load();
        routing.allowed.is_empty() || routing.allowed.iter().any(|range| range.contains(&peer))
    }

    /// The endpoint for a new flow, beside those it `tried`. A client with
    /// affinity stays on the endpoint it is pinned to, or is pinned to the one
    /// picked.
    pub fn pick(&self, flow: &Flow, tried: &[SocketAddr]) -> Option<Arc<EndpointState>> {
        let routing = self.routing.load();
        let fresh = || routing.backends.pick(flow, tried).map(Arc::clone);
        let Some(affinity) = &routing.affinity else {
            return fresh();
        };
        affinity.pin(flow.client.ip(), |current| {
            let endpoint = current
                .filter(|address| !tried.contains(address))
                .and_then(|address| routing.backends.usable(address))
                .map(Arc::clone)
                .or_else(fresh)?;
            Some((endpoint.address, endpoint))
        })
    }
}
