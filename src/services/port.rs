//! What a ServicePort is: one port of one Service in one IP family, with
//! everything that a mode needs to carry its traffic.

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::net::{Family, Protocol};

use super::{
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

/// Identity of a ServicePort. Prints as kube-proxy prints it
/// (`namespace/name:port`, without the colon for an unnamed port).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServicePortName {
    /// The Service that the port belongs to.
    pub service: ServiceName,
    /// Name of the port; empty for a Service's only, unnamed port.
    pub port: Arc<str>,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Family of the addresses.
    pub family: Family,
}

impl fmt::Display for ServicePortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.service)?;
        if !self.port.is_empty() {
            write!(f, ":{}", self.port)?;
        }
        Ok(())
    }
}

/// Whether connections of one client stay on one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionAffinity {
    /// Each connection is scheduled by itself.
    None,
    /// Connections of one client address go to the same endpoint until the
    /// client was silent for `timeout`.
    ClientIp {
        /// Time since the client's last new connection after which it is
        /// scheduled afresh.
        timeout: Duration,
    },
}

/// `internalTrafficPolicy` or `externalTrafficPolicy` of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficPolicy {
    /// Traffic goes to any endpoint of the cluster.
    Cluster,
    /// Traffic goes to endpoints on this node only.
    Local,
}

/// One port of one Service in one IP family, with its endpoints: all that a
/// mode needs to know to carry its traffic. Immutable; a change makes a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Identity of the ServicePort.
    pub name: ServicePortName,
    /// The cluster IP of this family; `None`: another ServicePort owns it.
    pub cluster_ip: Option<IpAddr>,
    /// The port on cluster, external and load-balancer IPs.
    pub port: u16,
    /// The port on the node's addresses, if there is one; not on those that
    /// are [excluded](ServicePort::node_port_excluded).
    pub node_port: Option<u16>,
    /// `spec.externalIPs` of this family, without those that other ServicePorts
    /// own.
    pub external_ips: Box<[IpAddr]>,
    /// `status.loadBalancer.ingress[].ip` of this family whose `ipMode` is VIP,
    /// without those that other ServicePorts own.
    pub load_balancer_ips: Box<[IpAddr]>,
    /// `spec.loadBalancerSourceRanges` of this family; empty: everyone.
    pub load_balancer_source_ranges: Box<[IpNet]>,
    /// `spec.sessionAffinity`, with its timeout.
    pub session_affinity: SessionAffinity,
    /// Policy for traffic to the cluster IP.
    pub internal_traffic_policy: TrafficPolicy,
    /// Policy for traffic to external, load-balancer IPs and node ports.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.healthCheckNodePort`, where the external policy is Local; `None`, too, where
    /// another Service has it as a node port.
    pub health_check_node_port: Option<u16>,
    /// What the Service asks for under `tripod.proxy/`; `None`: nothing.
    /// [`ServicePort::preferences`] reads it.
    pub preferences: Option<Arc<Preferences>>,
    /// The endpoints, and which of them a packet may reach.
    pub endpoints: Arc<Endpoints>,
    /// Addresses that its Service names and other ServicePorts own.
    pub conflicts: Box<[Conflict]>,
}

impl ServicePort {
    /// Returns all addresses on which its port is served: cluster, external and
    /// load-balancer IPs. One may be among them twice.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let named = self.external_ips.iter().chain(&self.load_balancer_ips);
        self.cluster_ip.into_iter().chain(named.copied())
    }

    /// Returns the addresses of the node at which its node port belongs to
    /// another Service, which names that address as, say, its external IP.
    pub fn node_port_excluded(&self) -> impl Iterator<Item = IpAddr> {
        let conflicts = self.conflicts.iter();
        let lost = conflicts.filter(|lost| lost.kind == AddressKind::NodePort);
        lost.filter_map(|lost| lost.ip)
    }

    /// Returns what the Service asks for under `tripod.proxy/`.
    pub fn preferences(&self) -> &Preferences {
        static NONE: Preferences = Preferences::NONE;
        self.preferences.as_deref().unwrap_or(&NONE)
    }

    /// Returns whether its endpoints get no new connections for a while when they do not
    /// answer. Over UDP it does not show whether one does.
    pub fn is_ejecting(&self) -> bool {
        self.preferences().eject == Some(true) && self.name.protocol == Protocol::Tcp
    }

    /// Returns the name of the scheduler that the Service asks for, else
    /// `default`. Where that is `rr`, which ignores weights, and reachable
    /// endpoints have different ones, it is `wrr`, which is the same otherwise.
    pub fn scheduler<'a>(&'a self, default: &'a str) -> &'a str {
        if let Some(asked) = &self.preferences().scheduler {
            return asked;
        }
        match default {
            "" | "rr" if self.endpoints.weigh_differently() => "wrr",
            _ => default,
        }
    }
}
