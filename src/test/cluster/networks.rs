//! Chooses addresses for Services from outside the cluster's own networks; pure.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

/// Addresses for external IPs and load-balancer IPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The addresses of this run, from each network with free ones.
    chosen: Vec<[IpAddr; PLACES]>,
    /// Networks in which each address available to a run belongs to a Service.
    used_up: Vec<IpNet>,
}

/// Number of addresses that a run takes from each network.
const PLACES: usize = 3;

impl External {
    /// Chooses addresses from each network that are not `taken`. Runs with other numbers, which may
    /// run at the same time, usually get others.
    pub fn choose(networks: &[IpNet], number: u32, taken: &BTreeSet<IpAddr>) -> External {
        let mut external = External {
            chosen: Vec::new(),
            used_up: Vec::new(),
        };
        for network in networks {
            match choose(*network, number, taken) {
                Some(addresses) => external.chosen.push(addresses),
                None => external.used_up.push(*network),
            }
        }
        external
    }

    /// Returns one address of each network with free ones, for one of three Services.
    pub fn addresses(&self, place: usize) -> Vec<IpAddr> {
        let chosen = self.chosen.iter();
        chosen
            .filter_map(|addresses| addresses.get(place).copied())
            .collect()
    }

    /// Explains why some networks have no free addresses; `None` if all have some.
    pub fn lacking(&self) -> Option<String> {
        let used_up: Vec<_> = self.used_up.iter().map(IpNet::to_string).collect();
        (!used_up.is_empty()).then(|| {
            format!(
                "all addresses of {} are in use by Services of the cluster; name other networks \
                 with --external-networks",
                used_up.join(" and ")
            )
        })
    }
}

/// Chooses adjacent addresses of a network, none of which is `taken`; `None` if there are none.
fn choose(network: IpNet, number: u32, taken: &BTreeSet<IpAddr>) -> Option<[IpAddr; PLACES]> {
    let host_bits = network.max_prefix_len() - network.prefix_len();
    let size = 1_u128.checked_shl(host_bits.into()).unwrap_or(u128::MAX);
    // Neither the first nor the last address is used; the last may be a broadcast address.
    let groups = (size.saturating_sub(2) / PLACES as u128).max(1);
    // Each taken address excludes at most one group.
    let tries = groups.min(taken.len() as u128 + 1);
    let mut groups = (0..tries).map(|further| (u128::from(number) + further) % groups);
    groups.find_map(|group| {
        let first = 1 + group * PLACES as u128;
        let addresses = [0, 1, 2].map(|place| address(network, first + place));
        (!addresses.iter().any(|ip| taken.contains(ip))).then_some(addresses)
    })
}

fn address(network: IpNet, within: u128) -> IpAddr {
    match network.network() {
        IpAddr::V4(first) => {
            let low = u32::try_from(within).unwrap_or_default();
            Ipv4Addr::from_bits(first.to_bits() | low).into()
        }
        IpAddr::V6(first) => Ipv6Addr::from_bits(first.to_bits() | within).into(),
    }
}

#[cfg(test)]
mod tests {
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
                let external = External::choose(&[network], number, &BTreeSet::new());
                let found: BTreeSet<IpAddr> =
                    (0..3).flat_map(|place| external.addresses(place)).collect();
                assert_eq!(found.len(), 3, "{network} {number}: {found:?}");
                let is_host = |ip: &IpAddr| {
                    network.contains(ip) && *ip != network.network() && *ip != network.broadcast()
                };
                assert!(found.iter().all(is_host), "{network} {number}: {found:?}");
            }
        }
        let network = "203.0.113.0/24".parse().unwrap();
        let first = |number| External::choose(&[network], number, &BTreeSet::new());
        assert_ne!(first(1).addresses(0), first(2).addresses(0));
    }

    #[test]
    fn addresses_of_services_are_left_alone() {
        let networks: [IpNet; 2] = ["192.0.2.8/29", "2001:db8::/64"].map(|n| n.parse().unwrap());
        let taken = |all: &[&str]| all.iter().map(|ip| ip.parse().unwrap()).collect();
        // From 192.0.2.9 to .14 a run takes the first three or the last three.
        for number in [0, 1] {
            let some = External::choose(&networks, number, &taken(&["192.0.2.14", "2001:db8::1"]));
            assert_eq!(some.addresses(0)[0].to_string(), "192.0.2.9");
            assert_eq!(some.addresses(2)[1].to_string(), "2001:db8::6");
            assert_eq!(some.lacking(), None);
        }
        let one = External::choose(&networks, 0, &taken(&["192.0.2.9", "192.0.2.12"]));
        assert_eq!(one.addresses(0).len(), 1, "{one:?}");
        let why = one.lacking().unwrap();
        assert!(
            why.contains("all addresses of 192.0.2.8/29 are in use"),
            "{why}"
        );
    }
}
