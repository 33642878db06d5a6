//! ServicePorts: one port of one Service in one IP family, with everything that a mode needs to
//! forward its traffic.

use std::{fmt, net::IpAddr, num::NonZeroU16, ops::RangeInclusive, sync::Arc, time::Duration};

use ipnet::IpNet;
use net::{Frontend, Protocol};

use super::{
    ServicePortName,
    absence::Missing,
    endpoint::Endpoints,
    extensions::Preferences,
    owners::{AddressKind, Conflict},
};

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceName {
    /// Namespace of the Service.
    pub namespace: Arc<str>,
    /// Name of the Service.
    pub name: Arc<str>,
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// `internalTrafficPolicy` or `externalTrafficPolicy` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Traffic goes to any endpoint of the cluster.
    Cluster,
    /// Traffic goes only to endpoints on this node.
    Local,
}

/// One port of one Service in one IP family, with its endpoints: everything that a mode needs to
/// serve it. Immutable: a change creates a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Identity of the ServicePort.
    pub name: ServicePortName,
    /// The cluster IP of this family; `None` if another ServicePort owns it.
    pub cluster_ip: Option<IpAddr>,
    /// The port on cluster, external and load-balancer IPs, or the first one of a range.
    pub port: u16,
    /// The last port of a range (`tripod.proxy/ports`); `None`: it is no range. Packets to a range
    /// keep their port, so that the addresses of its endpoints have port 0. It has no node port.
    pub last_port: Option<NonZeroU16>,
    /// The port on the node's addresses, except those that are
    /// [excluded](ServicePort::node_port_excluded); `None` if it has no node port.
    pub node_port: Option<u16>,
    /// `spec.externalIPs` of this family, without those that other ServicePorts own. Empty if none
    /// of the source ranges can be parsed: then they are among the load-balancer IPs, and closed.
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress[].ip` of this family whose `ipMode` is VIP,
    /// without those that other ServicePorts own.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// `spec.loadBalancerSourceRanges` of this family; if empty, all clients are allowed.
    pub load_balancer_source_ranges: Box<[IpNet]>,
    /// Timeout of `spec.sessionAffinity`: connections of one client address go to the same endpoint
    /// until the client has made no new one for this long. `None` if each is scheduled on its own.
    pub session_affinity: Option<Duration>,
    /// Policy for traffic to the cluster IP.
    pub internal_traffic_policy: TrafficPolicy,
    /// Policy for traffic to external, load-balancer IPs and node ports.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`, if the external policy is Local; `None` as well if it is a node
    /// port of another Service.
    pub health_check_node_port: Option<u16>,
    /// The most entries of a table of consistent hashing at each of its addresses. A Service may have
    /// thousands of ports and addresses.
    pub most_hash_entries: u32,
    /// The settings of the Service's annotations `tripod.proxy/…`; `None` if it has none.
    /// [`ServicePort::preferences`] reads them.
    pub preferences: Option<Arc<Preferences>>,
    /// The endpoints, and those that a packet may reach.
    pub endpoints: Arc<Endpoints>,
    /// Addresses that its Service names but other ServicePorts own.
    pub conflicts: Box<[Conflict]>,
}

impl ServicePort {
    /// Returns all addresses at which its port is served: cluster, external and load-balancer IPs,
    /// possibly with duplicates.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let named = self.external_ips.iter().chain(&self.load_balancer_ips);
        self.cluster_ip.into_iter().chain(named.copied())
    }

    /// Returns the frontend at which clients call its port, or range of ports, of an address.
    pub fn at(&self, ip: IpAddr) -> Frontend {
        Frontend {
            last_port: self.last_port,
            ..Frontend::service(self.name.protocol, ip, self.port)
        }
    }

    /// Returns all ports at which it is served on cluster, external and load-balancer IPs.
    pub fn ports(&self) -> RangeInclusive<u16> {
        self.port..=self.last_port.map_or(self.port, NonZeroU16::get)
    }

    /// Returns whether it is a range of ports, which is forwarded port for port.
    pub fn is_range(&self) -> bool {
        self.last_port.is_some()
    }

    /// Returns whether its Service has ranges of ports.
    pub fn has_ranges(&self) -> bool {
        self.is_range() || !self.preferences().ports.is_empty()
    }

    /// Returns the frontends at which clients call it: all its [`addresses`](Self::addresses), and
    /// its node port.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        let (protocol, family) = (self.name.protocol, self.name.family);
        let at = move |ip| self.at(ip);
        let node_port = self.node_port;
        let node_port = node_port.map(|port| Frontend::node_port(protocol, family, port));
        self.addresses().map(at).chain(node_port)
    }

    /// Returns whether it can be reached at more than its cluster IP.
    pub fn is_accessible(&self) -> bool {
        self.node_port.is_some()
            || !self.external_ips.is_empty()
            || !self.load_balancer_ips.is_empty()
    }

    /// Returns whether it has a node port or a health-check node port.
    pub fn has_node_port(&self) -> bool {
        self.node_port.or(self.health_check_node_port).is_some()
    }

    /// The addresses of the node at which its node port belongs to another Service, which names
    /// that address as, say, its external IP.
    pub fn node_port_excluded(&self) -> impl Iterator<Item = IpAddr> {
        let conflicts = self.conflicts.iter();
        let lost = conflicts.filter(|lost| lost.kind == AddressKind::NodePort);
        lost.filter_map(|lost| lost.ip)
    }

    /// The requests of the Service under `tripod.proxy/`.
    pub fn preferences(&self) -> &Preferences {
        Preferences::given(&self.preferences)
    }

    /// Returns how many endpoints are in use although they are not ready, because none is.
    pub fn last_ready(&self) -> usize {
        if !self.preferences().keeps_last_ready {
            return 0;
        }
        let all = self.endpoints.all.iter();
        all.filter(|endpoint| endpoint.last_ready).count()
    }

    /// Returns whether its endpoints get no new connections for a while when they do not answer:
    /// because the Service wants it, or they are in use although they are not ready.
    pub fn is_ejecting(&self) -> bool {
        self.may_eject(self.last_ready() > 0)
    }

    /// Returns whether it asks to be relayed, whatever the mode of the node is. SCTP and ranges of
    /// ports are not relayed.
    pub fn is_relayed(&self) -> bool {
        let can_be = self.name.protocol != Protocol::Sctp && !self.is_range();
        can_be && self.preferences().relayed
    }

    /// Returns whether its connections to endpoints that are gone end with a reset.
    pub fn is_resetting(&self) -> bool {
        self.preferences().reset && self.name.protocol == Protocol::Tcp && !self.is_range()
    }

    /// Returns whether its endpoints are all that its EndpointSlices have: not if there are too many,
    /// or if the slices do not have this port at the moment.
    pub fn knows_endpoints(&self) -> bool {
        let absence = self.endpoints.absence.as_deref();
        let lacks_port = absence.is_some_and(|why| matches!(why.missing, Missing::Port { .. }));
        !self.endpoints.are_too_many && !lacks_port
    }

    /// Like [`is_ejecting`](Self::is_ejecting), where some endpoint is in use although it is not
    /// ready, or none is. Over UDP it is not visible whether one answers, and of the ports of a range
    /// none may be in use.
    pub(super) fn may_eject(&self, any_last_ready: bool) -> bool {
        let is_asked = self.preferences().eject || any_last_ready;
        is_asked && self.name.protocol == Protocol::Tcp && !self.is_range()
    }

    /// The name of the scheduler that the Service requests, else `default`. If that is `rr`, which
    /// ignores weights, and endpoints have weights or a slow start, it is `wrr`, which otherwise does
    /// the same. It stays `wrr` while none of those is ready, or they are ejected: IPVS refuses new
    /// connections for a moment when a scheduler changes.
    pub fn scheduler<'a>(&'a self, default: &'a str) -> &'a str {
        let asked = self.preferences();
        if let Some(asked) = &asked.scheduler {
            return asked;
        }
        match default {
            "" | "rr" if self.endpoints.weighed || asked.slow_start.is_some() => "wrr",
            _ => default,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::services::{ServiceMap, service_ports::service_port};

    fn port() -> ServicePort {
        ServicePort {
            node_port: Some(30_000),
            internal_traffic_policy: TrafficPolicy::Local,
            external_traffic_policy: TrafficPolicy::Local,
            endpoints: Arc::new(Endpoints {
                has_any: true,
                ..Endpoints::default()
            }),
            ..service_port("web", [10, 0, 0, 1])
        }
    }

    #[test]
    fn weights_are_followed_where_endpoints_have_some_or_will() {
        let minute = Some(Duration::from_secs(60));
        for (slow_start, weighed, scheduler) in [
            (None, false, "rr"),
            (None, true, "wrr"),
            (minute, false, "wrr"),
        ] {
            let asked = Preferences {
                slow_start,
                ..Preferences::default()
            };
            let endpoints = Endpoints {
                weighed,
                ..Endpoints::default()
            };
            let port = ServicePort {
                preferences: Some(Arc::new(asked)),
                endpoints: Arc::new(endpoints),
                ..port()
            };
            assert_eq!(port.scheduler("rr"), scheduler);
        }
    }

    #[test]
    fn traffic_has_no_endpoints_where_its_policy_is_local_and_they_are_elsewhere() {
        let endpoints = |change: fn(&mut Endpoints)| {
            let mut endpoints = Endpoints {
                has_any: true,
                ..Endpoints::default()
            };
            change(&mut endpoints);
            Arc::new(endpoints)
        };
        let elsewhere = port();
        let here = ServicePort {
            endpoints: endpoints(|e| e.local = Box::new([0])),
            ..port()
        };
        let nowhere = ServicePort {
            endpoints: endpoints(|e| e.has_any = false),
            ..port()
        };
        let internal_cluster = ServicePort {
            internal_traffic_policy: TrafficPolicy::Cluster,
            ..port()
        };
        let external_cluster = ServicePort {
            external_traffic_policy: TrafficPolicy::Cluster,
            ..port()
        };
        let inside_only = ServicePort {
            node_port: None,
            ..port()
        };
        for (port, internal, external) in [
            (elsewhere, 1, 1),
            (here, 0, 0),
            (nowhere, 0, 0),
            (internal_cluster, 0, 1),
            (external_cluster, 1, 0),
            (inside_only, 1, 0),
        ] {
            let map = ServiceMap::from_iter([port]);
            let counts = map.counts().v4;
            let found = (counts.internal_elsewhere, counts.external_elsewhere);
            assert_eq!(found, (internal, external), "{map:?}");
        }
    }
}
