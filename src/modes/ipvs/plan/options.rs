//! What plans depend on beside the ServicePorts themselves.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use ipnet::IpNet;

use crate::{
    config::{Effective, KubeProxyConfiguration},
    modes::detect_local::DetectLocal,
    net::{self, Family, PerFamily},
    node::Served,
    services::Node,
};

/// The dummy link that holds the addresses of Services.
pub const LINK: &str = "kube-ipvs0";

/// The scheduler of Services that ask for none, unless configured.
pub const ROUND_ROBIN: &str = "rr";

/// How the mode is to run: what the configuration says.
#[derive(Clone, Debug)]
pub struct Options {
    /// How traffic of this node's pods is told from other traffic.
    pub detect_local: net::DetectLocal,
    /// This node's own address, if it is not to be taken from its Node.
    pub node_ip: Option<IpAddr>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bits of the packet mark that ask for SNAT.
    pub masquerade_mark: u32,
    /// Scheduler of Services that name none, as the kernel calls it.
    pub scheduler: Arc<str>,
    /// Virtual servers with addresses of these are somebody else's.
    pub exclude: Vec<IpNet>,
    /// Do not answer ARP for service addresses.
    pub strict_arp: bool,
    /// How long IPVS keeps idle connections; zero: as the kernel has it.
    pub timeouts: Timeouts,
    /// How long connections to an endpoint that left a Service may go on where
    /// the Service does not say; `None`: as long as they last.
    pub drain_timeout: Option<Duration>,
}

/// How long IPVS keeps idle connections; zero leaves the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Of TCP connections.
    pub tcp: Duration,
    /// Of TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// Of UDP.
    pub udp: Duration,
}

impl Default for Options {
    /// Where nothing is configured.
    fn default() -> Options {
        Options {
            detect_local: net::DetectLocal::ClusterCidr(Vec::new()),
            node_ip: None,
            masquerade_all: false,
            masquerade_mark: 1 << 14,
            scheduler: ROUND_ROBIN.into(),
            exclude: Vec::new(),
            strict_arp: false,
            timeouts: Timeouts::default(),
            drain_timeout: None,
        }
    }
}

impl Options {
    /// What the configuration says; it has no drain timeout.
    pub fn new(configuration: &KubeProxyConfiguration, effective: &Effective) -> Options {
        let ipvs = &configuration.ipvs;
        let scheduler = match ipvs.scheduler.as_str() {
            "" => ROUND_ROBIN,
            name => name,
        };
        Options {
            detect_local: effective.detect_local.clone(),
            node_ip: effective.node_ip,
            masquerade_all: effective.masquerade_all,
            masquerade_mark: 1 << effective.masquerade_bit,
            scheduler: scheduler.into(),
            exclude: effective.ipvs_exclude.clone(),
            strict_arp: ipvs.strict_arp,
            timeouts: Timeouts {
                tcp: ipvs.tcp_timeout,
                tcp_fin: ipvs.tcp_fin_timeout,
                udp: ipvs.udp_timeout,
            },
            drain_timeout: None,
        }
    }
}

/// This node as plans see it. Whatever differs here makes every plan a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// Scheduler of Services that name none.
    pub scheduler: Arc<str>,
    /// Schedulers that the kernel lacks.
    pub lacking: BTreeSet<Arc<str>>,
    /// The node's own addresses, those of [`LINK`] left out.
    pub own: BTreeSet<IpAddr>,
    /// Those of them that serve node ports.
    pub node_ports: BTreeSet<IpAddr>,
    /// The one that stands for the node, in each family.
    pub node_ip: PerFamily<Option<IpAddr>>,
    /// How traffic of this node's pods is told from other traffic.
    pub detect_local: PerFamily<DetectLocal>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bits of the packet mark that ask for SNAT.
    pub masquerade_mark: u32,
}

impl Site {
    /// What follows from the configuration, this node's object, where node
    /// ports are served, and the addresses of the node's links other than
    /// [`LINK`].
    pub fn new(
        options: &Options,
        node: Option<&Node>,
        served: &Served,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Site {
        let own: BTreeSet<IpAddr> = addresses.into_iter().filter(is_reachable).collect();
        let listed = node.map(|node| &*node.addresses).unwrap_or_default();
        Site {
            scheduler: Arc::clone(&options.scheduler),
            lacking: BTreeSet::new(),
            node_ports: own
                .iter()
                .copied()
                .filter(|ip| served.contains(ip))
                .collect(),
            own,
            node_ip: PerFamily::each(|family| {
                let of_family = |ip: &IpAddr| Family::of(ip) == family;
                let first = listed.iter().copied().find(of_family);
                options.node_ip.filter(of_family).or(first)
            }),
            detect_local: PerFamily::each(|family| {
                DetectLocal::new(&options.detect_local, family, node)
            }),
            masquerade_all: options.masquerade_all,
            masquerade_mark: options.masquerade_mark,
        }
    }

    /// The scheduler for what a Service asks for, and whether that is another
    /// one because the kernel lacks it.
    pub(super) fn scheduler(&self, wanted: Option<&Arc<str>>) -> (Arc<str>, bool) {
        let wanted = wanted.unwrap_or(&self.scheduler);
        if self.lacking.contains(wanted) {
            (ROUND_ROBIN.into(), true)
        } else {
            (Arc::clone(wanted), false)
        }
    }
}

/// Other hosts can send to it as it is.
fn is_reachable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}
