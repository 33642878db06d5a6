//! Plans the service groups that serve a ServicePort: pure.

pub mod listen;
mod preferences;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashSet;
use ipnet::IpNet;
use net::{Frontend, Protocol};

pub use self::preferences::{scheduler, unsupported};
use crate::{
    sched::SchedulerName,
    services::{Endpoints, Preferences, ServicePort, ServicePortName, TrafficPolicy},
};

/// The addresses of a ServicePort for which a service group exists. Addresses that are treated
/// alike share the group of the first kind to which they belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GroupKind {
    /// The cluster IP: internal traffic policy.
    Internal,
    /// External IPs and the node port: external traffic policy.
    External,
    /// Load-balancer IPs: external traffic policy and source ranges.
    LoadBalancer,
}

impl GroupKind {
    /// All kinds of service groups.
    pub const ALL: [GroupKind; 3] = [
        GroupKind::Internal,
        GroupKind::External,
        GroupKind::LoadBalancer,
    ];

    /// Name by which the holder of sockets knows the kind.
    fn name(self) -> &'static str {
        match self {
            GroupKind::Internal => "internal",
            GroupKind::External => "external",
            GroupKind::LoadBalancer => "load-balancer",
        }
    }
}

/// Identity of a service group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName {
    /// The ServicePort to which the group belongs.
    pub port: ServicePortName,
    /// Its addresses of this kind, and those treated alike.
    pub kind: GroupKind,
}

impl GroupName {
    pub fn of(port: &ServicePortName, kind: GroupKind) -> GroupName {
        let port = port.clone();
        GroupName { port, kind }
    }

    /// Label by which the holder of sockets knows the group; protocol and IP family are those of
    /// the sockets. It must not change: a later version has to find the sockets of an earlier one
    /// by it.
    pub fn label(&self) -> Arc<str> {
        format!("{} {}", self.kind.name(), self.port).into()
    }
}

/// An endpoint that new flows of a service group may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// IP address and port of the endpoint.
    pub address: SocketAddr,
    /// Its weight; 0 takes no new connections.
    pub weight: u32,
}

/// Desired state of a service group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    pub name: GroupName,
    /// The ServicePort's cluster IP; `None` if another ServicePort owns it.
    pub cluster_ip: Option<IpAddr>,
    /// The addresses that clients call.
    pub frontends: Vec<Frontend>,
    /// The node's addresses on which the node port is not served, because a frontend of this or
    /// another ServicePort uses the same port there.
    pub not_at: Arc<[IpAddr]>,
    /// The endpoints that new flows may reach.
    pub targets: Vec<Target>,
    /// The endpoints that cluster-local clients may reach; `None` if they are the same as for other
    /// clients.
    pub cluster_local: Option<Vec<Target>>,
    /// Other endpoints, which keep their UDP flows: they serve, but policies, topology or their
    /// termination exclude them from new ones. Empty for TCP, whose connections continue in any
    /// case.
    pub keep_flows: Box<[SocketAddr]>,
    /// Networks of peers that may call; empty if everyone may.
    pub allowed: Box<[IpNet]>,
    /// Scheduler that chooses among the endpoints.
    pub scheduler: SchedulerName,
    /// Timeout of ClientIP affinity; `None` if there is no session affinity.
    pub affinity: Option<Duration>,
    /// What the Service requests beyond the API: the PROXY protocol, what is tried again, and limits
    /// of connections.
    pub preferences: Option<Arc<Preferences>>,
    /// The addresses of all endpoints, if connections to one that leaves end with a reset; `None` if
    /// they do not.
    pub present: Option<Arc<HashSet<IpAddr>>>,
}

impl GroupPlan {
    /// Returns whether no client can be served, so that connections are refused. UDP clients have
    /// no connection other than their listener, so it stays open while an endpoint drains.
    pub fn has_no_endpoints(&self) -> bool {
        let drains = self.name.port.protocol == Protocol::Udp;
        let none = |targets: &[Target]| targets.iter().all(|t| t.weight == 0 && !drains);
        none(&self.targets) && self.cluster_local.as_deref().is_none_or(none)
    }
}

/// Addresses that may get a service group.
struct Candidate<'a> {
    kind: GroupKind,
    frontends: Vec<Frontend>,
    policy: TrafficPolicy,
    allowed: &'a [IpNet],
}

/// The service groups of `port`, of which a range of ports has none; `default` is the scheduler of
/// Services that name none.
pub fn plan(port: &ServicePort, default: SchedulerName) -> Vec<GroupPlan> {
    if port.is_range() {
        return Vec::new();
    }
    let own = port
        .addresses()
        .filter(|_| port.node_port == Some(port.port));
    let not_at: Arc<[IpAddr]> = own.chain(port.node_port_excluded()).collect();

    let mut groups: Vec<GroupPlan> = Vec::new();
    for mut candidate in candidates(port) {
        // An external IP may also be a load-balancer IP; in rules, external IPs come first.
        let known = |frontend: &Frontend| groups.iter().any(|g| g.frontends.contains(frontend));
        candidate.frontends.retain(|frontend| !known(frontend));
        if candidate.frontends.is_empty() {
            continue;
        }
        let targets = targets(&port.endpoints, candidate.policy);
        let cluster_local = cluster_local(port, &candidate, &targets);
        let keep_flows = keep_flows(port, &targets, cluster_local.as_deref());
        let alike = groups.iter_mut().find(|group| {
            group.targets == targets
                && group.cluster_local == cluster_local
                && *group.allowed == *candidate.allowed
        });
        match alike {
            Some(alike) => alike.frontends.extend(candidate.frontends),
            None => groups.push(GroupPlan {
                not_at: Arc::clone(&not_at),
                cluster_local,
                keep_flows,
                ..group(port, default, candidate, targets)
            }),
        }
    }
    groups
}

/// The service group of the node port of `port` alone, for addresses that only this node calls;
/// `None` if it has no TCP node port. With the external policy Local it only has the endpoints on
/// this node (KEP-6032).
pub fn node_port(port: &ServicePort, default: SchedulerName) -> Option<GroupPlan> {
    let is_tcp = port.name.protocol == Protocol::Tcp;
    let number = port.node_port.filter(|_| is_tcp)?;
    let candidate = Candidate {
        kind: GroupKind::External,
        frontends: vec![Frontend::node_port(Protocol::Tcp, port.name.family, number)],
        policy: port.external_traffic_policy,
        allowed: &[],
    };
    let targets = targets(&port.endpoints, candidate.policy);
    Some(group(port, default, candidate, targets))
}

/// The service group of `candidate`, with `targets` for every caller.
fn group(
    port: &ServicePort,
    default: SchedulerName,
    candidate: Candidate<'_>,
    targets: Vec<Target>,
) -> GroupPlan {
    GroupPlan {
        name: GroupName::of(&port.name, candidate.kind),
        cluster_ip: port.cluster_ip,
        frontends: candidate.frontends,
        not_at: [].into(),
        targets,
        cluster_local: None,
        keep_flows: Box::default(),
        allowed: candidate.allowed.into(),
        scheduler: scheduler(port, default).unwrap_or_else(|used| used.instead),
        affinity: port.session_affinity,
        preferences: port.preferences.clone(),
        present: (port.is_resetting() && port.knows_endpoints()).then(|| {
            let all = port.endpoints.all.iter();
            Arc::new(all.map(|endpoint| endpoint.address.ip()).collect())
        }),
    }
}

/// The addresses of `port` by kind. An address of several kinds belongs to the first in this order.
fn candidates(port: &ServicePort) -> [Candidate<'_>; 3] {
    let (protocol, family) = (port.name.protocol, port.name.family);
    let service = |ip: &IpAddr| Frontend::service(protocol, *ip, port.port);
    let node_port = port.node_port;
    let node_port = node_port.map(|number| Frontend::node_port(protocol, family, number));
    let external = port.external_ips.iter().map(service).chain(node_port);
    [
        Candidate {
            kind: GroupKind::Internal,
            frontends: port.cluster_ip.iter().map(service).collect(),
            policy: port.internal_traffic_policy,
            allowed: &[],
        },
        Candidate {
            kind: GroupKind::External,
            frontends: external.collect(),
            policy: port.external_traffic_policy,
            allowed: &[],
        },
        Candidate {
            kind: GroupKind::LoadBalancer,
            frontends: port.load_balancer_ips.iter().map(service).collect(),
            policy: port.external_traffic_policy,
            allowed: &port.load_balancer_source_ranges,
        },
    ]
}

/// The endpoints that cluster-local clients of `candidate` may reach, if they differ from
/// `targets`: these clients reach every endpoint directly, whatever `externalTrafficPolicy` says.
fn cluster_local(
    port: &ServicePort,
    candidate: &Candidate<'_>,
    targets: &[Target],
) -> Option<Vec<Target>> {
    match (candidate.kind, candidate.policy) {
        (GroupKind::External | GroupKind::LoadBalancer, TrafficPolicy::Local) => {
            let all = self::targets(&port.endpoints, TrafficPolicy::Cluster);
            Some(all).filter(|all| *all != targets)
        }
        _ => None,
    }
}

/// The endpoints of `port`, other than `targets` and those for cluster-local clients, to which
/// existing UDP flows continue: as with kube-proxy, which deletes the conntrack entries of an
/// endpoint when it stops serving (`CleanStaleEntries` in pkg/proxy/conntrack/cleanup.go).
fn keep_flows(
    port: &ServicePort,
    targets: &[Target],
    cluster_local: Option<&[Target]>,
) -> Box<[SocketAddr]> {
    let all = &port.endpoints.all;
    if port.name.protocol != Protocol::Udp || targets.len() == all.len() {
        return Box::default();
    }
    let targets = targets.iter().chain(cluster_local.into_iter().flatten());
    let reached: HashSet<SocketAddr> = targets.map(|target| target.address).collect();
    let keeping = all.iter().filter(|endpoint| endpoint.may_have_flows());
    let others = keeping.filter(|endpoint| !reached.contains(&endpoint.address));
    others.map(|endpoint| endpoint.address).collect()
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
            weight: e.share(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{
        Endpoint,
        service_ports::{endpoint, port_name, service_port},
    };

    impl GroupPlan {
        /// A group for the cluster IP of the TCP ServicePort `name`, with these `frontends` and
        /// `targets`.
        pub fn of_cluster_ip(
            name: &str,
            frontends: &[Frontend],
            targets: Vec<Target>,
        ) -> GroupPlan {
            let port = service_port(name, [10, 96, 0, 1]);
            let candidate = Candidate {
                kind: GroupKind::Internal,
                frontends: frontends.to_vec(),
                policy: TrafficPolicy::Cluster,
                allowed: &[],
            };
            group(&port, SchedulerName::Rr, candidate, targets)
        }
    }

    #[test]
    fn udp_flows_go_on_to_each_endpoint_that_serves() {
        let at = |number: u8| SocketAddr::from(([10, 1, 0, number], 53));
        let here = Endpoint {
            local: true,
            ..endpoint(at(1))
        };
        let terminating = Endpoint {
            ready: false,
            terminating: true,
            ..endpoint(at(3))
        };
        let gone = Endpoint {
            serving: false,
            ready: false,
            ..endpoint(at(4))
        };
        let endpoints = Endpoints {
            all: [here, endpoint(at(2)), terminating, gone].into(),
            cluster: [0, 1].into(),
            local: [0].into(),
            all_reachable: [0, 1].into(),
            has_any: true,
            ..Endpoints::default()
        };
        let kept = |protocol, policy| {
            let port = ServicePort {
                name: port_name("dns").over(protocol),
                internal_traffic_policy: policy,
                endpoints: Arc::new(endpoints.clone()),
                ..service_port("dns", [10, 96, 0, 10])
            };
            let mut plans = plan(&port, SchedulerName::Rr);
            plans.pop().expect("a group").keep_flows.into_vec()
        };
        let [udp, tcp] = [Protocol::Udp, Protocol::Tcp];
        assert_eq!(kept(udp, TrafficPolicy::Cluster), [at(3)]);
        assert_eq!(kept(udp, TrafficPolicy::Local), [at(2), at(3)]);
        assert_eq!(kept(tcp, TrafficPolicy::Local), []);
    }
}
