//! From a ServicePort to the portals that carry it: pure.

use std::{net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;

use super::{backends::Target, capture::Frontend, preferences};
use crate::services::{
    Endpoints, ProxyProtocol, Retry, ServicePort, ServicePortName, SessionAffinity, TrafficPolicy,
};
use crate::{net::Protocol, sched::SchedulerName};

/// Which of a ServicePort's addresses a portal stands for. Addresses that are
/// treated alike share the portal of the first kind that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The cluster IP: internal traffic policy.
    Internal,
    /// External IPs and the node port: external traffic policy.
    External,
    /// Load-balancer IPs: external traffic policy and source ranges.
    LoadBalancer,
}

/// Identity of a portal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortalName {
    /// The ServicePort.
    pub port: ServicePortName,
    /// Its addresses of this kind, and those treated alike.
    pub kind: Kind,
}

/// What a portal should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalPlan {
    /// Identity.
    pub name: PortalName,
    /// The ServicePort's cluster IP.
    pub cluster_ip: Option<IpAddr>,
    /// The addresses that clients call.
    pub frontends: Vec<Frontend>,
    /// The node's addresses on which the node port is not served, because a
    /// frontend of this or another ServicePort has the same port there.
    pub not_at: Arc<[IpAddr]>,
    /// The endpoints that new flows may reach.
    pub targets: Vec<Target>,
    /// Those that callers inside the cluster may reach, if others.
    pub inside: Option<Vec<Target>>,
    /// Peers that may call; empty: everyone.
    pub allowed: Box<[IpNet]>,
    /// Who picks among them.
    pub scheduler: SchedulerName,
    /// Timeout of ClientIP affinity.
    pub affinity: Option<Duration>,
    /// How endpoints are told who called.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// What may be tried again on another endpoint.
    pub retry: Retry,
}

impl PortalPlan {
    /// Nobody can be served: connections are refused. UDP clients have no
    /// connection but their listener, so it stays open while an endpoint
    /// drains.
    pub fn is_hopeless(&self) -> bool {
        let drains = self.name.port.protocol == Protocol::Udp;
        let hopeless = |targets: &[Target]| targets.iter().all(|t| t.weight == 0 && !drains);
        hopeless(&self.targets) && self.inside.as_deref().is_none_or(hopeless)
    }
}

/// The portals of `port`, where Services that name no scheduler have
/// `default`.
pub fn plan(port: &ServicePort, default: SchedulerName) -> Vec<PortalPlan> {
    let scheduler = preferences::scheduler(port, default).unwrap_or_else(|(instead, _)| instead);
    let frontend = |address| Frontend {
        protocol: port.name.protocol,
        family: port.name.family,
        address: Some(address),
        port: port.port,
    };
    let node_port = port.node_port.map(|number| Frontend {
        protocol: port.name.protocol,
        family: port.name.family,
        address: None,
        port: number,
    });
    let external = port.external_ips.iter().copied().map(frontend);
    let load_balancer = port.load_balancer_ips.iter().copied().map(frontend);
    let groups: [(Kind, Vec<Frontend>, TrafficPolicy, &[IpNet]); 3] = [
        (
            Kind::Internal,
            port.cluster_ip.into_iter().map(frontend).collect(),
            port.internal_traffic_policy,
            &[],
        ),
        (
            Kind::External,
            external.chain(node_port).collect(),
            port.external_traffic_policy,
            &[],
        ),
        (
            Kind::LoadBalancer,
            load_balancer.collect(),
            port.external_traffic_policy,
            &port.load_balancer_source_ranges,
        ),
    ];
    let affinity = match port.session_affinity {
        SessionAffinity::None => None,
        SessionAffinity::ClientIp { timeout } => Some(timeout),
    };
    let own = port
        .addresses()
        .filter(|_| port.node_port == Some(port.port));
    let not_at: Arc<[IpAddr]> = own.chain(port.node_port_excluded()).collect();

    let mut portals: Vec<PortalPlan> = Vec::new();
    for (kind, mut frontends, policy, allowed) in groups {
        // An external IP may be a load-balancer IP, too; in rules the former
        // come first.
        frontends.retain(|frontend| !portals.iter().any(|p| p.frontends.contains(frontend)));
        if frontends.is_empty() {
            continue;
        }
        let reach = |policy| targets(&port.endpoints, policy);
        let targets = reach(policy);
        let inside = match (kind, policy) {
            (Kind::External | Kind::LoadBalancer, TrafficPolicy::Local) => {
                Some(reach(TrafficPolicy::Cluster)).filter(|inside| *inside != targets)
            }
            _ => None,
        };
        match portals
            .iter_mut()
            .find(|p| p.targets == targets && p.inside == inside && *p.allowed == *allowed)
        {
            Some(alike) => alike.frontends.extend(frontends),
            None => portals.push(PortalPlan {
                name: PortalName {
                    port: port.name.clone(),
                    kind,
                },
                cluster_ip: port.cluster_ip,
                not_at: Arc::clone(&not_at),
                frontends,
                targets,
                inside,
                allowed: allowed.into(),
                scheduler,
                affinity,
                proxy_protocol: port.preferences().proxy_protocol,
                retry: port.preferences().retry.unwrap_or_default(),
            }),
        }
    }
    portals
}

fn targets(endpoints: &Endpoints, policy: TrafficPolicy) -> Vec<Target> {
    let reachable = match policy {
        TrafficPolicy::Cluster => &endpoints.cluster,
        TrafficPolicy::Local => &endpoints.local,
    };
    reachable
        .iter()
        .filter_map(|&i| endpoints.all.get(i as usize))
        .map(|e| Target {
            address: e.address,
            weight: e.weight.into(),
        })
        .collect()
}
