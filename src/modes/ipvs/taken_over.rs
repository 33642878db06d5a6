//! Addresses of pods and nodes that Services name as theirs: the dummy link gives them to this node,
//! which then reaches those pods and nodes no more, at any port. Pure.

use std::{cell::OnceCell, net::IpAddr};

use hashbrown::HashMap;
use net::Family;

use super::plan::NodeContext;
use crate::{
    modes::{Reason, detect_local::DetectLocal},
    services::{ServiceMap, ServicePort, ServicePortName},
};

/// Finds such addresses among those of the Services of one map.
pub struct TakenOver<'a> {
    map: &'a ServiceMap,
    node: &'a NodeContext,
    /// The addresses of endpoints, each with a ServicePort that has it: pods, and nodes where these
    /// use the host's network. Known when it is first asked for, as few Services need it.
    endpoints: OnceCell<HashMap<IpAddr, &'a ServicePortName>>,
}

impl<'a> TakenOver<'a> {
    pub fn new(map: &'a ServiceMap, node: &'a NodeContext) -> TakenOver<'a> {
        TakenOver {
            map,
            node,
            endpoints: OnceCell::new(),
        }
    }

    /// Returns why each such address of `port` should not be one of its Service.
    pub fn reasons(&self, port: &ServicePort) -> Vec<Reason> {
        let external = port.external_ips.iter().map(|ip| ("an external IP", *ip));
        let balancers = port.load_balancer_ips.iter();
        let named = external.chain(balancers.map(|ip| ("a load-balancer IP", *ip)));
        let reasons = named.filter_map(|(what, ip)| Some(self.reason(what, self.why(ip)?, ip)));
        reasons.collect()
    }

    fn reason(&self, what: &'static str, whose: String, ip: IpAddr) -> Reason {
        let why = format!(
            "{ip} is {whose}: this node now has it on its dummy link and no longer reaches the \
             other one, at any port; remove it from the Service"
        );
        Reason::new(what, why)
    }

    /// Returns whose address `ip` is; `None`: nothing is known of it, or it is the node's own,
    /// which the dummy link does not get.
    fn why(&self, ip: IpAddr) -> Option<String> {
        if self.node.addresses.contains(&ip) {
            return None;
        }
        let endpoints = self.endpoints.get_or_init(|| {
            let ports = self.map.iter();
            let all = ports.flat_map(|port| {
                let all = port.endpoints.all.iter();
                all.map(|endpoint| (endpoint.address.ip(), &port.name))
            });
            all.collect()
        });
        if let Some(name) = endpoints.get(&ip) {
            return Some(format!("the address of an endpoint of Service {name}"));
        }
        match self.node.detect_local.get(Family::of(&ip)) {
            DetectLocal::Within(pods) if pods.contains(&ip) => {
                Some(format!("in {pods}, the network of pods"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::{endpoint, endpoints, service_port};

    #[test]
    fn the_address_of_a_pod_or_node_as_external_ip_is_named() {
        let ip = |text: &str| -> IpAddr { text.parse().expect("an address") };
        let mut node = NodeContext {
            addresses: [ip("192.0.2.1")].into(),
            ..NodeContext::default()
        };
        node.detect_local.v4 = DetectLocal::Within("10.244.0.0/16".parse().expect("a network"));
        let api = ServicePort {
            endpoints: endpoints([
                endpoint(([192, 0, 2, 2], 6443)),
                endpoint(([192, 0, 2, 1], 1)),
            ]),
            ..service_port("kubernetes", [10, 96, 0, 1])
        };
        let named = ["192.0.2.1", "192.0.2.2", "192.0.2.9", "10.244.1.7"].map(ip);
        let thief = ServicePort {
            external_ips: named.into(),
            load_balancer_ips: [ip("192.0.2.2")].into(),
            ..service_port("thief", [10, 96, 0, 2])
        };
        let map: ServiceMap = [api, thief.clone()].into_iter().collect();
        let found = TakenOver::new(&map, &node).reasons(&thief);
        let begins: Vec<String> = found
            .iter()
            .map(|reason| format!("{}: {}", reason.what, &reason.why[..30]))
            .collect();
        let expected = [
            "an external IP: 192.0.2.2 is the address of an",
            "an external IP: 10.244.1.7 is in 10.244.0.0/16",
            "a load-balancer IP: 192.0.2.2 is the address of an",
        ];
        assert_eq!(begins, expected);
    }
}
