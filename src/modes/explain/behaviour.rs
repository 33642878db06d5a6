//! Differences in the way of packets from mode to mode.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use net::Protocol;

use crate::{
    config::{DetectLocal, ModeName},
    node::Served,
    services::Node,
};

/// Differences in the way of packets from mode to mode that are the same on every node.
#[derive(Debug, PartialEq, Eq)]
pub struct Properties {
    /// Its name, as explanations give it.
    pub mode: ModeName,
    /// The carrier of connections to endpoints.
    pub carrier: Carrier,
    /// An address that is both an external and a load-balancer IP of a Service counts as an
    /// external IP, to which source ranges do not apply.
    pub external_ips_first: bool,
    /// A packet of the node to external and load-balancer IPs is refused, too, if no endpoint gets
    /// it; if false, it is routed as usual.
    pub refuses_own: bool,
    /// Node ports without endpoints are refused at all addresses of the node, those included that
    /// serve none.
    pub refuses_unserved: bool,
}

/// Mechanism that carries connections to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// Connection tracking, as rules have it translate the first packet. Rules refuse, too.
    Rules,
    /// IPVS, which refuses by itself, and knows where those connections continue that connection
    /// tracking does not translate.
    Ipvs,
    /// Sockets of this process, which refuse by themselves.
    Sockets,
}

/// Differences in the way of packets from mode to mode, and from node to node.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The properties that are the same on every node.
    pub properties: &'static Properties,
    /// Why no Service of the IP family is served; `None`: they are.
    pub unserved: Option<String>,
    /// How this node's pods are distinguished.
    pub pods: Pods,
    /// The node's own addresses, without those of Services.
    pub own: Vec<IpAddr>,
    /// The node's address that modes of the kernel accept in source ranges (userspace mode accepts
    /// all its addresses); `None`: it is not known.
    pub node_ip: Option<IpAddr>,
    /// Service addresses are the node's, too: a connection of the node to one of them has
    /// that address as its source, unless the program chose another.
    pub has_service_addresses: bool,
    /// On which of the node's addresses node ports are served.
    pub served: Arc<Served>,
    /// How node ports are served on loopback addresses.
    pub loopback: Loopback,
    /// Treatment of packets to ports of service addresses that no Service has.
    pub other_ports: OtherPorts,
    /// Abilities of rules on this kernel.
    pub rules: Rules,
    /// Networks that cluster IPs are allocated from, if packets to their unused addresses and ports
    /// are dropped.
    pub dropped_networks: Vec<IpNet>,
}

impl Behaviour {
    /// Returns why no Service of a family is served that the mode cannot serve on this kernel.
    pub fn unable() -> String {
        "it lacks what this needs; see tripod probe".to_owned()
    }
}

/// Abilities of rules on this kernel, which may be fewer than elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// They refuse packets; where they cannot, they drop them.
    pub refuse: bool,
    /// They remember which endpoint a client had.
    pub remember: bool,
    /// How many connections they count at most, which is the greatest limit that a Service and its
    /// clients can have.
    pub countable: u32,
    /// They let packets of this process pass to endpoints that are external or load-balancer IPs
    /// of another Service.
    pub pass_marked: bool,
    /// The node's addresses that they know, in addition to loopback; `None`: all.
    pub known: Option<Vec<IpAddr>>,
    /// They serve ranges of ports (`tripod.proxy/ports`).
    pub ranges: bool,
    /// Protocols whose node ports they refuse on loopback addresses.
    pub refused_on_loopback: Vec<Protocol>,
}

impl Rules {
    /// Returns rules that can do all that the modes have in common.
    pub fn complete() -> Rules {
        Rules {
            refuse: true,
            remember: true,
            countable: u32::MAX,
            pass_marked: true,
            known: None,
            ranges: false,
            refused_on_loopback: Vec::new(),
        }
    }
}

/// How this node's pods are distinguished from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pods {
    /// By their addresses, which are in these networks; in none where it is not
    /// configured, and then pods count as everybody outside.
    Within(Vec<IpNet>),
    /// By the link that their packets come through.
    Through(String),
}

/// How node ports are served on loopback addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loopback {
    /// By rules, for IPv4 alone, at those that are served as other addresses are.
    Rules {
        /// Whether node ports are served at loopback addresses at all.
        served: bool,
    },
    /// By sockets of this process, at those that the node has, as on other addresses.
    Sockets,
    /// By rules that redirect to sockets of this process, at each of them.
    Redirected,
    /// TCP is relayed by sockets of this process at these addresses; elsewhere nothing
    /// is served.
    Relayed(Vec<IpAddr>),
}

/// Treatment of packets to ports of service addresses that no Service has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherPorts {
    /// They continue as if there were no such Service.
    PassOn,
    /// At cluster IPs they are refused.
    RefusedAtClusterIps,
    /// At all service addresses they are refused: the node has these addresses.
    RefusedEverywhere,
}

/// How an endpoint is chosen among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Each with the same share.
    Equal,
    /// By their weights.
    Weighted,
    /// By a hash of the client's address, or of the address that it calls.
    Hashed,
    /// By the connections that they have.
    Loaded,
}

impl Pods {
    /// Reads the configuration, on this `node`.
    pub fn new(configured: &DetectLocal, node: Option<&Node>) -> Pods {
        match configured {
            DetectLocal::ClusterCidr(networks) => Pods::Within(networks.clone()),
            DetectLocal::NodeCidr => {
                Pods::Within(node.map(|node| node.pod_cidrs.to_vec()).unwrap_or_default())
            }
            DetectLocal::BridgeInterface(name) => Pods::Through(format!("link {name}")),
            DetectLocal::InterfaceNamePrefix(prefix) => {
                Pods::Through(format!("a link whose name begins with {prefix}"))
            }
        }
    }
}

impl Selection {
    /// Returns how the scheduler of that name chooses, as IPVS and `--ipvs-scheduler` call
    /// it.
    pub fn of_scheduler(name: &str) -> Selection {
        match name {
            "random" | "wrr" => Selection::Weighted,
            "sh" | "dh" | "mh" | "mh-port" => Selection::Hashed,
            "lc" | "wlc" | "sed" | "nq" | "lblc" | "lblcr" | "ovf" | "fo" | "twos" => {
                Selection::Loaded
            }
            // Round robin also replaces a scheduler that the kernel lacks.
            _ => Selection::Equal,
        }
    }

    /// Returns the words for it.
    pub(super) fn words(self) -> &'static str {
        match self {
            Selection::Equal => "one is chosen, with equal shares",
            Selection::Weighted => "one is chosen by their weights",
            Selection::Hashed => "one is chosen by a hash of addresses, the same each time",
            Selection::Loaded => "one is chosen by the connections that they have",
        }
    }
}
