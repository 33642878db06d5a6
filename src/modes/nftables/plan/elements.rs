//! What the plan of a ServicePort consists of.

use std::net::IpAddr;

use hashbrown::HashSet;
use ipnet::IpNet;
use nftables::{Element, Value, concat};

use super::{Options, affinity::ClientMap, chains::SharedChain, sets::SetId, slots::Slots};
use crate::services::ServicePort;

/// An element that several ServicePorts may need. It is kept for as long as one does,
/// and stands for itself without memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SharedElement {
    /// Of [`SetId::ClusterIps`]: the cluster IP.
    ClusterIp(IpAddr),
    /// Of [`SetId::Hairpin`]: an endpoint.
    Hairpin(IpAddr),
}

impl SharedElement {
    /// Returns the element and the set that it is of.
    pub fn element(self) -> (SetId, Element) {
        match self {
            SharedElement::ClusterIp(ip) => {
                (SetId::ClusterIps, Element::new(concat(&[Value::Ip(ip)])))
            }
            SharedElement::Hairpin(ip) => {
                let twice = concat(&[Value::Ip(ip), Value::Ip(ip)]);
                (SetId::Hairpin, Element::new(twice))
            }
        }
    }
}

/// The elements that one ServicePort needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceElements {
    /// Elements of sets that are its own: no other ServicePort has their keys.
    pub own: Vec<(SetId, Element)>,
    /// Elements that others may need as well.
    pub shared: Vec<SharedElement>,
    /// Chains that others may need as well.
    pub chains: Vec<SharedChain>,
    /// Its maps of clients, each with the endpoints to which these clients may be sent, as the data
    /// of the map.
    pub clients: Vec<(ClientMap, HashSet<Box<[u8]>>)>,
}

/// Returns the networks of clients that may call the load-balancer IP `ip` of `port`, without overlaps,
/// which sets do not take.
pub(super) fn allowed(port: &ServicePort, options: &Options, ip: IpAddr) -> Vec<IpNet> {
    let ranges = &port.load_balancer_source_ranges;
    let mut allowed: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
    // Where the load balancer's address is one of the node's own, the node calls from that.
    let own = |node_ip: IpAddr| ranges.iter().any(|range| range.contains(&node_ip));
    if options.node_ip.is_some_and(own) {
        allowed.push(IpNet::from(ip));
    }
    IpNet::aggregate(&allowed)
}

/// Answers to a caller on the endpoint's own pod would not come back through here. Only endpoints of
/// this node call themselves through it; where one runs need not be known.
pub(super) fn hairpin(
    port: &ServicePort,
    slots: &Slots,
) -> impl Iterator<Item = SharedElement> + use<> {
    let all = &port.endpoints.all;
    let mut ips: Vec<IpAddr> = (slots.cluster.endpoints.iter())
        .chain(&slots.local.endpoints)
        .filter(|slot| {
            let found = all.binary_search_by(|endpoint| endpoint.address.cmp(slot));
            let found = found.ok().and_then(|at| all.get(at));
            found.is_some_and(|e| e.local || e.node_name.is_none())
        })
        .map(|slot| slot.ip())
        .collect();
    ips.sort_unstable();
    ips.dedup();
    ips.into_iter().map(SharedElement::Hairpin)
}
