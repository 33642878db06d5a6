//! Input of plans apart from the ServicePorts: this node and its kernel.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipvs::ipset::Element;
use net::{Family, PerFamily};

use super::{Member, Options, ServerId};
use crate::{modes::detect_local::DetectLocal, node::Served, services::Node};

/// Properties of this node and its kernel that plans depend on. A difference in any field changes
/// every plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// Scheduler of Services that name none.
    pub scheduler: Arc<str>,
    /// Schedulers that the kernel lacks.
    pub missing_schedulers: BTreeSet<Arc<str>>,
    /// The node's own addresses, without those of [`LINK`](super::LINK).
    pub addresses: BTreeSet<IpAddr>,
    /// Those of them that serve node ports.
    pub node_ports: BTreeSet<IpAddr>,
    /// The node's main address in each family.
    pub node_ip: PerFamily<Option<IpAddr>>,
    /// How traffic of this node's pods is distinguished from other traffic.
    pub detect_local: PerFamily<DetectLocal>,
    /// SNAT everything that is sent to cluster IPs.
    pub masquerade_all: bool,
    /// Bits of the packet mark that ask for SNAT.
    pub masquerade_mark: u32,
}

impl NodeContext {
    /// Derives the context from the configuration, this node's object, the addresses that serve
    /// node ports, and the addresses of the node's links other than [`LINK`](super::LINK). No
    /// scheduler counts as missing.
    pub fn new(
        options: &Options,
        node: Option<&Node>,
        served: &Served,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> NodeContext {
        let addresses: BTreeSet<IpAddr> = addresses.into_iter().filter(is_reachable).collect();
        let listed = node.map(|node| &*node.addresses).unwrap_or_default();
        NodeContext {
            scheduler: Arc::clone(&options.scheduler),
            missing_schedulers: BTreeSet::new(),
            node_ports: addresses
                .iter()
                .copied()
                .filter(|ip| served.contains(ip))
                .collect(),
            addresses,
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

    /// Returns the frontends that `member` is about: for a node port, one at each
    /// address that serves node ports.
    pub fn frontends(&self, member: &Member) -> Vec<ServerId> {
        let protocol = member.set.protocol_of_ports();
        let (Element::Port(port), Some(protocol)) = (&member.element, protocol) else {
            return member.frontend().into_iter().collect();
        };
        let of_family = |ip: &&IpAddr| Family::of(ip) == member.family;
        let served = self.node_ports.iter().filter(of_family);
        served
            .map(|ip| ServerId::new((*ip, *port), protocol))
            .collect()
    }
}

/// Returns true if other hosts can send to `ip` as it is.
fn is_reachable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}
