//! Virtual servers and their real servers.

use std::{fmt, net::IpAddr, net::SocketAddr, sync::Arc};

use super::options::Site;
use crate::{
    modes::Reason,
    net::Protocol,
    services::{Endpoint, Forwarding, Preferences, ServicePort, SessionAffinity, TrafficPolicy},
};

/// Where a virtual server is called: what names it to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frontend {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = SocketAddr::new(self.address, self.port);
        write!(f, "{address}/{}", self.protocol)
    }
}

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// Where it is called.
    pub frontend: Frontend,
    /// How the kernel spreads connections.
    pub scheduler: Arc<str>,
    /// Connections of one client address stay on one endpoint for that many
    /// seconds.
    pub persistence: Option<u32>,
    /// Where connections go; sorted by address.
    pub reals: Box<[RealServer]>,
}

impl VirtualServer {
    /// The scheduler also looks at the client's port (`IP_VS_SVC_F_SCHED_MH_PORT`
    /// of `linux/ip_vs.h`), as kube-proxy has Maglev do.
    pub fn hashes_ports(&self) -> bool {
        &*self.scheduler == "mh"
    }
}

/// A real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealServer {
    /// The endpoint.
    pub address: SocketAddr,
    /// Share of new connections.
    pub weight: u16,
    /// How packets get there.
    pub method: Method,
}

/// How packets get to a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Destination rewritten.
    Nat,
    /// As they are, to its link address.
    Dr,
    /// Wrapped in IP-in-IP.
    Tunnel,
}

/// What a ServicePort's connections have in common.
pub(super) struct Manner<'a> {
    port: &'a ServicePort,
    scheduler: Arc<str>,
    persistence: Option<u32>,
}

impl<'a> Manner<'a> {
    /// That of `port`; what cannot be honoured goes to `unsupported`.
    pub(super) fn new(
        port: &'a ServicePort,
        site: &Site,
        unsupported: &mut Vec<Reason>,
    ) -> Manner<'a> {
        let wanted = port.preferences().scheduler.as_ref();
        let (scheduler, lacking) = site.scheduler(wanted);
        if lacking {
            let name = wanted.unwrap_or(&site.scheduler);
            let why = format!(
                "this kernel has no IPVS scheduler {name:?} (module ip_vs_{name}), so connections \
                 are spread by {scheduler}"
            );
            unsupported.push(Reason::new(Preferences::SCHEDULER, why));
        }
        Manner {
            port,
            scheduler,
            persistence: match port.session_affinity {
                SessionAffinity::None => None,
                SessionAffinity::ClientIp { timeout } => {
                    Some(u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX))
                }
            },
        }
    }

    /// The virtual server at `frontend` for traffic of that policy, and
    /// whether its endpoints answer by themselves. Forwarding other than nat
    /// must fit its endpoints.
    ///
    /// # Errors
    /// Why it does not; then nat must do.
    pub(super) fn server(
        &self,
        frontend: Frontend,
        reach: &[&Endpoint],
        direct: Option<Method>,
    ) -> VirtualServer {
        let real = |endpoint: &&Endpoint| RealServer {
            address: endpoint.address,
            weight: endpoint.weight,
            // Answers of an endpoint here pass this node anyway, and with the
            // node's own address as their source they would be dropped.
            method: direct.filter(|_| !endpoint.local).unwrap_or(Method::Nat),
        };
        VirtualServer {
            frontend,
            scheduler: Arc::clone(&self.scheduler),
            persistence: self.persistence,
            reals: reach.iter().map(real).collect(),
        }
    }

    /// The way to endpoints elsewhere that answer by themselves, if asked for
    /// and possible.
    ///
    /// # Errors
    /// Why it is not possible.
    pub(super) fn direct(
        &self,
        frontend: &Frontend,
        reach: &[&Endpoint],
    ) -> Result<Option<Method>, String> {
        let (asked, method) = match self.port.preferences().forwarding {
            None | Some(Forwarding::Nat | Forwarding::FullNat) => return Ok(None),
            Some(asked @ Forwarding::Dr) => (asked, Method::Dr),
            Some(asked @ Forwarding::Tunnel) => (asked, Method::Tunnel),
        };
        let other = reach
            .iter()
            .find(|endpoint| !endpoint.local && endpoint.address.port() != frontend.port);
        match other {
            Some(endpoint) => Err(format!(
                "{asked} leaves ports as they are, but {frontend} leads to endpoint {}; nat is \
                 used there. Give the Service's port the number of its targetPort",
                endpoint.address
            )),
            None => Ok(Some(method)),
        }
    }
}

/// The endpoints for traffic from inside the cluster.
pub(super) fn inside(port: &ServicePort) -> Vec<&Endpoint> {
    reach(port, port.internal_traffic_policy)
}

/// The endpoints for traffic from outside. A policy of Local falls back to the
/// whole cluster where this node has none, so that pods and the node itself
/// get through (kubernetes issue 93456; kube-proxy's ipvs mode since 1.21).
/// Callers from outside get no answer then, as their source is left alone.
pub(super) fn outside(port: &ServicePort) -> Vec<&Endpoint> {
    let found = reach(port, port.external_traffic_policy);
    if found.is_empty() {
        reach(port, TrafficPolicy::Cluster)
    } else {
        found
    }
}

fn reach(port: &ServicePort, policy: TrafficPolicy) -> Vec<&Endpoint> {
    let endpoints = &port.endpoints;
    let reachable = match policy {
        TrafficPolicy::Cluster => &endpoints.cluster,
        TrafficPolicy::Local => &endpoints.local,
    };
    reachable
        .iter()
        .filter_map(|&at| endpoints.all.get(at as usize))
        .collect()
}
