//! Limits the number of addresses of one Service. An object of half a megabyte can name 5,000 ports
//! and 2,000 addresses, whose product is limited here, before anything of that size is built.
//!
//! Cluster IPs and node ports are not limited: their number grows with the size of the object only.

use std::net::IpAddr;

use super::Serving;

/// Maximum number of pairs of a port and an external or load-balancer IP of one Service, if there
/// are several such addresses: a single one is served at any number of ports.
const MOST_FRONTENDS: usize = 16_384;

/// Maximum number of external and load-balancer IPs of one Service, no matter how few ports it has.
const MOST_ADDRESSES: usize = 4_096;

/// Maximum number of triples of a port, a load-balancer IP and a range of clients of one Service.
pub(super) const MOST_RANGES: usize = 65_536;

impl Serving {
    /// Keeps the first load-balancer IPs and then the first external IPs, as many as fit with the
    /// number of ports. Returns the reason why others are not served; `None` if all are.
    pub(super) fn limit_addresses(&mut self) -> Option<String> {
        let ports = self.ports.len();
        let named = self.load_balancer_ips.len() + self.external_ips.len();
        let ranges = self.load_balancer_source_ranges.len();
        let per_address = ports.max(1);
        let most = (MOST_FRONTENDS / per_address).clamp(1, MOST_ADDRESSES);
        let filtered = MOST_RANGES / per_address.saturating_mul(ranges).max(1);
        let balancers = most.min(if ranges == 0 { most } else { filtered });
        let asked = self.load_balancer_ips.len();
        truncate(&mut self.load_balancer_ips, balancers);
        let unfiltered = asked > self.load_balancer_ips.len() && balancers == filtered;
        let left = most - self.load_balancer_ips.len();
        truncate(&mut self.external_ips, left);
        if self.load_balancer_ips.is_empty() && filtered == 0 {
            // They concern only these, and each port would have a copy.
            self.load_balancer_source_ranges = Box::default();
        }
        let served = self.load_balancer_ips.len() + self.external_ips.len();
        if served == named {
            return None;
        }
        let mut why = format!(
            "it is served at its cluster IPs and at the first {served} of its {named} \
             load-balancer and external IPs: with {ports} ports, one Service may have {most} of \
             them"
        );
        if unfiltered {
            why.push_str(&format!(
                ", and with {ranges} loadBalancerSourceRanges {filtered} load-balancer IPs"
            ));
        }
        why.push_str("; name fewer, or create several Services");
        Some(why)
    }
}

fn truncate(addresses: &mut Box<[IpAddr]>, most: usize) {
    if addresses.len() > most {
        *addresses = addresses[..most].into();
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::services::{Port, Protocol, TrafficPolicy};

    fn named(ports: usize, external: u16, balancers: u16, ranges: u16) -> Serving {
        let ip = |third: u8, number: u16| {
            let [high, low] = number.to_be_bytes();
            IpAddr::from([192, third, high, low])
        };
        let port = Port {
            name: "".into(),
            protocol: Protocol::Tcp,
            port: 80,
            last_port: None,
            node_port: None,
        };
        Serving {
            cluster_ips: Box::default(),
            ports: vec![port; ports].into(),
            external_ips: (0..external).map(|number| ip(1, number)).collect(),
            load_balancer_ips: (0..balancers).map(|number| ip(2, number)).collect(),
            load_balancer_source_ranges: (0..ranges).map(|n| IpNet::from(ip(3, n))).collect(),
            session_affinity: None,
            internal_traffic_policy: TrafficPolicy::Cluster,
            external_traffic_policy: TrafficPolicy::Cluster,
            health_check_node_port: None,
        }
    }

    #[test]
    fn the_product_of_ports_and_addresses_is_bounded() {
        // Ports, external and load-balancer IPs and ranges; how many of them are left.
        for (ports, [external, balancers, ranges], left) in [
            (1, [2_000, 1, 500], [2_000, 1, 500]),
            (1, [5_000, 1, 1], [4_095, 1, 1]),
            (0, [9, 9, 9], [9, 9, 9]),
            (100, [3, 2, 300], [3, 2, 300]),
            (5_000, [2_000, 0, 0], [3, 0, 0]),
            (5_000, [2_000, 2, 10], [2, 1, 10]),
            (5_000, [0, 1, 30_000], [0, 0, 0]),
            (60_000, [2, 0, 0], [1, 0, 0]),
            (60_000, [2, 1, 1], [0, 1, 1]),
            (60_000, [0, 0, 60_000], [0, 0, 0]),
        ] {
            let mut all = named(ports, external, balancers, ranges);
            let why = all.limit_addresses();
            let lengths = [
                all.external_ips.len(),
                all.load_balancer_ips.len(),
                all.load_balancer_source_ranges.len(),
            ];
            assert_eq!(lengths, left, "{ports} ports");
            let are_all = external + balancers == (left[0] + left[1]) as u16;
            assert_eq!(why.is_none(), are_all, "{why:?}");
        }
        let why = named(5_000, 2_000, 0, 0)
            .limit_addresses()
            .expect("too many");
        assert!(why.contains("3 of its 2000 "), "{why}");
        let why = named(5_000, 0, 1, 30_000)
            .limit_addresses()
            .expect("too many");
        assert!(
            why.contains("with 30000 loadBalancerSourceRanges 0 "),
            "{why}"
        );
        assert!(why.len() < 500, "an Event has a limit");
    }
}
