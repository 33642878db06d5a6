//! Options that the rules and elements of all ServicePorts depend on.

use std::net::IpAddr;

use enumset::EnumSet;
use ipnet::IpNet;
use net::{Family, Protocol};

use crate::{
    config::{Effective, KubeProxyConfiguration, NodePortAddresses},
    kernel::probe::{Ability, Kernel, NftPart},
    modes::detect_local::DetectLocal,
    node::Served,
    services::{Namespaces, ServiceMap},
};

/// Input of rules and elements apart from the ServicePorts themselves. A difference in any field
/// changes the whole table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The family of the table.
    pub family: Family,
    /// How traffic of this node's pods is distinguished from other traffic.
    pub detect_local: DetectLocal,
    /// This node's own address in this family, which may call a load balancer whose source ranges
    /// contain it; `None`: it is not known.
    pub node_ip: Option<IpAddr>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bit of the packet mark that asks for SNAT.
    pub masquerade_mark: u32,
    /// Networks whose addresses serve node ports, disjoint; `None`: all do.
    pub node_ports: Option<Vec<IpNet>>,
    /// Networks that cluster IPs are allocated from, disjoint.
    pub service_cidrs: Vec<IpNet>,
    /// The kernel finds no packet outside a TCP window invalid
    /// (`nf_conntrack_tcp_be_liberal`).
    pub tcp_be_liberal: bool,
    /// Namespaces whose Services are counted.
    pub counted: Namespaces,
    /// Expressions of this kernel that rules may use.
    pub features: Features,
    /// Addresses of the node in this family, as far as its Node says. Only for
    /// kernels that lack `fib`.
    pub node_addresses: Vec<IpAddr>,
    /// Protocols whose node ports are refused on loopback addresses.
    pub refused_on_loopback: Vec<Protocol>,
    /// Whether packets to some service addresses are delivered to sockets of this node.
    pub delivers: bool,
}

/// Parts of nf_tables that rules may use. Some missing parts have a substitute:
///
/// | missing | instead |
/// |---|---|
/// | [`NftPart::Numgen`] | endpoints are chosen by the client's port |
/// | [`NftPart::Hash`] | endpoints are not chosen by hashes of packets |
/// | [`NftPart::Fib`] | the Node says which addresses are the node's |
/// | [`NftPart::Reject`] | packets are dropped, except to node ports on loopback addresses |
/// | [`NftPart::DynamicMaps`] | a hash of the client's address stands for affinity |
/// | [`NftPart::Counters`] | nothing is counted |
/// | [`NftPart::ConnectionCounts`] | connections have no limits |
pub type Features = EnumSet<NftPart>;

/// The features that rules of `family` may use on a kernel.
pub fn features(kernel: &Kernel, family: Family) -> Features {
    let parts = EnumSet::all().into_iter();
    let works = |part: &NftPart| kernel.can(&Ability::Nftables(family, *part));
    parts.filter(works).collect()
}

impl Options {
    /// Derives the options from the configuration, and from the objects of `map` that are no
    /// Services. `served` are the addresses of node ports that follow from both; Services of the
    /// namespaces `counted` are counted.
    pub fn new(
        configuration: &KubeProxyConfiguration,
        configured: &Effective,
        family: Family,
        map: &ServiceMap,
        served: &Served,
        counted: &Namespaces,
        features: Features,
    ) -> Options {
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let is_of_family = |network: &IpNet| of_family(&network.addr());
        let node = map.this_node();
        let networks = map.service_networks().iter().copied();
        let addresses = node.map(|node| &*node.addresses).unwrap_or_default();
        let mut addresses: Vec<IpAddr> = addresses.iter().copied().filter(of_family).collect();
        let first = addresses.first().copied();
        addresses.sort_unstable();
        addresses.dedup();
        if features.contains(NftPart::Fib) {
            // The kernel knows the node's addresses.
            addresses.clear();
        }
        Options {
            family,
            detect_local: DetectLocal::new(&configured.detect_local, family, node),
            node_ip: configured.node_ip.filter(of_family).or(first),
            masquerade_all: configuration.masquerade_all,
            masquerade_mark: 1 << configured.masquerade_bit,
            node_ports: node_ports(served, family),
            service_cidrs: networks.filter(is_of_family).collect(),
            tcp_be_liberal: configuration.conntrack.tcp_be_liberal,
            counted: if features.contains(NftPart::Counters) {
                counted.clone()
            } else {
                Namespaces::default()
            },
            features,
            node_addresses: addresses,
            // Dropping packets would be worse than the kernel's behaviour without a rule.
            refused_on_loopback: if features.contains(NftPart::Reject) {
                refused_on_loopback(&configured.node_ports, family)
            } else {
                Vec::new()
            },
            delivers: map.lacks_relayed(),
        }
    }
}

/// Returns the protocols whose node ports are refused on loopback addresses of `family`, as in
/// kube-proxy 1.37 (KEP-6032): those that are not relayed there, if the addresses or the feature
/// gate are named.
pub fn refused_on_loopback(configured: &NodePortAddresses, family: Family) -> Vec<Protocol> {
    if configured.not_relayed {
        return Vec::new();
    }
    let relayed = configured.relayed();
    let relays_tcp = relayed.iter().any(|ip| Family::of(ip) == family);
    let is_refused = |protocol: &Protocol| match relays_tcp {
        true => *protocol != Protocol::Tcp,
        false => configured.refused_unnamed,
    };
    Protocol::ALL.into_iter().filter(is_refused).collect()
}

/// The networks in which node ports of one family are served; `None`: all. A set of ranges takes
/// none that overlap.
fn node_ports(served: &Served, family: Family) -> Option<Vec<IpNet>> {
    let Served::Within(networks) = served.of(family) else {
        return None;
    };
    let networks = IpNet::aggregate(&networks);
    let all = networks.iter().any(|network| network.prefix_len() == 0);
    (!all).then_some(networks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::Protocol::{Sctp, Tcp, Udp};

    #[test]
    fn what_is_not_relayed_is_refused_on_loopback() {
        type Refused<'a> = &'a [Protocol];
        let all: Refused = &[Tcp, Udp, Sctp];
        // The networks, the feature gate if it is named, and the refused protocols of each family.
        let cases: [(&str, Option<bool>, Refused, Refused); 7] = [
            ("", None, &[], &[]),
            ("", Some(true), all, all),
            ("0.0.0.0/0,::/0", Some(true), all, all),
            ("127.0.0.0/8,::1/128", None, &[Udp, Sctp], &[Udp, Sctp]),
            ("127.0.0.1/32", None, &[Udp, Sctp], &[]),
            ("127.0.0.1/32", Some(true), &[Udp, Sctp], all),
            ("127.0.0.0/8,::1/128", Some(false), &[], &[]),
        ];
        for (networks, gate, v4, v6) in cases {
            let texts = networks.split(',').filter(|text| !text.is_empty());
            let configured = NodePortAddresses {
                networks: texts.map(|text| text.parse().unwrap()).collect(),
                not_relayed: gate == Some(false),
                refused_unnamed: gate == Some(true),
                ..NodePortAddresses::default()
            };
            let found = Family::ALL.map(|family| refused_on_loopback(&configured, family));
            assert_eq!(found, [v4, v6], "{networks}, {gate:?}");
        }
    }
}
