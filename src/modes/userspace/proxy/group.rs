//! A service group: the addresses of a ServicePort that are treated alike, and the destination of
//! their traffic. Workers read it without locks; a sync swaps its routing.

#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use ipnet::IpNet;

use super::{
    super::plan::{GroupPlan, Target},
    affinity::Affinity,
    backends::{Backends, Loads, Tried, real_server},
    cluster_local::ClusterLocal,
    failing::Failing,
    present::Present,
    usage::{ConnectionLimits, PER_CONNECTION, Usage},
};
use crate::{
    log_once::LoggedFlag,
    sched::{Flow, Load, RealServer, Seed},
    services::Preferences,
};

/// Destination of a service group's traffic. Immutable; a change swaps in a new one.
#[derive(Debug)]
pub struct Routing {
    /// The endpoints for new connections.
    pub backends: Backends,
    /// The endpoints for cluster-local clients; `None` if they are the same as for other clients.
    pub cluster_local: Option<Backends>,
    /// The endpoints that keep their UDP flows, and get no new ones.
    keep_flows: Box<[RealServer]>,
    /// The loads of removed endpoints with open connections: an endpoint that is added again gets
    /// its load back, like a real server that IPVS takes back from its trash
    /// (`ip_vs_trash_get_dest` in net/netfilter/ipvs/ip_vs_ctl.c).
    left: Box<[(SocketAddr, Weak<Load>)]>,
    /// The clients with their endpoints, for ClientIP affinity; `None` if there is no session
    /// affinity.
    pub affinity: Option<Arc<Affinity>>,
    /// Networks of peers that may call; empty if everyone may.
    pub allowed: Box<[IpNet]>,
    /// What the Service requests beyond the API.
    preferences: Option<Arc<Preferences>>,
    /// The endpoints whose connections do not end with a reset; `None` if none do.
    pub present: Option<Arc<Present>>,
}

impl Routing {
    /// The routing of `plan`, keeping the state of endpoints from `before`.
    pub fn new(
        plan: &GroupPlan,
        seed: Seed,
        affinity: Option<Arc<Affinity>>,
        before: Option<&Routing>,
    ) -> Routing {
        let mut loads = before.map(Routing::loads).unwrap_or_default();
        let previous = before.map(|b| &b.backends);
        let scheduler = plan.scheduler;
        let backends = Backends::new(scheduler, seed, &plan.targets, previous, &mut loads);
        let cluster_local = plan.cluster_local.as_ref().map(|targets| {
            let previous = before.and_then(|b| b.cluster_local.as_ref());
            Backends::new(scheduler, seed, targets, previous, &mut loads)
        });
        let keep_flows = plan.keep_flows.iter();
        let keep_flows = keep_flows.map(|&address| {
            let target = Target { address, weight: 0 };
            real_server(&target, &mut loads)
        });
        let keep_flows = keep_flows.collect();
        let mut routing = Routing {
            backends,
            cluster_local,
            keep_flows,
            left: Box::default(),
            affinity,
            allowed: plan.allowed.clone(),
            preferences: plan.preferences.clone(),
            present: plan.present.as_ref().map(|addresses| {
                Present::of(addresses, before.and_then(|before| before.present.as_ref()))
            }),
        };
        for server in routing.servers() {
            loads.remove(&server.address);
        }
        let left = loads.iter();
        routing.left = left.map(|(at, load)| (*at, Arc::downgrade(load))).collect();
        routing
    }

    /// The loads of endpoints that get new connections, and of others, including removed ones, with
    /// open connections.
    pub fn loads(&self) -> Loads {
        let left = self.left.iter();
        let left = left.filter_map(|(at, load)| Some((*at, load.upgrade()?)));
        // Most endpoints that may keep flows have none.
        let has_flows = |server: &&RealServer| Arc::strong_count(&server.load) > 1;
        let keep_flows = self.keep_flows.iter().filter(has_flows);
        let present = self.reached().chain(keep_flows);
        left.chain(present.map(|server| (server.address, Arc::clone(&server.load))))
            .collect()
    }

    /// Returns whether it is the routing of `plan`.
    pub fn is_of(&self, plan: &GroupPlan, affinity: Option<&Arc<Affinity>>) -> bool {
        let cluster_local = match (&self.cluster_local, &plan.cluster_local) {
            (Some(backends), Some(targets)) => backends.is_of(plan.scheduler, targets),
            (None, None) => true,
            _ => false,
        };
        let affine = match (&self.affinity, affinity) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        cluster_local
            && affine
            && self.allowed == plan.allowed
            && self.preferences == plan.preferences
            && match (&self.present, &plan.present) {
                (Some(present), Some(addresses)) => present.is_of(addresses),
                (None, None) => true,
                _ => false,
            }
            && self
                .keep_flows
                .iter()
                .map(|server| &server.address)
                .eq(&plan.keep_flows)
            && self.backends.is_of(plan.scheduler, &plan.targets)
    }

    /// What the Service requests beyond the API.
    pub fn preferences(&self) -> &Preferences {
        Preferences::given(&self.preferences)
    }

    fn backends_for(&self, flow: &Flow, clients: &ClusterLocal) -> &Backends {
        match &self.cluster_local {
            Some(backends) if clients.contains(flow) => backends,
            _ => &self.backends,
        }
    }

    /// All endpoints that may have UDP flows, of all clients, whether or not they get new ones.
    pub fn servers(&self) -> impl Iterator<Item = &RealServer> {
        self.reached().chain(&self.keep_flows)
    }

    /// The endpoints that get new connections, of all clients.
    fn reached(&self) -> impl Iterator<Item = &RealServer> {
        std::iter::once(&self.backends)
            .chain(&self.cluster_local)
            .flat_map(Backends::servers)
    }
}

/// The data path's view of one group of addresses of a ServicePort.
#[derive(Debug)]
pub struct ServiceGroup {
    /// The ServicePort, for logs.
    pub label: Arc<str>,
    cluster_local: Arc<ClusterLocal>,
    failing: Failing,
    routing: ArcSwap<Routing>,
    /// Usage of the Service and its clients.
    pub usage: Arc<Usage>,
    /// Number of open TCP connections.
    pub connections: AtomicUsize,
    /// Whether it was logged that new connections wait, to leave descriptors to others.
    pub waits_logged: LoggedFlag,
    /// Whether it was logged that stalled connections were ended.
    pub stalled_logged: LoggedFlag,
    /// Whether it was logged that connections to an endpoint would come back.
    pub comes_back_logged: LoggedFlag,
}

impl ServiceGroup {
    /// A service group with this `routing`.
    pub fn new(
        label: Arc<str>,
        cluster_local: Arc<ClusterLocal>,
        usage: Arc<Usage>,
        routing: Routing,
    ) -> Self {
        ServiceGroup {
            label,
            cluster_local,
            failing: Failing::default(),
            routing: ArcSwap::from_pointee(routing),
            usage,
            connections: AtomicUsize::new(0),
            waits_logged: LoggedFlag::default(),
            stalled_logged: LoggedFlag::default(),
            comes_back_logged: LoggedFlag::default(),
        }
    }

    /// Number of descriptors of its open TCP connections.
    pub fn descriptors(&self) -> usize {
        self.connections.load(Relaxed) * PER_CONNECTION as usize
    }

    /// The current routing.
    pub fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Uses `next` for new traffic.
    pub fn reroute(&self, next: Routing) {
        let next = Arc::new(next);
        let before = self.routing.swap(Arc::clone(&next));
        if let Some(before) = &before.present {
            before.replaced_by(next.present.as_ref());
        }
    }

    /// Records that an endpoint refused a connection or did not answer in time.
    pub fn failed(&self, endpoint: SocketAddr) {
        if let Some(times) = self.failing.failed(endpoint) {
            tracing::warn!(
                service = %self.label,
                %endpoint,
                "this endpoint is ejected, because it did not answer {times} times in a row: \
                 others get its connections, and one connection tries it now and then; tripod \
                 services shows all ejected endpoints"
            );
        }
    }

    /// Records that an endpoint answered.
    pub fn answered(&self, endpoint: SocketAddr) {
        if self.failing.answered(endpoint) {
            tracing::info!(service = %self.label, %endpoint, "this endpoint answers again");
        }
    }

    /// Ejects `endpoint` as if it had failed. The caller logs why.
    pub fn eject(&self, endpoint: SocketAddr) {
        self.failing.failed(endpoint);
    }

    /// Returns whether `endpoint` did not answer recently, and is skipped while others are
    /// available.
    pub fn passes_over(&self, endpoint: &SocketAddr) -> bool {
        let ejected = self.failing.ejected();
        ejected.is_some_and(|ejected| ejected.has(endpoint))
    }

    /// The endpoints that are skipped.
    pub fn passed_over(&self) -> Vec<SocketAddr> {
        let Some(ejected) = self.failing.ejected() else {
            return Vec::new();
        };
        let routing = self.routing.load();
        let servers = routing.servers().map(|server| server.address);
        servers.filter(|address| ejected.has(address)).collect()
    }

    /// The limits of its Service; `given` ones apply if the Service requests none.
    pub fn limits(&self, given: ConnectionLimits) -> ConnectionLimits {
        given.of_service(self.routing.load().preferences())
    }

    /// Returns whether source ranges allow the client of `flow`.
    pub fn admits(&self, flow: &Flow) -> bool {
        let routing = self.routing.load();
        let allowed = |peer: &IpAddr| routing.allowed.iter().any(|range| range.contains(peer));
        routing.allowed.is_empty() || self.cluster_local.any_address(flow, allowed)
    }

    /// The endpoint at `address`, if a UDP flow that began in another process may continue there.
    /// As for flows of this process, the endpoint need not get new flows.
    pub fn prefer(&self, address: SocketAddr) -> Option<RealServer> {
        if self.passes_over(&address) {
            return None;
        }
        let routing = self.routing.load();
        let endpoint = routing.servers().find(|server| server.address == address);
        endpoint.cloned()
    }

    /// Returns whether there is session affinity.
    pub fn has_affinity(&self) -> bool {
        self.routing.load().affinity.is_some()
    }

    /// Picks an endpoint for a new flow, other than those it `tried`; `None` if there is no other.
    /// A client with affinity stays on the endpoint to which it is pinned, or is pinned to the
    /// returned one.
    pub fn pick(&self, flow: &Flow, tried: &mut Tried) -> Option<RealServer> {
        let begin = |_: &RealServer| Ok::<_, Infallible>(());
        let (endpoint, _) = self.begin(flow, tried, begin)?;
        Some(endpoint)
    }

    /// Picks an endpoint as [`ServiceGroup::pick`] does, and calls `begin` for it. A client with
    /// affinity is only pinned to the endpoint if `begin` succeeds: a flow that does not begin, for
    /// example from a forged address, leaves nothing behind.
    pub fn begin<T, E>(
        &self,
        flow: &Flow,
        tried: &mut Tried,
        begin: impl FnOnce(&RealServer) -> Result<T, E>,
    ) -> Option<(RealServer, Result<T, E>)> {
        let routing = self.routing.load();
        let backends = routing.backends_for(flow, &self.cluster_local);
        let Some(affinity) = &routing.affinity else {
            let endpoint = backends.pick(flow, tried, &self.failing)?;
            let begun = begin(&endpoint);
            return Some((endpoint, begun));
        };
        affinity.pin(flow.client.ip(), |current| {
            let Some(endpoint) = self.choose(flow, backends, current, tried) else {
                return (None, None);
            };
            let begun = begin(&endpoint);
            let pinned = begun.is_ok().then_some(endpoint.address);
            (pinned, Some((endpoint, begun)))
        })
    }

    /// Chooses the endpoint for a new flow of a client that is pinned to `current`.
    fn choose(
        &self,
        flow: &Flow,
        backends: &Backends,
        current: Option<SocketAddr>,
        tried: &mut Tried,
    ) -> Option<RealServer> {
        current
            .filter(|address| !tried.has(address))
            .and_then(|address| backends.usable(address))
            .or_else(|| backends.pick(flow, tried, &self.failing))
    }
}

/// An address on which a service group listens. Every connection that arrived there holds it, so
/// that whatever the address needs (for example a route) stays as long as a connection is open.
#[derive(Debug)]
pub struct ListenerAddress {
    /// Service group whose endpoints get its connections.
    pub group: Arc<ServiceGroup>,
    /// The address that clients call.
    pub called: IpAddr,
    /// Whether its listeners have a filter, or had one, which connections inherit.
    pub filtered: AtomicBool,
}
