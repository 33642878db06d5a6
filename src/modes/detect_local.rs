//! How this node's pods are distinguished from others, in rules of one family.

use ipnet::IpNet;
use net::Family;
use xtables::rule::Rule;

use crate::{config, services::Node};

/// How traffic of this node's pods is distinguished from other traffic, in one family.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum DetectLocal {
    /// It cannot be distinguished: nothing is masqueraded because it comes from outside, and
    /// with an external traffic policy of Local every pod is treated as a client from outside.
    #[default]
    Unknown,
    /// By its source, which is in this network of the family.
    Within(IpNet),
    /// By the link that it comes through, or by how such links' names begin if
    /// this ends in `+` (iptables(8), `--in-interface`).
    Through(String),
}

impl DetectLocal {
    /// Reads the configuration, for `family` on this `node`.
    pub(super) fn new(
        configured: &config::DetectLocal,
        family: Family,
        node: Option<&Node>,
    ) -> DetectLocal {
        let within = |networks: &[IpNet]| {
            let mut networks = networks.iter();
            let network = networks.find(|network| Family::of(&network.addr()) == family);
            network.map_or(DetectLocal::Unknown, |network| {
                DetectLocal::Within(*network)
            })
        };
        match configured {
            config::DetectLocal::ClusterCidr(networks) => within(networks),
            config::DetectLocal::NodeCidr => {
                within(node.map(|node| &*node.pod_cidrs).unwrap_or_default())
            }
            config::DetectLocal::BridgeInterface(name) => DetectLocal::Through(name.clone()),
            // One that is as long as a name may be (IFNAMSIZ - 1, linux/if.h) is a whole
            // name, and iptables takes nothing longer.
            config::DetectLocal::InterfaceNamePrefix(name) if name.len() >= 15 => {
                DetectLocal::Through(name.clone())
            }
            config::DetectLocal::InterfaceNamePrefix(prefix) => {
                DetectLocal::Through(format!("{prefix}+"))
            }
        }
    }

    /// Returns `rule` limited to traffic of this node's pods; `None`: this traffic cannot be
    /// distinguished.
    pub(super) fn local(&self, rule: Rule) -> Option<Rule> {
        match self {
            DetectLocal::Unknown => None,
            DetectLocal::Within(network) => Some(rule.source(*network)),
            DetectLocal::Through(link) => Some(rule.input(link.as_str())),
        }
    }

    /// Returns `rule` limited to all other traffic; `None`: this traffic cannot be distinguished.
    pub(super) fn not_local(&self, rule: Rule) -> Option<Rule> {
        match self {
            DetectLocal::Unknown => None,
            DetectLocal::Within(network) => Some(rule.not_source(*network)),
            DetectLocal::Through(link) => Some(rule.not_input(link.as_str())),
        }
    }
}
