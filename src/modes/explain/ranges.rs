//! Which callers `loadBalancerSourceRanges` let in.

use std::net::IpAddr;

use ipnet::IpNet;
use net::Family;

use super::{Behaviour, Caller, Carrier, Origin, Packet, Pods, frontend::is_own};
use crate::services::{AddressKind, ServicePort};

/// Whether a caller is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// No ranges count at the destination.
    Unguarded,
    /// The Service has ranges, which do not count at the destination: it is an external IP
    /// of the Service, too.
    ExternalIpFirst,
    /// The caller is let in.
    Admitted,
    /// The caller is not let in.
    Excluded,
    /// This node is let in when it calls from one of these addresses of its own.
    From(Vec<IpAddr>),
    /// That depends on the caller's address, which is not known.
    Unknown,
}

/// Returns whether `port` lets in the caller of `packet`, whose destination is the address
/// of that `role` to it.
pub(super) fn admission(
    port: &ServicePort,
    role: AddressKind,
    behaviour: &Behaviour,
    packet: &Packet,
    origin: Origin,
) -> Admission {
    let to = packet.to.ip();
    if port.load_balancer_source_ranges.is_empty() || !port.load_balancer_ips.contains(&to) {
        return Admission::Unguarded;
    }
    // Without endpoints everyone is refused; only before IPVS are there rules for the ranges even
    // then.
    let guards = match behaviour.properties.carrier {
        Carrier::Ipvs => true,
        Carrier::Rules => port.endpoints.any_takes_connections(),
        Carrier::Sockets => [&port.endpoints.cluster, &port.endpoints.local]
            .into_iter()
            .any(|indices| !super::endpoints(port, indices).is_empty()),
    };
    if !guards {
        return Admission::Unguarded;
    }
    if behaviour.properties.external_ips_first && role != AddressKind::LoadBalancerIp {
        return Admission::ExternalIpFirst;
    }
    let ranges = Ranges {
        ranges: &port.load_balancer_source_ranges,
        behaviour,
        to,
    };
    match (packet.from, origin) {
        (Caller::Node, _) => ranges.node(),
        (Caller::At(ip), Origin::Node) => Admission::of(ranges.admit_node_at(ip)),
        (Caller::At(ip), _) => Admission::of(ranges.contain(ip)),
        _ if ranges.ranges.iter().any(|range| range.prefix_len() == 0) => Admission::Admitted,
        (Caller::Pod, Origin::Pod) => ranges.pods(),
        (Caller::Pod | Caller::Outside, _) => Admission::Unknown,
    }
}

impl Admission {
    fn of(is_admitted: bool) -> Admission {
        if is_admitted {
            Admission::Admitted
        } else {
            Admission::Excluded
        }
    }
}

/// The ranges of a ServicePort, at a destination.
struct Ranges<'a> {
    ranges: &'a [IpNet],
    behaviour: &'a Behaviour,
    to: IpAddr,
}

impl Ranges<'_> {
    fn contain(&self, ip: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&ip))
    }

    /// Returns whether they let this node in when it calls from its address `source`. The very
    /// address that it calls stands for the node's own (`allowFromNode` of kube-proxy).
    fn admit_node_at(&self, source: IpAddr) -> bool {
        let is_called = source == self.to;
        let node_ip = self.behaviour.node_ip;
        let has_node_ip = || node_ip.is_some_and(|ip| self.contain(ip));
        match self.behaviour.properties.carrier {
            // Packets of the node do not pass the rules of the ranges. Those that stand in
            // for them are left out where the node's own address is in the ranges.
            Carrier::Ipvs => {
                let is_dummy = is_called && !is_own(self.behaviour, source);
                has_node_ip() || !is_dummy && self.contain(source)
            }
            Carrier::Rules => self.contain(source) || is_called && has_node_ip(),
            Carrier::Sockets => {
                let is_itself = is_called || source.is_loopback();
                let mut own = self.behaviour.own.iter();
                self.contain(source) || is_itself && own.any(|ip| self.contain(*ip))
            }
        }
    }

    /// The ranges' verdict on this node, which may call from any of its addresses.
    fn node(&self) -> Admission {
        let family = Family::of(&self.to);
        let called = self.behaviour.has_service_addresses.then_some(self.to);
        let own = self.behaviour.own.iter().copied();
        let own = own.filter(|ip| Family::of(ip) == family && !ip.is_loopback());
        let mut sources: Vec<IpAddr> = own.chain(called).collect();
        sources.sort_unstable();
        sources.dedup();
        let all = sources.len();
        sources.retain(|ip| self.admit_node_at(*ip));
        match sources.len() {
            0 => Admission::Excluded,
            admitted if admitted == all => Admission::Admitted,
            _ => Admission::From(sources),
        }
    }

    /// The ranges' verdict on pods of this node, as far as their networks tell.
    fn pods(&self) -> Admission {
        let Pods::Within(networks) = &self.behaviour.pods else {
            return Admission::Unknown;
        };
        let family = Family::of(&self.to);
        let of_family = |network: &&IpNet| Family::of(&network.addr()) == family;
        let (mut all, mut none) = (true, true);
        for network in networks.iter().filter(of_family) {
            all &= self.ranges.iter().any(|range| range.contains(network));
            // If two networks overlap, one contains the other.
            let overlaps = |range: &IpNet| range.contains(network) || network.contains(range);
            none &= !self.ranges.iter().any(overlaps);
        }
        match (all, none) {
            (true, false) => Admission::Admitted,
            (false, true) => Admission::Excluded,
            _ => Admission::Unknown,
        }
    }
}
