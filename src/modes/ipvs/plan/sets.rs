//! The sets that ipvs mode's rules match against, with kube-proxy's names
//! (`pkg/proxy/ipvs/ipset.go`, 1.36) and a few of our own.

use std::sync::LazyLock;

use enumset::{EnumSet, EnumSetType};
use ipnet::IpNet;
use ipvs::ipset::{self, Element, Kind, LONGEST_NAME};
use net::{Family, PerFamily, Protocol};

use super::ServerId;
use crate::services::TrafficPolicy;

/// A set; each family has one of each.
#[derive(Debug, EnumSetType, Hash, PartialOrd, Ord)]
pub enum Set {
    /// Endpoints of this node, each with itself as the source: an endpoint that calls
    /// itself through a Service.
    LoopBack,
    /// Cluster IPs and ports.
    ClusterIp,
    /// External IPs whose policy is Cluster.
    ExternalIp,
    /// External IPs whose policy is Local.
    ExternalIpLocal,
    /// Load-balancer IPs and ports of every policy.
    LoadBalancer,
    /// Load-balancer IPs and ports whose policy is Local.
    LoadBalancerLocal,
    /// Load-balancer IPs and ports that have source ranges.
    Firewall,
    /// Sources that may pass: the load balancer's own IP, where the node may.
    SourceIp,
    /// Networks that may pass.
    SourceCidr,
    /// TCP node ports of every policy.
    NodePortTcp,
    /// TCP node ports whose policy is Local.
    NodePortLocalTcp,
    /// UDP node ports of every policy.
    NodePortUdp,
    /// UDP node ports whose policy is Local.
    NodePortLocalUdp,
    /// SCTP node ports of every policy, each with an address of the node: a bitmap
    /// of ports takes no SCTP packets.
    NodePortSctp,
    /// SCTP node ports whose policy is Local, as in the set before.
    NodePortLocalSctp,
    /// TCP ports on which health checks of Services are answered.
    HealthCheckNodePort,
    /// The addresses of the dummy link.
    ServiceIps,
    /// Ours: frontends whose every connection is masqueraded (fullnat).
    FullNat,
    /// Ours: frontends whose connections always keep their source, because endpoints answer by
    /// themselves (dr, tunnel).
    Direct,
    /// Ours: load-balancer IPs whose source ranges leave this node out.
    NotFromNode,
}

/// One member of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The set that it is in.
    pub set: Set,
    /// The family whose set that is.
    pub family: Family,
    /// The element of the kernel's set.
    pub element: Element,
}

impl Set {
    /// All sets, in the order in which they are made.
    pub const ALL: EnumSet<Set> = EnumSet::all();

    /// Returns true if kube-proxy has it too, and makes it even when it stays empty.
    pub fn is_kube_proxys(self) -> bool {
        !matches!(self, Set::FullNat | Set::Direct | Set::NotFromNode)
    }

    fn whole_name(self) -> &'static str {
        match self {
            Set::LoopBack => "KUBE-LOOP-BACK",
            Set::ClusterIp => "KUBE-CLUSTER-IP",
            Set::ExternalIp => "KUBE-EXTERNAL-IP",
            Set::ExternalIpLocal => "KUBE-EXTERNAL-IP-LOCAL",
            Set::LoadBalancer => "KUBE-LOAD-BALANCER",
            Set::LoadBalancerLocal => "KUBE-LOAD-BALANCER-LOCAL",
            Set::Firewall => "KUBE-LOAD-BALANCER-FW",
            Set::SourceIp => "KUBE-LOAD-BALANCER-SOURCE-IP",
            Set::SourceCidr => "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            Set::NodePortTcp => "KUBE-NODE-PORT-TCP",
            Set::NodePortLocalTcp => "KUBE-NODE-PORT-LOCAL-TCP",
            Set::NodePortUdp => "KUBE-NODE-PORT-UDP",
            Set::NodePortLocalUdp => "KUBE-NODE-PORT-LOCAL-UDP",
            Set::NodePortSctp => "KUBE-NODE-PORT-SCTP-HASH",
            Set::NodePortLocalSctp => "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
            Set::HealthCheckNodePort => "KUBE-HEALTH-CHECK-NODE-PORT",
            Set::ServiceIps => "KUBE-IPVS-IPS",
            Set::FullNat => "TRIPOD-FULL-NAT",
            Set::Direct => "TRIPOD-DIRECT",
            Set::NotFromNode => "TRIPOD-NOT-FROM-NODE",
        }
    }

    /// The set's name in `family`; kube-proxy's longer ones are cut to the kernel's limit.
    pub fn name(self, family: Family) -> &'static str {
        static NAMES: LazyLock<PerFamily<Vec<String>>> = LazyLock::new(|| {
            PerFamily::each(|family| {
                let name = |set: Set| match family {
                    Family::V4 => set.whole_name().to_owned(),
                    Family::V6 => set.whole_name().replacen('-', "-6-", 1),
                };
                let cut = |name: String| name.chars().take(LONGEST_NAME).collect();
                Set::ALL.iter().map(name).map(cut).collect()
            })
        });
        &NAMES.get(family)[self as usize]
    }

    /// Returns whether a set of either family has this name.
    pub fn is_name(name: &str) -> bool {
        let mut families = Family::ALL.into_iter();
        families.any(|family| Set::ALL.iter().any(|set| set.name(family) == name))
    }

    /// The kind of its members.
    pub fn kind(self) -> Kind {
        match self {
            Set::LoopBack | Set::SourceIp => Kind::IpPortIp,
            Set::SourceCidr => Kind::IpPortNet,
            Set::NodePortTcp
            | Set::NodePortLocalTcp
            | Set::NodePortUdp
            | Set::NodePortLocalUdp
            | Set::HealthCheckNodePort => Kind::Port,
            Set::ServiceIps => Kind::Ip,
            _ => Kind::IpPort,
        }
    }

    /// The set of `family` with the name and kind that the kernel has for it.
    pub fn kernel_set(self, family: Family) -> ipset::Set {
        ipset::Set::new(self.name(family), self.kind(), family)
    }

    /// Returns how the comments of rules call it, which is as in kube-proxy.
    pub fn comment(self) -> &'static str {
        match self {
            Set::LoopBack => {
                "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"
            }
            Set::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            Set::ExternalIp => {
                "Kubernetes service external ip + port for masquerade and filter purpose"
            }
            Set::ExternalIpLocal => {
                "Kubernetes service external ip + port with externalTrafficPolicy=local"
            }
            Set::LoadBalancer => "Kubernetes service lb portal",
            Set::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            Set::Firewall => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            Set::SourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            Set::SourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            Set::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            Set::NodePortLocalTcp => {
                "Kubernetes nodeport TCP port with externalTrafficPolicy=local"
            }
            Set::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
            Set::NodePortLocalUdp => {
                "Kubernetes nodeport UDP port with externalTrafficPolicy=local"
            }
            Set::NodePortSctp => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            Set::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            Set::HealthCheckNodePort => "Kubernetes health check node port",
            Set::ServiceIps => "addresses of Services",
            Set::FullNat => "Services with forwarding=fullnat",
            Set::Direct => "Services with forwarding=dr or tunnel",
            Set::NotFromNode => "load balancer ip + port whose source ranges leave this node out",
        }
    }

    /// The set of node ports of that protocol: every one for Cluster, those of policy Local for
    /// Local.
    pub(super) fn node_ports(protocol: Protocol, policy: TrafficPolicy) -> Set {
        match (protocol, policy) {
            (Protocol::Tcp, TrafficPolicy::Cluster) => Set::NodePortTcp,
            (Protocol::Tcp, TrafficPolicy::Local) => Set::NodePortLocalTcp,
            (Protocol::Udp, TrafficPolicy::Cluster) => Set::NodePortUdp,
            (Protocol::Udp, TrafficPolicy::Local) => Set::NodePortLocalUdp,
            (Protocol::Sctp, TrafficPolicy::Cluster) => Set::NodePortSctp,
            (Protocol::Sctp, TrafficPolicy::Local) => Set::NodePortLocalSctp,
        }
    }

    /// The protocol of its members if they are ports alone; `None` if each names its own.
    pub(super) fn protocol_of_ports(self) -> Option<Protocol> {
        match self {
            Set::NodePortTcp | Set::NodePortLocalTcp => Some(Protocol::Tcp),
            Set::NodePortUdp | Set::NodePortLocalUdp => Some(Protocol::Udp),
            _ => None,
        }
    }

    /// Returns true if its members keep a source address from being masqueraded.
    pub fn spares_source(self) -> bool {
        matches!(
            self,
            Set::LoadBalancerLocal
                | Set::NodePortLocalTcp
                | Set::NodePortLocalUdp
                | Set::NodePortLocalSctp
                | Set::Direct
        )
    }

    /// Returns true if its members let a caller through the firewall of source
    /// ranges.
    pub fn admits(self) -> bool {
        matches!(self, Set::SourceIp | Set::SourceCidr)
    }
}

impl Member {
    /// Returns true if it says something about calls to `frontend`. A node port is one at
    /// any address.
    pub fn is_about(&self, frontend: &ServerId) -> bool {
        match self.element {
            Element::Port(port) => {
                frontend.address.port() == port
                    && self.set.protocol_of_ports() == Some(frontend.protocol)
            }
            _ => self.frontend() == Some(*frontend),
        }
    }

    /// Returns the frontend that it names; `None` where it names none, or one of a
    /// protocol that no Service can have.
    pub fn frontend(&self) -> Option<ServerId> {
        match self.element {
            Element::IpPort { ip, protocol, port }
            | Element::IpPortIp {
                ip, protocol, port, ..
            }
            | Element::IpPortNet {
                ip, protocol, port, ..
            } => {
                let protocol = Protocol::from_number(protocol)?;
                Some(ServerId::new((ip, port), protocol))
            }
            Element::Ip(_) | Element::Port(_) => None,
        }
    }
}

/// Returns `range` as networks that a `hash:net` type takes: it knows no prefix of
/// length 0 (`ip_set_hash_ipportnet.c`), so everything becomes two halves.
pub(super) fn storable(range: IpNet) -> impl Iterator<Item = IpNet> {
    let halves = (range.prefix_len() == 0)
        .then(|| range.subnets(1).ok())
        .flatten();
    let whole = halves.is_none().then_some(range);
    halves.into_iter().flatten().chain(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_are_distinct() {
        let mut names: Vec<&str> = Set::ALL
            .into_iter()
            .flat_map(|set| [set.name(Family::V4), set.name(Family::V6)])
            .collect();
        assert!(names.contains(&"KUBE-6-LOAD-BALANCER-SOURCE-CID"));
        assert!(names.contains(&"KUBE-6-NODE-PORT-LOCAL-SCTP-HAS"));
        assert!(names.iter().all(|name| name.len() <= LONGEST_NAME));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 2 * Set::ALL.len());
    }

    #[test]
    fn everything_is_two_halves() {
        let split = |text: &str| -> Vec<String> {
            let range = text.parse().unwrap();
            storable(range).map(|net| net.to_string()).collect()
        };
        assert_eq!(split("0.0.0.0/0"), ["0.0.0.0/1", "128.0.0.0/1"]);
        assert_eq!(split("::/0"), ["::/1", "8000::/1"]);
        assert_eq!(split("10.0.0.0/8"), ["10.0.0.0/8"]);
    }
}
