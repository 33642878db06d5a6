//! Which share each endpoint gets.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use net::Family;
use proptest::prelude::*;
use xtables::{extension::Extension, features::Features};

use super::{
    walk::{Outcome, Packet, Ruleset},
    world::{endpoints, options, service},
};
use crate::{
    modes::iptables::plan::{Options, plan},
    services::ServicePort,
};

fn weighted(weights: &[u16]) -> ServicePort {
    let addresses: Vec<String> = (1..=weights.len())
        .map(|n| format!("10.244.{}.{}:80", n / 256, n % 256))
        .collect();
    let of: Vec<_> = addresses
        .iter()
        .zip(weights)
        .map(|(address, weight)| (address.as_str(), false, *weight))
        .collect();
    ServicePort {
        endpoints: endpoints(&of),
        ..service("web")
    }
}

fn sticky(port: ServicePort) -> ServicePort {
    ServicePort {
        session_affinity: Some(Duration::from_secs(60)),
        ..port
    }
}

fn without(extension: Extension) -> Options {
    Options {
        features: Features::all() - extension,
        ..options()
    }
}

/// Share of each endpoint over all `packets`.
fn shares(rules: &Ruleset, packets: impl Iterator<Item = Packet>) -> BTreeMap<SocketAddr, f64> {
    let mut shares: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    let mut count = 0.0;
    for packet in packets {
        count += 1.0;
        for (outcome, chance) in rules.outcomes(&packet) {
            let Outcome::To(endpoint, _) = outcome else {
                panic!("{packet:?} got nowhere: {outcome:?}");
            };
            *shares.entry(endpoint).or_default() += chance;
        }
    }
    shares.values_mut().for_each(|share| *share /= count);
    shares
}

fn call() -> Packet {
    Packet::new("10.244.0.200", "10.96.0.1", 80)
}

/// Every `step`th source port that Linux gives out
/// (`net.ipv4.ip_local_port_range`).
fn from_ports(step: usize) -> impl Iterator<Item = Packet> {
    (32_768..61_000).step_by(step).map(|source_port| Packet {
        source_port,
        ..call()
    })
}

/// Clients of a /20.
fn from_addresses() -> impl Iterator<Item = Packet> {
    (0..4096u32).map(|n| Packet {
        source: std::net::Ipv4Addr::from_bits(0x0af4_8000 + n).into(),
        ..call()
    })
}

fn assert_shares(port: &ServicePort, shares: &BTreeMap<SocketAddr, f64>, off_by: f64, what: &str) {
    let all = &port.endpoints.all;
    let sum: f64 = all.iter().map(|endpoint| f64::from(endpoint.weight)).sum();
    for endpoint in all {
        let expected = f64::from(endpoint.weight) / sum;
        let share = shares.get(&endpoint.address).copied().unwrap_or(0.0);
        assert!(
            (share - expected).abs() <= expected * off_by,
            "{what}: {} has {share}, not {expected}",
            endpoint.address
        );
    }
}

const WEIGHTS: [&[u16]; 7] = [
    &[1],
    &[1, 1],
    &[1, 1, 1, 1, 1, 1, 1],
    &[100, 300],
    &[5, 0, 1, 10],
    &[65535, 1],
    &[7; 40],
];

fn divided() -> Options {
    Options {
        undivided: 1,
        ..options()
    }
}

proptest! {
    #[test]
    fn parts_leave_each_its_share(weights in prop::collection::vec(1..=100u16, 2..80)) {
        let port = weighted(&weights);
        let shares = shares(&Ruleset::new([&port], &divided()), [call()].into_iter());
        let sum: f64 = weights.iter().copied().map(f64::from).sum();
        for endpoint in &port.endpoints.all {
            let expected = f64::from(endpoint.weight) / sum;
            prop_assert!((shares[&endpoint.address] - expected).abs() < 1e-6, "{shares:?}");
        }
    }
}

#[test]
fn no_chain_has_thousands_of_rules() {
    let port = sticky(weighted(&[1; 5000]));
    let rules = Ruleset::new([&port], &options());
    let longest = rules.chains.values().map(Vec::len).max();
    assert!(longest < Some(300), "{longest:?}");
    assert_shares(&port, &shares(&rules, [call()].into_iter()), 2e-6, "5,000");
}

#[test]
fn at_random_each_has_its_share() {
    for weights in WEIGHTS {
        let port = weighted(weights);
        let shares = shares(&Ruleset::new([&port], &options()), [call()].into_iter());
        assert_shares(&port, &shares, 1e-4, &format!("{weights:?}"));
    }
}

/// "Within a sixth", as is documented of a kernel without `statistic`.
#[test]
fn by_source_port_each_has_nearly_its_share() {
    let options = without(Extension::Statistic);
    for weights in WEIGHTS {
        if weights.contains(&65535) {
            continue; // One in 65,536 of 4,096 ports a round is none.
        }
        let port = weighted(weights);
        let shares = shares(&Ruleset::new([&port], &options), from_ports(7));
        assert_shares(&port, &shares, 1.0 / 6.0, &format!("{weights:?}"));
    }
}

#[test]
fn by_source_address_a_client_stays_and_each_has_nearly_its_share() {
    let options = without(Extension::Recent);
    for weights in [&[1, 1][..], &[1, 1, 1], &[3; 10], &[5, 0, 1, 10]] {
        let port = sticky(weighted(weights));
        let rules = Ruleset::new([&port], &options);
        for packet in from_addresses().step_by(97) {
            let first = rules.outcomes(&packet);
            assert_eq!(first.len(), 1, "{packet:?} may go to several: {first:?}");
            let again = Packet {
                source_port: 50_000,
                ..packet
            };
            assert_eq!(rules.outcomes(&again), first);
        }
        let shares = shares(&rules, from_addresses());
        assert_shares(&port, &shares, 0.25, &format!("{weights:?}"));
    }
    // Neighbours go to different endpoints.
    let port = sticky(weighted(&[1, 1]));
    let neighbours = from_addresses().take(2);
    assert_eq!(
        shares(&Ruleset::new([&port], &options), neighbours).len(),
        2
    );
}

#[test]
fn with_recent_a_client_returns_to_its_endpoint() {
    let port = sticky(weighted(&[1, 1, 1]));
    for options in [options(), divided()] {
        let rules = Ruleset::new([&port], &options);
        let planned = plan(&port, &options);
        for (at, endpoint) in port.endpoints.all.iter().enumerate() {
            let chain = &planned.chains[at].name;
            let packet = Packet {
                remembered: [chain.clone()].into(),
                ..call()
            };
            let outcomes: Vec<_> = rules.outcomes(&packet).into_keys().collect();
            assert_eq!(outcomes, [Outcome::To(endpoint.address, false)]);
        }
        assert_eq!(
            rules.outcomes(&call()).len(),
            3,
            "a new client goes anywhere"
        );
    }
}

#[test]
fn endpoints_are_in_the_order_of_kube_proxy() {
    let port = ServicePort {
        endpoints: endpoints(&[
            ("10.244.2.3:80", false, 1),
            ("10.244.10.3:80", false, 1),
            ("10.244.2.3:443", false, 1),
        ]),
        ..service("web")
    };
    let rules = plan(&port, &options());
    let comments: Vec<String> = rules
        .chains
        .iter()
        .filter(|chain| chain.name.starts_with("KUBE-SVC-"))
        .flat_map(|chain| &chain.rules[1..])
        .map(|rule| rule.words(Family::V4).to_string())
        .collect();
    let order = ["10.244.10.3:80", "10.244.2.3:443", "10.244.2.3:80"];
    assert_eq!(comments.len(), 3);
    for (comment, endpoint) in comments.iter().zip(order) {
        assert!(comment.contains(&format!("-> {endpoint}\"")), "{comment}");
    }
}
