//! The index: the same results, at a cost that does not grow.

use std::{collections::HashSet, net::Ipv4Addr};

use net::{Family, Protocol};
use proptest::prelude::*;
use xtables::desired::Entry;

use super::{
    walk::{Packet, Ruleset},
    world::{NODE_IP, endpoints, exposed, ip, options, service},
};
use crate::{
    modes::iptables::plan::{Dispatch, DispatchChoice, Options, plan},
    services::{ServicePort, TrafficPolicy},
};

fn indexed() -> Options {
    Options {
        dispatch: Dispatch::Indexed,
        ..options()
    }
}

/// A ServicePort of everything that can vary, on addresses and ports of its own.
fn any_port(n: u16) -> impl Strategy<Value = ServicePort> {
    let at = prop::sample::subsequence(
        vec![("10.244.0.6:8080", true, 1), ("10.244.1.7:8080", false, 3)],
        0..=2,
    );
    let policy = || prop::sample::select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]);
    let protocol = prop::sample::select(&Protocol::ALL);
    let ranges = prop::sample::subsequence(vec!["192.0.2.0/24", "192.168.77.0/24"], 0..=2);
    let shown = prop::bool::ANY;
    (at, policy(), policy(), protocol, ranges, shown, 0u8..4).prop_map(
        move |(at, internal, external, protocol, ranges, shown, far)| {
            let base = if shown { exposed("s") } else { service("s") };
            let [hi, lo] = n.to_be_bytes();
            let own = |first: u8| Ipv4Addr::new(first, 96 + far, hi, lo).into();
            ServicePort {
                name: base.name.of_port(&format!("p{n}")).over(protocol),
                cluster_ip: Some(own(10)),
                external_ips: base.external_ips.iter().map(|_| own(198)).collect(),
                load_balancer_ips: base.load_balancer_ips.iter().map(|_| own(203)).collect(),
                load_balancer_source_ranges: ranges
                    .iter()
                    .map(|range| super::world::net(range))
                    .collect(),
                node_port: base.node_port.map(|_| 30_000 + n),
                health_check_node_port: base.node_port.map(|_| 10_000 + n),
                internal_traffic_policy: internal,
                external_traffic_policy: external,
                endpoints: endpoints(&at),
                ..base
            }
        },
    )
}

fn any_ports() -> impl Strategy<Value = Vec<ServicePort>> {
    let numbers = prop::collection::hash_set(0u16..2000, 0..12);
    numbers.prop_flat_map(|numbers| numbers.into_iter().map(any_port).collect::<Vec<_>>())
}

/// Calls to all addresses and ports there are, and to some that there are not.
fn calls(ports: &[ServicePort]) -> Vec<Packet> {
    let mut calls = Vec::new();
    let mut call = |to, number| {
        for source in ["10.244.0.9", "192.0.2.20", NODE_IP] {
            for protocol in Protocol::ALL {
                let mut packet = Packet::new(source, "0.0.0.0", number);
                (packet.destination, packet.protocol) = (to, protocol);
                calls.push(packet);
            }
        }
    };
    for port in ports {
        let addresses = port.external_ips.iter().chain(&port.load_balancer_ips);
        for address in addresses.chain(&port.cluster_ip) {
            call(*address, port.port);
            call(*address, port.port + 1);
        }
        for number in port
            .node_port
            .into_iter()
            .chain(port.health_check_node_port)
        {
            call(ip(NODE_IP), number);
            call(ip(NODE_IP), number + 1);
        }
    }
    calls
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn linear_and_indexed_mean_the_same(ports in any_ports()) {
        let [linear, indexed] = [options(), indexed()].map(|o| Ruleset::new(&ports, &o));
        for packet in calls(&ports) {
            prop_assert_eq!(linear.outcomes(&packet), indexed.outcomes(&packet), "{:?}", packet);
        }
    }

    #[test]
    fn a_port_has_the_same_chains_and_few_steps_each_to_be_reached(port in any_port(7)) {
        let linear = plan(&port, &options());
        let indexed = plan(&port, &indexed());
        prop_assert!(linear.steps.is_empty());
        prop_assert_eq!(&linear.chains, &indexed.chains);
        let rules = |of: &[Entry]| -> Vec<_> {
            of.iter().map(|entry| (entry.table, entry.rule.clone())).collect()
        };
        prop_assert_eq!(rules(&linear.entries), rules(&indexed.entries));
        // One branch for each address and port in each shared chain.
        prop_assert!(indexed.steps.len() <= 4 * 2 * indexed.entries.len());
        let mut reached: HashSet<_> = linear
            .entries
            .iter()
            .map(|entry| (entry.table, entry.chain.clone()))
            .collect();
        for step in &indexed.steps {
            prop_assert!(reached.contains(&(step.table, step.chain.clone())), "{:?}", step);
            let to = step.rule.leads_to().unwrap().to_owned();
            prop_assert!(reached.insert((step.table, to)), "twice: {:?}", step);
        }
        for entry in &indexed.entries {
            prop_assert!(reached.contains(&(entry.table, entry.chain.clone())));
        }
    }
}

/// Rules tried for the cheapest and the dearest of these cluster IPs.
fn costs(addresses: &[Ipv4Addr], options: &Options) -> (usize, usize) {
    let ports: Vec<ServicePort> = (0..)
        .zip(addresses)
        .map(|(n, address): (u32, _)| {
            let base = service(&format!("s{n}"));
            ServicePort {
                name: base.name.of_port(""),
                cluster_ip: Some((*address).into()),
                endpoints: endpoints(&[("10.244.0.6:8080", true, 1)]),
                ..base
            }
        })
        .collect();
    let rules = Ruleset::new(&ports, options);
    let called = ports
        .iter()
        .step_by(addresses.len() / 500)
        .chain(ports.last());
    let costs = called.map(|port| {
        let mut packet = Packet::new("10.244.0.9", "0.0.0.0", 80);
        packet.destination = port.cluster_ip.unwrap();
        rules.cost(&packet)
    });
    let costs: Vec<usize> = costs.collect();
    let bound = |of: Option<&usize>| of.copied().expect("a cost");
    (bound(costs.iter().min()), bound(costs.iter().max()))
}

#[test]
fn the_last_of_many_costs_about_what_the_first_does() {
    let first = u32::from(Ipv4Addr::new(10, 96, 0, 1));
    let in_a_row =
        |count| -> Vec<Ipv4Addr> { (first..first + count).map(Ipv4Addr::from_bits).collect() };
    // Scattered over a /12 without repetition: 257 is odd, hence a unit.
    let scattered = |count| -> Vec<Ipv4Addr> {
        let place = |n: u32| first + n.wrapping_mul(257 * 3) % (1 << 20);
        (0..count).map(place).map(Ipv4Addr::from_bits).collect()
    };
    for addresses in [in_a_row(5_000), scattered(5_000), scattered(20_000)] {
        let (least, most) = costs(&addresses, &indexed());
        assert!(most <= 170, "{most} of {}", addresses.len());
        assert!(least >= 10, "{least}: nothing was walked");
    }
    let (_, linear) = costs(&in_a_row(5_000), &options());
    assert!(linear > 5_000, "{linear}");
}

#[test]
fn auto_changes_its_mind_late() {
    let auto = DispatchChoice::Auto;
    let cases = [
        (auto, 1000, None, Dispatch::Linear),
        (auto, 1001, None, Dispatch::Indexed),
        (auto, 1001, Some(Dispatch::Linear), Dispatch::Indexed),
        (auto, 900, Some(Dispatch::Indexed), Dispatch::Indexed),
        (auto, 800, Some(Dispatch::Indexed), Dispatch::Linear),
        (auto, 900, Some(Dispatch::Linear), Dispatch::Linear),
        (DispatchChoice::Linear, 9999, None, Dispatch::Linear),
        (DispatchChoice::Indexed, 1, None, Dispatch::Indexed),
    ];
    for (choice, count, now, expected) in cases {
        assert_eq!(
            choice.dispatch(count, now),
            expected,
            "{choice:?} {count} {now:?}"
        );
    }
}

#[test]
fn ipv6_is_indexed_too() {
    let ports: Vec<ServicePort> = (1..200u16)
        .map(|n| {
            let base = service(&format!("s{n}"));
            ServicePort {
                name: base.name.in_family(Family::V6),
                cluster_ip: Some(ip(&format!("fd00:10:96::{n:x}"))),
                endpoints: endpoints(&[("[fd00:10:244::6]:8080", true, 1)]),
                ..base
            }
        })
        .collect();
    let options = Options {
        family: Family::V6,
        detect_local: super::super::DetectLocal::Unknown,
        ..indexed()
    };
    let rules = Ruleset::new(&ports, &options);
    for port in &ports {
        let mut packet = Packet::new("fd00:10:244::9", "::", 80);
        packet.destination = port.cluster_ip.unwrap();
        let outcomes = rules.outcomes(&packet);
        assert_eq!(outcomes.len(), 1);
        assert!(
            format!("{outcomes:?}").contains("fd00:10:244::6"),
            "{outcomes:?}"
        );
        assert!(rules.cost(&packet) < 120);
    }
}
