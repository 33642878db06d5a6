//! Where node ports are served, and those of health checks.

use net::Family;
use xtables::{extension::Extension, features::Features, rule::Table};

use super::{
    corners::{
        Expect::{Masqueraded, Passed},
        HERE, OUTSIDE, check,
    },
    walk::{Packet, Ruleset},
    world::{NODE_IP, endpoints, exposed, net, options},
};
use crate::{modes::iptables::plan::Options, node::Served, services::ServicePort};

#[test]
fn where_node_ports_are_served() {
    let port = ServicePort {
        endpoints: endpoints(&[(HERE, true, 1)]),
        ..exposed("web")
    };
    let within = |networks: &[&str]| Served::Within(networks.iter().map(|n| net(n)).collect());
    let wide = || within(&["192.168.0.0/16"]);
    let halves = || within(&["0.0.0.0/1", "128.0.0.0/1"]);
    let to_node = Packet::new(OUTSIDE, NODE_IP, 30080);
    let to_localhost = Packet::new("127.0.0.1", "127.0.0.1", 30080);
    let there = Masqueraded(&[HERE]);
    let no_addrtype = Features::all() - Extension::Addrtype;
    let no_conntrack = Features::all() - Extension::Conntrack;
    // Addresses, localhost asked for, features, to the node, to localhost.
    let all = Features::all();
    let cases = [
        (Served::All, true, all, there, there),
        (Served::All, false, all, there, Passed),
        (Served::All, true, no_conntrack, there, Passed),
        (Served::All, true, no_addrtype, there, there),
        (Served::All, false, no_addrtype, there, Passed),
        (within(&[]), true, all, Passed, Passed),
        (within(&["192.168.77.2/32"]), true, all, there, Passed),
        (wide(), true, all, there, Passed),
        (wide(), true, no_addrtype, there, Passed),
        (within(&["10.0.0.0/8"]), true, all, Passed, Passed),
        (within(&["127.0.0.1/32"]), true, all, Passed, there),
        (within(&["127.0.0.1/32"]), false, all, Passed, Passed),
        (within(&["127.0.0.1/32"]), true, no_addrtype, Passed, there),
        (within(&["127.0.0.0/8"]), true, all, Passed, there),
        (within(&["127.0.0.0/8"]), false, all, Passed, Passed),
        (halves(), false, all, there, Passed),
        (halves(), true, all, there, there),
    ];
    for (node_ports, localhost_node_ports, features, node, localhost) in cases {
        let options = Options {
            node_ports,
            localhost_node_ports,
            features,
            ..options()
        };
        let what = format!(
            "{:?}, {localhost_node_ports}, {features:?}",
            options.node_ports
        );
        check(&what, &port, &options, &to_node, node);
        check(&what, &port, &options, &to_localhost, localhost);
    }
}

/// The networks of `nodePortAddresses` are the same on all nodes, and one may be of a single
/// address that another machine has.
#[test]
fn single_addresses_of_other_machines_are_not_served() {
    let port = ServicePort {
        endpoints: endpoints(&[(HERE, true, 1)]),
        ..exposed("web")
    };
    const OTHER: &str = "192.168.77.9";
    let networks = [net("192.168.77.2/32"), net("192.168.77.9/32")];
    for features in [Features::all(), Features::all() - Extension::Addrtype] {
        let options = Options {
            node_ports: Served::Within(networks.into()),
            features,
            ..options()
        };
        let what = format!("{features:?}");
        let to_node = Packet::new(OUTSIDE, NODE_IP, 30080);
        check(&what, &port, &options, &to_node, Masqueraded(&[HERE]));
        let to_other = Packet::new(OUTSIDE, OTHER, 30080);
        check(&what, &port, &options, &to_other, Passed);
    }
}

#[test]
fn health_checks_pass_whatever_the_firewall_says() {
    let port = ServicePort {
        health_check_node_port: Some(31000),
        ..exposed("web")
    };
    let rules = Ruleset::new([&port], &options());
    let key = (Table::Filter, "KUBE-NODEPORTS".to_owned());
    let words: Vec<_> = rules.chains[&key]
        .iter()
        .map(|rule| rule.words(Family::V4).to_string())
        .collect();
    let accepted = "-p tcp -m comment --comment \"default/web health check node port\" -m tcp \
                    --dport 31000 -j ACCEPT";
    assert_eq!(words, [accepted]);
}
