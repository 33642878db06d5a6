//! Addresses for Services that are none of the cluster's; pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Networks that external IPs and load-balancer IPs are taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    networks: Vec<IpNet>,
    /// Which of their addresses: runs at the same time are to have different ones.
    number: u32,
}

/// Addresses that a run takes from each network.
const PLACES: u128 = 3;

impl External {
    /// Returns the networks, of which the run of that number takes its addresses.
    pub fn new(networks: Vec<IpNet>, number: u32) -> External {
        External { networks, number }
    }

    /// Returns one address of each network, for one of three Services.
    pub fn addresses(&self, place: u8) -> Vec<IpAddr> {
        let networks = self.networks.iter();
        networks
            .map(|network| self.address(*network, place))
            .collect()
    }

    fn address(&self, network: IpNet, place: u8) -> IpAddr {
        let host_bits = network.max_prefix_len() - network.prefix_len();
        let size = 1_u128.checked_shl(host_bits.into()).unwrap_or(u128::MAX);
        // Neither the first address nor the last one, which may be a broadcast.
        let groups = (size.saturating_sub(2) / PLACES).max(1);
        let within = 1 + u128::from(self.number) % groups * PLACES + u128::from(place);
        match network.network() {
            IpAddr::V4(first) => {
                let low = u32::try_from(within).unwrap_or_default();
                Ipv4Addr::from_bits(first.to_bits() | low).into()
            }
            IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | within).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_are_of_the_networks_and_each_services_own() {
        for network in [
            "203.0.113.0/24",
            "192.0.2.8/29",
            "2001:db8:113::/48",
            "::/0",
        ] {
            let network: IpNet = network.parse().unwrap();
            for number in [0, 1, 83, 84, 1_000_000, u32::MAX] {
                let external = External::new(vec![network], number);
                let found: BTreeSet<IpAddr> =
                    (0..3).flat_map(|place| external.addresses(place)).collect();
                assert_eq!(found.len(), 3, "{network} {number}: {found:?}");
                let is_host = |ip: &IpAddr| {
                    network.contains(ip) && *ip != network.network() && *ip != network.broadcast()
                };
                assert!(found.iter().all(is_host), "{network} {number}: {found:?}");
            }
        }
        let first = |number| External::new(vec!["203.0.113.0/24".parse().unwrap()], number);
        assert_ne!(first(1).addresses(0), first(2).addresses(0));
    }
}
