//! A service group: the addresses of a ServicePort that are treated alike, and where
//! their traffic goes. Workers read it without locks; a sync swaps what it
//! points to.

use std::{
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use arc_swap::ArcSwap;
use ipnet::IpNet;

use super::{
    super::plan::{AskedLimits, GroupPlan, Target},
    affinity::Affinity,
    backends::{Backends, Endpoint, Loads, Tried, real_server},
    cluster_local::ClusterLocal,
    failing::Failing,
    usage::{ConnectionLimits, PER_CONNECTION, Usage},
};
use crate::{
    log_once::LoggedFlag,
    sched::{Flow, Load, RealServer, Seed},
    services::{ProxyProtocol, Retry},
};

/// Where a service group's traffic goes. Immutable; a change swaps in a new one.
#[derive(Debug)]
pub struct Routing {
    /// The endpoints that connections go to.
    pub backends: Backends,
    /// The endpoints for cluster-local clients; `None`: the same as for other clients.
    pub cluster_local: Option<Backends>,
    /// The endpoints that keep the UDP flows that they have, and get no new ones.
    keep_flows: Box<[RealServer]>,
    /// The loads of endpoints that have left, as long as connections to them are open: one that
    /// comes back gets its load again, like a real server that IPVS takes back from its trash
    /// (`ip_vs_trash_get_dest` in net/netfilter/ipvs/ip_vs_ctl.c).
    left: Box<[(SocketAddr, Weak<Load>)]>,
    /// The clients with their endpoints, for ClientIP affinity; `None`: there is no session
    /// affinity.
    pub affinity: Option<Arc<Affinity>>,
    /// Peers that may call; empty: everyone.
    pub allowed: Box<[IpNet]>,
    /// Version of the PROXY protocol header with which TCP connections to endpoints begin; `None`:
    /// none is sent.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// What may be tried again on another endpoint.
    pub retry: Retry,
    /// How many connections its Service asks to have at most.
    pub limits: AskedLimits,
}

impl Routing {
    /// Returns the routing that `plan` asks for; what `before` knows of endpoints is
    /// kept.
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
            proxy_protocol: plan.proxy_protocol,
            retry: plan.retry,
            limits: plan.limits,
        };
        for server in routing.servers() {
            loads.remove(&server.address);
        }
        let left = loads.iter();
        routing.left = left.map(|(at, load)| (*at, Arc::downgrade(load))).collect();
        routing
    }

    /// Returns the loads of the endpoints that get new connections, and of others, also those that
    /// have left, while connections to them are open.
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

    /// Returns whether it is what `plan` asks for.
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
            && self.proxy_protocol == plan.proxy_protocol
            && self.retry == plan.retry
            && self.limits == plan.limits
            && self
                .keep_flows
                .iter()
                .map(|server| &server.address)
                .eq(&plan.keep_flows)
            && self.backends.is_of(plan.scheduler, &plan.targets)
    }

    fn backends_for(&self, flow: &Flow, clients: &ClusterLocal) -> &Backends {
        match &self.cluster_local {
            Some(backends) if clients.contains(flow) => backends,
            _ => &self.backends,
        }
    }

    /// Returns all endpoints that may have UDP flows, of all clients, whether they get new ones or
    /// not.
    pub fn servers(&self) -> impl Iterator<Item = &RealServer> {
        self.reached().chain(&self.keep_flows)
    }

    /// Returns the endpoints that get new connections, of all clients.
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
    /// What its Service has open, and its clients.
    pub usage: Arc<Usage>,
    /// TCP connections that are open now.
    pub connections: AtomicUsize,
    /// Whether it was logged that new connections wait, to leave descriptors to others.
    pub waits_logged: LoggedFlag,
    /// Whether it was logged that stalled connections were ended.
    pub stalled_logged: LoggedFlag,
    /// Whether it was logged that calls of an endpoint would come back.
    pub comes_back_logged: LoggedFlag,
}

impl ServiceGroup {
    /// Returns a service group that sends its traffic along `routing`.
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

    /// Returns how many descriptors its TCP connections have that are open now.
    pub fn descriptors(&self) -> usize {
        self.connections.load(Relaxed) * PER_CONNECTION as usize
    }

    /// Returns where traffic goes now.
    pub fn routing(&self) -> Arc<Routing> {
        self.routing.load_full()
    }

    /// Sends new traffic along `next`.
    pub fn reroute(&self, next: Routing) {
        self.routing.store(Arc::new(next));
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

    /// Records that it was logged why `endpoint` is not used.
    pub fn is_known(&self, endpoint: SocketAddr) {
        self.failing.is_known(endpoint);
    }

    /// Returns whether `endpoint` did not answer lately, and is passed over while
    /// others are available.
    pub fn passes_over(&self, endpoint: &SocketAddr) -> bool {
        let ejected = self.failing.ejected();
        ejected.is_some_and(|ejected| ejected.has(endpoint))
    }

    /// Returns the endpoints that it passes over.
    pub fn passed_over(&self) -> Vec<SocketAddr> {
        let Some(ejected) = self.failing.ejected() else {
            return Vec::new();
        };
        let routing = self.routing.load();
        let servers = routing.servers().map(|server| server.address);
        servers.filter(|address| ejected.has(address)).collect()
    }

    /// Returns the limits of its Service, which are those in `given` where it asks for none.
    pub fn limits(&self, given: ConnectionLimits) -> ConnectionLimits {
        given.of_service(self.routing.load().limits)
    }

    /// Returns whether source ranges let the client of `flow` call.
    pub fn admits(&self, flow: &Flow) -> bool {
        let routing = self.routing.load();
        let allowed = |peer: &IpAddr| routing.allowed.iter().any(|range| range.contains(peer));
        routing.allowed.is_empty() || self.cluster_local.any_address(flow, allowed)
    }

    /// Returns the endpoint at `address` if a UDP flow that began in another process may go on
    /// there: as if it had begun in this one, it need not get new flows.
    pub fn prefer(&self, address: SocketAddr) -> Option<Endpoint> {
        if self.passes_over(&address) {
            return None;
        }
        let routing = self.routing.load();
        let endpoint = routing.servers().find(|server| server.address == address);
        endpoint.map(Endpoint::from)
    }

    /// Returns the endpoints that [`ServiceGroup::pick`] may return for a new flow, whatever is
    /// known of failures: the one that its client stays on, or all.
    #[cfg(test)]
    pub fn candidates(&self, flow: &Flow) -> Vec<SocketAddr> {
        let routing = self.routing.load();
        let backends = routing.backends_for(flow, &self.cluster_local);
        let mut stays = None;
        if let Some(affinity) = &routing.affinity {
            // Nothing is chosen, so its client is pinned as before.
            affinity.pin(flow.client.ip(), |current| {
                let chosen = self.choose(flow, backends, current, &mut Tried::default());
                stays = current.filter(|on| chosen.is_some_and(|chosen| chosen.address == *on));
                (None, ())
            });
        }
        if let Some(on) = stays {
            return vec![on];
        }
        let usable = backends.servers().iter().filter(|server| server.weight > 0);
        usable.map(|server| server.address).collect()
    }

    /// Makes a client stay on an endpoint, if clients stay on theirs.
    #[cfg(test)]
    pub fn pin(&self, client: IpAddr, endpoint: SocketAddr) {
        if let Some(affinity) = &self.routing.load().affinity {
            affinity.pin(client, |_| (Some(endpoint), ()));
        }
    }

    /// Returns whether clients stay on their endpoints.
    pub fn has_affinity(&self) -> bool {
        self.routing.load().affinity.is_some()
    }

    /// Returns the endpoint for a new flow, other than those it `tried`; `None`: there is no other.
    /// A client with affinity stays on the endpoint to which it is pinned, or is pinned to the
    /// returned one.
    pub fn pick(&self, flow: &Flow, tried: &mut Tried) -> Option<Endpoint> {
        let begin = |_: &Endpoint| Ok::<_, Infallible>(());
        let (endpoint, _) = self.begin(flow, tried, begin)?;
        Some(endpoint)
    }

    /// Returns the endpoint that [`ServiceGroup::pick`] would return, and what `begin` makes
    /// of it. Only if that is not an error is a client with affinity pinned to it: a flow that
    /// does not begin, as of an address that was forged, leaves nothing.
    pub fn begin<T, E>(
        &self,
        flow: &Flow,
        tried: &mut Tried,
        begin: impl FnOnce(&Endpoint) -> Result<T, E>,
    ) -> Option<(Endpoint, Result<T, E>)> {
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

    /// Returns the endpoint for a new flow of a client that is pinned to `current`.
    fn choose(
        &self,
        flow: &Flow,
        backends: &Backends,
        current: Option<SocketAddr>,
        tried: &mut Tried,
    ) -> Option<Endpoint> {
        current
            .filter(|address| !tried.has(address))
            .and_then(|address| backends.usable(address))
            .or_else(|| backends.pick(flow, tried, &self.failing))
    }
}
