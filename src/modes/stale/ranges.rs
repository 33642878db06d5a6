//! Stale UDP flows to ranges of ports. Others may have ports within a range, whose flows stay.

use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
    ops::RangeInclusive,
    sync::Arc,
};

use net::{Family, Frontend, Protocol};
use netlink::conntrack::flows::{Flow, Match, UDP};

use crate::services::ServiceMap;

/// Addresses of endpoints, which answer from the port that the client called.
pub(super) type Answering = Arc<HashSet<IpAddr>>;

/// A range of ports to which some flows may be stale.
#[derive(Debug, PartialEq)]
pub(super) struct StaleRange {
    /// Where clients call it.
    pub(super) at: Frontend,
    /// Whether flows to it may go elsewhere than to endpoints that serve, or that did.
    pub(super) begun: bool,
    /// Endpoints that serve it no longer.
    pub(super) gone: Answering,
}

/// The flows to ranges, of one family.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RangeFlows {
    places: HashMap<IpAddr, Place>,
    /// Node ports, which may be served at the same addresses unless they are cluster IPs.
    node_ports: HashSet<u16>,
}

/// What is served at the address of a range.
#[derive(Debug, Default, PartialEq)]
struct Place {
    is_cluster_ip: bool,
    /// Ports that are no part of a range.
    exact: HashSet<u16>,
    served: Vec<(RangeInclusive<u16>, Answering)>,
    stale: Vec<StaleRange>,
}

impl RangeFlows {
    /// Compares the `stale` ranges with those of `map`, which is applied.
    pub(super) fn new(family: Family, map: &ServiceMap, stale: Vec<StaleRange>) -> RangeFlows {
        let mut flows = RangeFlows::default();
        for range in stale {
            if let Some(ip) = range.at.address {
                flows.places.entry(ip).or_default().stale.push(range);
            }
        }
        let udp = || {
            map.of_family(family)
                .filter(|port| port.name.protocol == Protocol::Udp)
        };
        for port in udp().filter(|port| port.is_range()) {
            let serving = port.endpoints.all.iter().filter(|e| e.may_have_flows());
            let serving: Answering = Arc::new(serving.map(|e| e.address.ip()).collect());
            for ip in port.addresses() {
                let place = flows.places.entry(ip).or_default();
                place.served.push((port.ports(), Arc::clone(&serving)));
            }
        }
        for port in udp() {
            flows.node_ports.extend(port.node_port);
            for ip in port.addresses() {
                if let Some(place) = flows.places.get_mut(&ip) {
                    place.is_cluster_ip |= port.cluster_ip == Some(ip);
                    place.exact.extend((!port.is_range()).then_some(port.port));
                }
            }
        }
        flows
    }

    /// Leaves out the addresses `own` of the node, at which ranges are not served.
    pub(super) fn leave_out(&mut self, own: &[IpAddr]) {
        self.places.retain(|ip, _| !own.contains(ip));
    }

    /// Returns patterns of all flows that may be stale.
    pub(super) fn matches(&self) -> Vec<Match> {
        let stale = self
            .places
            .iter()
            .filter(|(_, place)| !place.stale.is_empty());
        let to = stale.map(|(ip, _)| Match {
            destination: Some(*ip),
            ..Match::all(UDP)
        });
        to.collect()
    }

    /// Returns whether `flow` goes to an endpoint that serves the range which the client called.
    pub(super) fn keeps(&self, flow: &Flow) -> bool {
        self.called(flow).is_some_and(|place| place.serves(flow))
    }

    pub(super) fn is_stale(&self, flow: &Flow) -> bool {
        let Some(place) = self.called(flow) else {
            return false;
        };
        let (to, from) = (flow.original.destination, flow.reply.source);
        // Something else answers, such as a program of the node.
        let is_answered = from == to && flow.state.name(UDP) != "UNREPLIED";
        let may_be_of_others =
            is_answered || !place.is_cluster_ip && self.node_ports.contains(&to.port());
        let is_stale = |one: &StaleRange| {
            let is_gone = from.port() == to.port() && one.gone.contains(&from.ip());
            one.at.ports().contains(&to.port()) && (is_gone || one.begun && !may_be_of_others)
        };
        !place.serves(flow) && place.stale.iter().any(is_stale)
    }

    /// Returns the place that was called, if the port may be one of a range.
    fn called(&self, flow: &Flow) -> Option<&Place> {
        let to = flow.original.destination;
        let place = self.places.get(&to.ip())?;
        (!place.exact.contains(&to.port())).then_some(place)
    }
}

impl Place {
    fn serves(&self, flow: &Flow) -> bool {
        let (to, from) = (flow.original.destination, flow.reply.source);
        let mut served = self.served.iter();
        from.port() == to.port()
            && served.any(|(ports, by)| ports.contains(&to.port()) && by.contains(&from.ip()))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, num::NonZeroU16};

    use netlink::conntrack::flows::{State, Tuple};

    use super::*;
    use crate::services::{
        ServicePort,
        service_ports::{endpoint, endpoints, service_port},
    };

    const IP: [u8; 4] = [192, 0, 2, 1];

    fn port(name: &str, ip: [u8; 4], ports: (u16, Option<u16>), serves: &str) -> ServicePort {
        let (first, last_port) = ports;
        let of = service_port(name, ip);
        let serves: SocketAddr = serves.parse().expect("an endpoint");
        ServicePort {
            name: of.name.over(Protocol::Udp),
            port: first,
            last_port: last_port.and_then(NonZeroU16::new),
            endpoints: endpoints([endpoint(serves)]),
            ..of
        }
    }

    fn stale((first, last): (u16, u16), begun: bool) -> StaleRange {
        let last = NonZeroU16::new(last).expect("a port");
        StaleRange {
            at: Frontend::range(Protocol::Udp, IP.into(), first, last),
            begun,
            gone: Arc::new([[10, 1, 0, 9].into()].into()),
        }
    }

    fn flow(port: u16, from: impl Into<SocketAddr>) -> Flow {
        let client = ([10, 1, 0, 100], 4000).into();
        Flow {
            protocol: UDP,
            original: Tuple {
                source: client,
                destination: (IP, port).into(),
            },
            reply: Tuple {
                source: from.into(),
                destination: client,
            },
            state: State::default(),
            tuple: Vec::new(),
            id: None,
            zone: None,
        }
    }

    #[test]
    fn flows_to_ports_of_others_stay() {
        let mut others = vec![
            port("dns", IP, (53, None), "10.1.0.2:53"),
            port("elsewhere", [10, 0, 0, 1], (55, None), "10.1.0.2:55"),
            ServicePort {
                node_port: Some(60),
                ..port("node", [10, 0, 0, 2], (80, None), "10.1.0.2:80")
            },
        ];
        // The node's address may be the same.
        for external in &mut others {
            external.external_ips = external.cluster_ip.into_iter().collect();
            external.cluster_ip = None;
        }
        let map = others.into_iter().collect();
        let all = RangeFlows::new(Family::V4, &map, vec![stale((50, 65_535), true)]);
        assert_eq!(all.matches().len(), 1);
        let ports = [49, 50, 53, 55, 60, 65_535];
        let found = ports.map(|port| all.is_stale(&flow(port, (IP, port))));
        assert_eq!(found, [false, true, false, true, false, true]);
        let gone = ports.map(|port| all.is_stale(&flow(port, ([10, 1, 0, 9], port))));
        assert_eq!(gone, [false, true, false, true, true, true]);
        let answered = Flow {
            state: State {
                status: 2,
                of_protocol: None,
            },
            ..flow(70, (IP, 70))
        };
        assert!(!all.is_stale(&answered), "a program of the node answers");
    }

    #[test]
    fn flows_to_endpoints_that_serve_stay() {
        let now = port("media", IP, (100, Some(200)), "10.1.0.2:0");
        let map = [now].into_iter().collect();
        let serving = |port| flow(port, ([10, 1, 0, 2], port));
        for begun in [false, true] {
            // It was longer before.
            let ranges = RangeFlows::new(Family::V4, &map, vec![stale((90, 150), begun)]);
            let found = [89, 90, 100, 150, 151].map(|port| ranges.is_stale(&serving(port)));
            assert_eq!(found, [false, begun, false, false, false]);
            let kept = [99, 100, 200, 201].map(|port| ranges.keeps(&serving(port)));
            assert_eq!(kept, [false, true, true, false]);
            let other_port = flow(100, ([10, 1, 0, 2], 101));
            assert_eq!(
                (ranges.is_stale(&other_port), ranges.keeps(&other_port)),
                (begun, false)
            );
            let gone = flow(100, ([10, 1, 0, 9], 100));
            assert_eq!((ranges.is_stale(&gone), ranges.keeps(&gone)), (true, false));
        }
    }
}
