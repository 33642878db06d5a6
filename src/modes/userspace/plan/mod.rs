//! Plans the service groups that serve a ServicePort: pure.

pub mod listen;
mod preferences;

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use hashbrown::HashSet;
use ipnet::IpNet;
use net::{Frontend, Protocol};

pub use self::preferences::{scheduler, unsupported};
use crate::{
    sched::SchedulerName,
    services::{
        Endpoints, ProxyProtocol, Retry, ServicePort, ServicePortName, SessionAffinity,
        TrafficPolicy,
    },
};

/// Which of a ServicePort's addresses a service group stands for. Addresses that
/// are treated alike share the group of the first kind that has them.
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

    /// Returns the name by which the holder of sockets knows it.
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
    /// The ServicePort that the group belongs to.
    pub port: ServicePortName,
    /// Its addresses of this kind, and those treated alike.
    pub kind: GroupKind,
}

impl GroupName {
    /// Returns the name of that group of `port`.
    pub fn of(port: &ServicePortName, kind: GroupKind) -> GroupName {
        let port = port.clone();
        GroupName { port, kind }
    }

    /// Returns what the holder of sockets knows it by; the sockets have its protocol and
    /// IP family. A later version has to find the sockets of an earlier one by it.
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

/// What a service group should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupPlan {
    /// The name that the group is known by.
    pub name: GroupName,
    /// The ServicePort's cluster IP; `None`: another ServicePort owns it.
    pub cluster_ip: Option<IpAddr>,
    /// The addresses that clients call.
    pub frontends: Vec<Frontend>,
    /// The node's addresses on which the node port is not served, because a
    /// frontend of this or another ServicePort has the same port there.
    pub not_at: Arc<[IpAddr]>,
    /// The endpoints that new flows may reach.
    pub targets: Vec<Target>,
    /// The endpoints that cluster-local clients may reach; `None`: the same as for other clients.
    pub cluster_local: Option<Vec<Target>>,
    /// Other endpoints, which keep the UDP flows that they have: they serve, but policies, topology
    /// or their termination exclude them from new ones. For TCP none are named, as its connections
    /// go on in any case.
    pub keep_flows: Box<[SocketAddr]>,
    /// Peers that may call; empty: everyone.
    pub allowed: Box<[IpNet]>,
    /// Scheduler that chooses among the endpoints.
    pub scheduler: SchedulerName,
    /// Timeout of ClientIP affinity; `None`: there is no session affinity.
    pub affinity: Option<Duration>,
    /// Version of the PROXY protocol header that names the client to endpoints; `None`: none is
    /// sent.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// What may be tried again on another endpoint.
    pub retry: Retry,
    /// How many connections its Service asks to have at most.
    pub limits: AskedLimits,
}

/// How many connections a Service asks to have at most (`tripod.proxy/max-connections`,
/// `tripod.proxy/max-connections-per-client`); `None`: it asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedLimits {
    /// Those of all clients together.
    pub service: Option<NonZeroU32>,
    /// Those of each client.
    pub client: Option<NonZeroU32>,
}

impl GroupPlan {
    /// Returns whether no client can be served: connections are refused. UDP
    /// clients have no connection but their listener, so it stays open while an
    /// endpoint drains.
    pub fn has_no_endpoints(&self) -> bool {
        let drains = self.name.port.protocol == Protocol::Udp;
        let none = |targets: &[Target]| targets.iter().all(|t| t.weight == 0 && !drains);
        none(&self.targets) && self.cluster_local.as_deref().is_none_or(none)
    }
}

#[cfg(test)]
impl GroupPlan {
    /// Returns the group of the cluster IP of the ServicePort `name`, TCP, from `frontends`
    /// to `targets`.
    pub fn of_cluster_ip(name: &str, frontends: &[Frontend], targets: Vec<Target>) -> GroupPlan {
        let port = crate::services::service_ports::service_port(name, [10, 96, 0, 1]);
        let candidate = Candidate {
            kind: GroupKind::Internal,
            frontends: frontends.to_vec(),
            policy: TrafficPolicy::Cluster,
            allowed: &[],
        };
        group(&port, SchedulerName::Rr, candidate, targets)
    }
}

/// Addresses that may become a service group.
struct Candidate<'a> {
    kind: GroupKind,
    frontends: Vec<Frontend>,
    policy: TrafficPolicy,
    allowed: &'a [IpNet],
}

/// Returns the service groups of `port`, where Services that name no scheduler
/// have `default`.
pub fn plan(port: &ServicePort, default: SchedulerName) -> Vec<GroupPlan> {
    let own = port
        .addresses()
        .filter(|_| port.node_port == Some(port.port));
    let not_at: Arc<[IpAddr]> = own.chain(port.node_port_excluded()).collect();

    let mut groups: Vec<GroupPlan> = Vec::new();
    for mut candidate in candidates(port) {
        // An external IP may be a load-balancer IP, too; in rules, external IPs come
        // first.
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

/// Returns the service group of the node port of `port` alone, for addresses that
/// only this node itself calls; `None`: it has no node port over TCP. With an external
/// policy of Local it has the endpoints on this node alone (KEP-6032).
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

/// Returns the service group of `candidate`, with `targets` for every caller.
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
        affinity: match port.session_affinity {
            SessionAffinity::None => None,
            SessionAffinity::ClientIp { timeout } => Some(timeout),
        },
        proxy_protocol: port.preferences().proxy_protocol,
        retry: port.preferences().retry.unwrap_or_default(),
        limits: AskedLimits {
            service: port.preferences().max_connections,
            client: port.preferences().max_connections_per_client,
        },
    }
}

/// Returns the addresses of `port` by kind, in the order in which they take what
/// more than one kind has.
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

/// Returns the endpoints that cluster-local clients of `candidate` may reach, if they
/// differ from `targets`: they take the short way to every endpoint, whatever
/// `externalTrafficPolicy` says.
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

/// Returns the endpoints of `port`, other than `targets` and those for cluster-local clients, to
/// which existing UDP flows go on: as with kube-proxy, which deletes the conntrack entries of an
/// endpoint when it does not serve (`CleanStaleEntries` in pkg/proxy/conntrack/cleanup.go).
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
            weight: e.weight.into(),
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
