//! What the rules and elements of all ServicePorts depend on.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{
    config::{Effective, KubeProxyConfiguration},
    modes::detect_local::DetectLocal,
    net::Family,
    node::Served,
    services::Node,
};

/// 127.0.0.0/8 (RFC 1122, section 3.2.1.3).
const LOOPBACK_V4: IpNet = IpNet::V4(Ipv4Net::new_assert(
    std::net::Ipv4Addr::new(127, 0, 0, 0),
    8,
));
/// ::1 (RFC 4291, section 2.5.3).
const LOOPBACK_V6: IpNet = IpNet::V6(Ipv6Net::new_assert(std::net::Ipv6Addr::LOCALHOST, 128));

/// What rules and elements depend on beside the ServicePorts themselves. Whatever
/// differs here makes the whole table a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The family of the table.
    pub family: Family,
    /// How traffic of this node's pods is told from other traffic.
    pub detect_local: DetectLocal,
    /// This node's own address in this family: who may call a load balancer
    /// within the node's source range.
    pub node_ip: Option<IpAddr>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bit of the packet mark that asks for SNAT.
    pub masquerade_mark: u32,
    /// Networks whose addresses serve node ports, disjoint; `None`: all do.
    pub node_ports: Option<Vec<IpNet>>,
    /// The kernel finds no packet outside a TCP window invalid
    /// (`nf_conntrack_tcp_be_liberal`).
    pub tcp_be_liberal: bool,
}

impl Options {
    /// What the configuration says. `node` is this node's object, `served` the
    /// addresses of node ports that follow from both.
    pub fn new(
        configuration: &KubeProxyConfiguration,
        configured: &Effective,
        family: Family,
        node: Option<&Node>,
        served: &Served,
    ) -> Options {
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let addresses = node.map(|node| &*node.addresses).unwrap_or_default();
        let first = addresses.iter().copied().find(of_family);
        Options {
            family,
            detect_local: DetectLocal::new(&configured.detect_local, family, node),
            node_ip: configured.node_ip.filter(of_family).or(first),
            masquerade_all: configured.masquerade_all,
            masquerade_mark: 1 << configured.masquerade_bit,
            node_ports: node_ports(served, family),
            tcp_be_liberal: configuration.conntrack.tcp_be_liberal,
        }
    }

    /// Where nothing is configured.
    #[cfg(test)]
    pub(in crate::modes::nftables) fn usual(family: Family) -> Options {
        Options {
            family,
            detect_local: DetectLocal::Unknown,
            node_ip: None,
            masquerade_all: false,
            masquerade_mark: 0x4000,
            node_ports: None,
            tcp_be_liberal: false,
        }
    }

    /// The family's loopback addresses.
    pub(super) fn loopback(&self) -> IpNet {
        match self.family {
            Family::V4 => LOOPBACK_V4,
            Family::V6 => LOOPBACK_V6,
        }
    }
}

/// What is served of one family. A set of ranges takes none that overlap.
fn node_ports(served: &Served, family: Family) -> Option<Vec<IpNet>> {
    let Served::Within(networks) = served else {
        return None;
    };
    let networks = networks.iter().copied();
    let networks = networks.filter(|network| Family::of(&network.addr()) == family);
    let networks = IpNet::aggregate(&networks.collect());
    let all = networks.iter().any(|network| network.prefix_len() == 0);
    (!all).then_some(networks)
}
