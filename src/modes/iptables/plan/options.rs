//! Options that the rules of all ServicePorts depend on.

use std::net::IpAddr;

use ipnet::IpNet;
use net::Family;
use xtables::{
    extension::Extension,
    features::Features,
    rule::{Match, Negatable, Rule, Side},
};

use crate::{
    config::{Effective, KubeProxyConfiguration},
    modes::detect_local::DetectLocal,
    node::Served,
    services::Node,
};

/// Input of plans apart from the ServicePorts themselves. A difference in any field changes every
/// plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// iptables or ip6tables.
    pub family: Family,
    /// How traffic of this node's pods is distinguished from other traffic.
    pub detect_local: DetectLocal,
    /// This node's own address in this family, which may call a load balancer whose source ranges
    /// contain it; `None`: it is not known.
    pub node_ip: Option<IpAddr>,
    /// Addresses of the node in this family, as far as its Node says.
    pub node_addresses: Vec<IpAddr>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bits of the packet mark that ask for SNAT.
    pub masquerade_mark: u32,
    /// Which of the node's addresses serve node ports.
    pub node_ports: Served,
    /// Whether they are served on loopback, too; see [`Options::serves_localhost`].
    pub localhost_node_ports: bool,
    /// The kernel finds no packet outside a TCP window invalid
    /// (`nf_conntrack_tcp_be_liberal`): as configured, until the mode reads the
    /// kernel's setting.
    pub tcp_be_liberal: bool,
    /// Matches and targets of this kernel that rules may use.
    pub features: Features,
    /// Whether there are so many endpoints that most comments are left out; see
    /// [`is_large_cluster`].
    pub large_cluster: bool,
    /// How packets find their ServicePort.
    pub dispatch: Dispatch,
    /// Number of endpoints up to which one chain chooses among all of them; above, it chooses
    /// one of their parts.
    pub undivided: usize,
}

/// How packets find their ServicePort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dispatch {
    /// One rule after the other, as kube-proxy has it.
    Linear,
    /// Through chains by address prefix and port range, so that the last of
    /// many ServicePorts is found almost as soon as the first.
    Indexed,
}

/// Values of `--iptables-dispatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DispatchChoice {
    /// Linear for few ServicePorts, indexed for many.
    #[default]
    Auto,
    /// Linear, however many there are.
    Linear,
    /// Indexed, however few there are.
    Indexed,
}

/// ServicePorts of a family above which `auto` means indexed.
const MANY: usize = 1000;
/// Usual value of [`Options::undivided`]: iptables-nft-restore takes about 50 ms for a chain of so
/// many rules, and a time that grows with the square of their number.
pub const UNDIVIDED: usize = 1024;
/// Endpoints of a family above which comments cost too much: kube-proxy's
/// `largeClusterEndpointsThreshold`.
const LARGE: usize = 1000;

impl DispatchChoice {
    /// Chooses the dispatch for that number of ServicePorts. A change rewrites everything, so the
    /// dispatch used `now` stays until their number clearly asks for the other.
    pub fn dispatch(self, service_ports: usize, now: Option<Dispatch>) -> Dispatch {
        let indexed = now == Some(Dispatch::Indexed);
        match self {
            DispatchChoice::Auto if above(MANY, service_ports, indexed) => Dispatch::Indexed,
            DispatchChoice::Auto | DispatchChoice::Linear => Dispatch::Linear,
            DispatchChoice::Indexed => Dispatch::Indexed,
        }
    }
}

/// Returns whether that number of endpoints of a family makes a large cluster, whose
/// rules go without most comments. As with [`DispatchChoice::dispatch`], the answer
/// that holds `now` stays until the number clearly asks for the other.
pub fn is_large_cluster(endpoints: usize, now: Option<&Options>) -> bool {
    above(LARGE, endpoints, now.is_some_and(|now| now.large_cluster))
}

fn above(threshold: usize, count: usize, now: bool) -> bool {
    let slack = if now { threshold / 5 } else { 0 };
    count > threshold - slack
}

impl Options {
    /// Derives the options from the configuration, for few Services. `node` is this node's object,
    /// `served` the addresses of node ports that follow from both.
    pub fn new(
        configuration: &KubeProxyConfiguration,
        configured: &Effective,
        family: Family,
        node: Option<&Node>,
        served: &Served,
        features: Features,
    ) -> Options {
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let addresses: Vec<IpAddr> = node
            .map(|node| &*node.addresses)
            .unwrap_or_default()
            .iter()
            .copied()
            .filter(of_family)
            .collect();
        Options {
            family,
            detect_local: DetectLocal::new(&configured.detect_local, family, node),
            node_ip: configured
                .node_ip
                .filter(of_family)
                .or(addresses.first().copied()),
            node_addresses: addresses,
            masquerade_all: configuration.masquerade_all,
            masquerade_mark: 1 << configured.masquerade_bit,
            node_ports: served.of(family),
            localhost_node_ports: configuration.iptables.localhost_node_ports,
            tcp_be_liberal: configuration.conntrack.tcp_be_liberal,
            features,
            large_cluster: false,
            dispatch: Dispatch::Linear,
            undivided: UNDIVIDED,
        }
    }

    /// Returns whether this node is known to have the address `ip`.
    pub fn is_of_node(&self, ip: IpAddr) -> bool {
        self.node_ip == Some(ip) || self.node_addresses.contains(&ip)
    }

    /// Returns whether node ports are served on loopback addresses: this is asked for,
    /// loopback is among the addresses that serve them, and it is possible without
    /// opening the node's loopback services to its neighbours, which takes `conntrack`
    /// (kubernetes issue 90259). Only IPv4 has `route_localnet`, which then must be
    /// set.
    pub fn serves_localhost(&self) -> bool {
        let asked = self.localhost_node_ports && self.family == Family::V4;
        let served = match &self.node_ports {
            Served::All => true,
            Served::Within(networks) => networks.iter().any(covers_loopback),
        };
        asked && served && self.features.contains(Extension::Conntrack)
    }

    /// Returns the node's addresses, loopback too, for kernels without `addrtype`.
    pub(super) fn local_networks(&self) -> impl Iterator<Item = IpNet> {
        let loopback = std::iter::once(self.family.loopback());
        loopback.chain(self.node_addresses.iter().copied().map(IpNet::from))
    }

    /// Limits the rule to packets to the node's own addresses.
    pub(super) fn to_node(&self, rule: Rule) -> Vec<Rule> {
        if self.features.contains(Extension::Addrtype) {
            let local = Match::LocalAddress(Negatable::Is(Side::Destination));
            return vec![rule.with(local)];
        }
        self.local_networks()
            .filter(|network| match &rule.destination {
                Some(asked) => asked.matches(|asked| asked.contains(network)),
                None => true,
            })
            .map(|network| rule.clone().destination(network))
            .collect()
    }
}

fn covers_loopback(network: &IpNet) -> bool {
    network.addr().is_loopback() || network.contains(&IpAddr::from([127, 0, 0, 0]))
}
