//! Virtual servers and their real servers.

use std::{sync::Arc, time::Duration};

use ipvs::{FALL_BACK, Forwarding as Way, HASH_PORTS, RealServer, SCHEDULERS, ServerId};

use super::{NodeContext, ROUND_ROBIN, options::name_in_kernel};
use crate::services::{Endpoint, Forwarding, ServicePort, TrafficPolicy};

/// A virtual server with its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// The key of the virtual server.
    pub frontend: ServerId,
    /// How the kernel spreads connections.
    pub scheduler: Arc<str>,
    /// Time for which connections of one client address stay on one endpoint, in seconds; `None`:
    /// there is no session affinity.
    pub persistence: Option<u32>,
    /// Where connections go; sorted by address.
    pub reals: Box<[RealServer]>,
}

impl VirtualServer {
    /// Returns true if the scheduler also looks at the client's port
    /// (`IP_VS_SVC_F_SCHED_MH_PORT` of `linux/ip_vs.h`), as kube-proxy has Maglev
    /// do.
    pub fn hashes_ports(&self) -> bool {
        &*self.scheduler == "mh"
    }

    /// Returns true if the scheduler assigns clients by a table that also holds real
    /// servers of weight 0 (`ip_vs_sh_reassign`, `ip_vs_mh_populate`). Without
    /// `IP_VS_SVC_F_SCHED1` clients would be refused while their real server drains; with
    /// it they get the next place of the table.
    fn falls_back(&self) -> bool {
        ["sh", "mh"].contains(&&*self.scheduler)
    }

    /// Returns how long connections of a removed real server may continue, where `limit` is the
    /// time for other schedulers; `None`: as long as they last.
    pub fn drain_limit(&self, limit: Option<Duration>) -> Option<Duration> {
        if refuses_clients(&self.scheduler) {
            return Some(Duration::ZERO);
        }
        limit
    }

    /// Returns the virtual server as the kernel takes it, without its real servers.
    pub fn to_kernel(&self) -> ipvs::VirtualServer {
        let mut server = ipvs::VirtualServer::new(self.frontend, self.scheduler.to_string());
        server.persistence = self.persistence.map(|s| Duration::from_secs(s.into()));
        if self.hashes_ports() {
            server.flags |= HASH_PORTS;
        }
        if self.falls_back() {
            server.flags |= FALL_BACK;
        }
        server
    }
}

/// Returns true for a scheduler that refuses the clients of a real server of weight 0: `dh` assigns
/// them by a table that also holds such real servers, and has nothing to fall back to
/// (`ip_vs_dh_schedule`).
fn refuses_clients(scheduler: &str) -> bool {
    scheduler == "dh"
}

/// Returns the scheduler that `port` asks for, where Services that name none have `default`.
pub fn asked_scheduler(port: &ServicePort, default: &Arc<str>) -> Arc<str> {
    match name_in_kernel(port.scheduler(default)) {
        asked if *asked == **default => Arc::clone(default),
        other => other.into(),
    }
}

/// Returns whether the kernel may be asked for the scheduler `asked`, where Services that name none
/// have `default`: whatever name the operator chose, but of the names in annotations only those of
/// schedulers, because the kernel loads a module of that name.
pub fn may_be_tried(asked: &Arc<str>, default: &Arc<str>) -> bool {
    asked == default || SCHEDULERS.contains(&&**asked)
}

/// Chooses the scheduler of `port`.
///
/// # Errors
/// With the reason to use [`ROUND_ROBIN`] instead of the scheduler that it asks for.
pub(super) fn scheduler(port: &ServicePort, node: &NodeContext) -> Result<Arc<str>, String> {
    let asked = asked_scheduler(port, &node.scheduler);
    if !may_be_tried(&asked, &node.scheduler) {
        return Err(format!(
            "{asked:?} is neither a scheduler of IPVS that Tripod knows nor the one of \
             --ipvs-scheduler, so connections are spread by {ROUND_ROBIN}, which ignores weights"
        ));
    }
    if node.missing_schedulers.contains(&asked) {
        return Err(format!(
            "this kernel has no IPVS scheduler {asked:?} (module ip_vs_{asked}), so connections \
             are spread by {ROUND_ROBIN}, which ignores weights"
        ));
    }
    Ok(asked)
}

/// How the virtual servers of one ServicePort spread connections and forward
/// packets.
pub(super) struct SchedulingParameters<'a> {
    port: &'a ServicePort,
    scheduler: Arc<str>,
    persistence: Option<u32>,
}

impl<'a> SchedulingParameters<'a> {
    pub(super) fn new(port: &'a ServicePort, node: &NodeContext) -> SchedulingParameters<'a> {
        SchedulingParameters {
            port,
            scheduler: scheduler(port, node).unwrap_or_else(|_| ROUND_ROBIN.into()),
            persistence: port
                .session_affinity
                .map(|timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX)),
        }
    }

    /// Returns the virtual server at `frontend`, which sends to `endpoints`; those on
    /// other nodes are reached by the method `direct`, if there is one. Endpoints of weight 0 are
    /// left out where the scheduler would refuse their clients although others take them.
    pub(super) fn server(
        &self,
        frontend: ServerId,
        endpoints: &[&Endpoint],
        direct: Option<Way>,
    ) -> VirtualServer {
        let real = |endpoint: &&Endpoint| {
            // Answers of an endpoint here pass this node anyway, and with the
            // node's own address as their source they would be dropped.
            let way = direct.filter(|_| !endpoint.local);
            let way = way.unwrap_or(Way::Masquerade);
            RealServer::new(endpoint.address, endpoint.share(), way)
        };
        let leaves_out = refuses_clients(&self.scheduler)
            && endpoints.iter().any(|endpoint| endpoint.weight > 0);
        let used = endpoints.iter();
        let used = used.filter(|endpoint| !leaves_out || endpoint.weight > 0);
        VirtualServer {
            frontend,
            scheduler: Arc::clone(&self.scheduler),
            persistence: self.persistence,
            reals: used.map(real).collect(),
        }
    }

    /// Returns the method by which endpoints on other nodes answer clients without
    /// passing this node, or `None` if the Service does not ask for one.
    ///
    /// # Errors
    /// Why it cannot be done at `frontend`, which sends to `endpoints`; packets are
    /// rewritten there.
    pub(super) fn direct(
        &self,
        frontend: &ServerId,
        endpoints: &[&Endpoint],
    ) -> Result<Option<Way>, String> {
        let (asked, way) = match self.port.preferences().forwarding {
            None | Some(Forwarding::Nat | Forwarding::FullNat) => return Ok(None),
            Some(asked @ Forwarding::Dr) => (asked, Way::DirectRoute),
            Some(asked @ Forwarding::Tunnel) => (asked, Way::Tunnel),
        };
        let other = endpoints
            .iter()
            .find(|endpoint| !endpoint.local && endpoint.address.port() != frontend.address.port());
        match other {
            Some(endpoint) => Err(format!(
                "{asked} does not translate ports, but {frontend} leads to endpoint {}; nat is \
                 used there. Make the Service's port equal to its targetPort",
                endpoint.address
            )),
            None => Ok(Some(way)),
        }
    }
}

/// Returns the endpoints for traffic from inside the cluster.
pub(super) fn internal_endpoints(port: &ServicePort) -> Vec<&Endpoint> {
    endpoints(port, port.internal_traffic_policy)
}

/// Returns the endpoints for traffic from outside the cluster. A policy of Local
/// falls back to the whole cluster where this node has none, so that pods and the
/// node itself get through (kubernetes issue 93456; kube-proxy's ipvs mode since
/// 1.21). Callers from outside get no answer then, as their source is left alone.
pub(super) fn external_endpoints(port: &ServicePort) -> Vec<&Endpoint> {
    let found = endpoints(port, port.external_traffic_policy);
    if found.is_empty() {
        endpoints(port, TrafficPolicy::Cluster)
    } else {
        found
    }
}

fn endpoints(port: &ServicePort, policy: TrafficPolicy) -> Vec<&Endpoint> {
    let endpoints = &port.endpoints;
    let usable = match policy {
        TrafficPolicy::Cluster => &endpoints.cluster,
        TrafficPolicy::Local => &endpoints.local,
    };
    usable
        .iter()
        .filter_map(|&at| endpoints.all.get(at as usize))
        .collect()
}
