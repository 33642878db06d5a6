//! Answers that depend on the caller: source ranges, and its own addresses.

use std::sync::Arc;

use super::*;

/// The node may call from any of its addresses, and ranges may hold some of them.
#[test]
fn ranges_let_in_some_addresses_of_the_node() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    use Verdict::{Depends, Dropped, Forwarded};
    let (first, second, called) = ("192.0.2.1/32", "192.0.2.2/32", "203.0.113.1/32");
    // Nothing stands for the node without a source.
    let cases: [(ModeName, &[&str], &str, Verdict); 14] = [
        (Nftables, &[second], "", Depends),
        (Nftables, &[second], "192.0.2.2", Forwarded),
        (Nftables, &[second], "192.0.2.1", Dropped),
        (Nftables, &["192.0.2.0/24"], "", Forwarded),
        (Nftables, &["198.51.100.0/24"], "", Dropped),
        // From the very address that it calls it is known by its own one.
        (Iptables, &[first], "203.0.113.1", Forwarded),
        (Iptables, &[second], "203.0.113.1", Dropped),
        // IPVS has no rules for packets of the node, which are let in there.
        (Ipvs, &[first], "", Forwarded),
        (Ipvs, &[first], "192.0.2.2", Forwarded),
        (Ipvs, &[second], "", Depends),
        (Ipvs, &[second, called], "203.0.113.1", Dropped),
        (Userspace, &[second], "203.0.113.1", Forwarded),
        (Userspace, &[second], "192.0.2.1", Dropped),
        (Userspace, &[second], "", Depends),
    ];
    for (mode, ranges, from, expected) in cases {
        let own = ["192.0.2.1", "192.0.2.2", "127.0.0.1", "2001:db8::1"];
        let behaviour = Behaviour {
            properties: properties(mode),
            own: own.map(ip).into(),
            has_service_addresses: matches!(mode, Ipvs | Userspace),
            ..behaviour(pods())
        };
        let caller = if from.is_empty() {
            Caller::Node
        } else {
            Caller::At(ip(from))
        };
        let found = ranged(&behaviour, ranges, caller, |_| {});
        let verdict = found.verdict;
        assert_eq!(verdict, expected, "{mode}: {ranges:?}: {from}: {found:?}");
    }
}

/// Explains a packet to the load balancer with these ranges, after `change` was applied to it.
fn ranged(
    behaviour: &Behaviour,
    ranges: &[&str],
    from: Caller,
    change: fn(&mut ServicePort),
) -> Explanation {
    let mut web = ServicePort::clone(map().iter().next().unwrap());
    web.load_balancer_source_ranges = ranges.iter().map(|of| of.parse().unwrap()).collect();
    change(&mut web);
    let packet = Packet {
        to: "203.0.113.1:80".parse().unwrap(),
        protocol: Protocol::Tcp,
        from,
    };
    decided(&[web].into_iter().collect(), behaviour, &packet)
}

#[test]
fn ranges_are_not_for_all_that_is_called() {
    let excluded = Caller::At(ip("198.51.101.7"));
    let external = |web: &mut ServicePort| web.external_ips = [ip("203.0.113.1")].into();
    let empty = |web: &mut ServicePort| web.endpoints = Arc::default();
    type Change = fn(&mut ServicePort);
    let cases: [(ModeName, Change, Verdict); 8] = [
        (ModeName::Nftables, external, Verdict::Dropped),
        (ModeName::Ipvs, external, Verdict::Dropped),
        (ModeName::Iptables, external, Verdict::Forwarded),
        (ModeName::Userspace, external, Verdict::Forwarded),
        (ModeName::Nftables, empty, Verdict::Refused),
        (ModeName::Ipvs, empty, Verdict::Dropped),
        (ModeName::Iptables, empty, Verdict::Refused),
        (ModeName::Userspace, empty, Verdict::Refused),
    ];
    for (mode, change, expected) in cases {
        let behaviour = Behaviour {
            properties: properties(mode),
            ..behaviour(pods())
        };
        let found = ranged(&behaviour, &["198.51.100.0/24"], excluded, change);
        assert_eq!(found.verdict, expected, "{mode}: {found:?}");
    }
}

/// A packet to loopback stays with the caller, and so does one to the unspecified address.
#[test]
fn loopback_is_the_callers_own() {
    let web = ServicePort {
        node_port: Some(30_080),
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map = [web].into_iter().collect();
    let redirected = Loopback::Redirected;
    for (loopback, to, from, expected) in [
        (
            &redirected,
            "127.0.0.1:30080",
            Caller::Pod,
            Verdict::NotServed,
        ),
        (
            &redirected,
            "0.0.0.0:30080",
            Caller::Pod,
            Verdict::NotServed,
        ),
        (
            &redirected,
            "127.0.0.1:30080",
            Caller::Node,
            Verdict::Forwarded,
        ),
        (
            &redirected,
            "127.0.0.5:30080",
            Caller::Node,
            Verdict::Forwarded,
        ),
        (
            &redirected,
            "0.0.0.0:30080",
            Caller::Node,
            Verdict::Forwarded,
        ),
        (
            &redirected,
            "0.0.0.0:30080",
            Caller::At(ip("192.0.2.1")),
            Verdict::Forwarded,
        ),
        (
            &Loopback::Sockets,
            "127.0.0.1:30080",
            Caller::Node,
            Verdict::Forwarded,
        ),
        (
            &Loopback::Sockets,
            "127.0.0.5:30080",
            Caller::Node,
            Verdict::NotServed,
        ),
    ] {
        let behaviour = Behaviour {
            properties: properties(ModeName::Userspace),
            own: vec![ip("192.0.2.1"), ip("127.0.0.1")],
            loopback: loopback.clone(),
            ..behaviour(pods())
        };
        let packet = Packet {
            to: to.parse().unwrap(),
            protocol: Protocol::Tcp,
            from,
        };
        let found = decided(&map, &behaviour, &packet);
        assert_eq!(found.verdict, expected, "{to} from {from:?}: {found:?}");
    }
}

/// Node ports, and health checks, at one part of the loopback addresses alone.
#[test]
fn a_part_of_the_loopback_addresses_may_be_served() {
    let web = ServicePort {
        node_port: Some(30_080),
        health_check_node_port: Some(32_000),
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map = [web].into_iter().collect();
    let part = Served::Within(vec!["127.0.2.0/28".parse().unwrap()]);
    for (served, at_all, to, expected) in [
        (&part, true, "127.0.2.1:30080", Verdict::Forwarded),
        (&part, true, "127.0.0.1:30080", Verdict::NotServed),
        (&part, false, "127.0.2.1:30080", Verdict::NotServed),
        (&part, true, "192.0.2.1:30080", Verdict::NotServed),
        (&Served::All, true, "127.0.0.1:30080", Verdict::Forwarded),
        // The node has no such address of its own to listen at.
        (&part, true, "127.0.2.1:32000", Verdict::NotServed),
        (&Served::All, true, "127.0.2.1:32000", Verdict::Answered),
    ] {
        let behaviour = Behaviour {
            properties: properties(ModeName::Iptables),
            own: vec![ip("192.0.2.1"), ip("127.0.0.1")],
            served: Arc::new(served.clone()),
            loopback: Loopback::Rules { served: at_all },
            ..behaviour(pods())
        };
        let packet = Packet {
            to: to.parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Node,
        };
        let found = decided(&map, &behaviour, &packet);
        assert_eq!(
            found.verdict, expected,
            "{served:?}, {at_all}, {to}: {found:?}"
        );
    }
}

#[test]
fn rules_refuse_node_ports_of_some_protocols_on_loopback() {
    let web = ServicePort {
        node_port: Some(30_080),
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map = [web].into_iter().collect();
    for (refused, to, expected) in [
        (Protocol::Tcp, "127.0.0.1:30080", Verdict::Refused),
        (Protocol::Udp, "127.0.0.1:30080", Verdict::NotServed),
        (Protocol::Tcp, "192.0.2.1:30080", Verdict::Forwarded),
    ] {
        let mut behaviour = behaviour(pods());
        behaviour.rules.refused_on_loopback = vec![refused];
        let packet = Packet {
            to: to.parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Node,
        };
        let found = decided(&map, &behaviour, &packet);
        assert_eq!(found.verdict, expected, "{refused}, {to}: {found:?}");
    }
}

#[test]
fn iptables_refuses_node_ports_without_endpoints_at_every_address() {
    use ModeName::{Iptables, Nftables};
    use Verdict::{Dropped, Forwarded, NotServed, Refused};
    let away = ServicePort {
        node_port: Some(30_083),
        external_traffic_policy: TrafficPolicy::Local,
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        ..service_port("away", [10, 96, 0, 1])
    };
    let empty = ServicePort {
        node_port: Some(30_084),
        ..service_port("empty", [10, 96, 0, 2])
    };
    let served = ServicePort {
        node_port: Some(30_085),
        endpoints: away.endpoints.clone(),
        ..service_port("served", [10, 96, 0, 3])
    };
    let map = [away, empty, served].into_iter().collect();
    for (mode, refuse, known, to, expected) in [
        (Iptables, true, "192.0.2.9", "127.0.0.1:30083", Dropped),
        (Iptables, true, "192.0.2.9", "192.0.2.9:30083", Dropped),
        (Iptables, true, "192.0.2.9", "127.0.0.1:30084", Refused),
        (Iptables, false, "192.0.2.9", "127.0.0.1:30084", Dropped),
        (Iptables, true, "192.0.2.9", "192.0.2.9:30085", NotServed),
        (Iptables, true, "192.0.2.1", "192.0.2.9:30083", NotServed),
        // A policy of Local does not apply to the node where node ports are served.
        (Iptables, true, "192.0.2.1", "192.0.2.1:30083", Forwarded),
        (Nftables, true, "192.0.2.9", "192.0.2.9:30083", NotServed),
    ] {
        let mut behaviour = Behaviour {
            properties: properties(mode),
            own: vec![ip("192.0.2.1"), ip("192.0.2.9")],
            served: Arc::new(Served::Within(vec!["192.0.2.1/32".parse().unwrap()])),
            loopback: Loopback::Rules { served: false },
            ..behaviour(pods())
        };
        behaviour.rules.refuse = refuse;
        behaviour.rules.known = Some(vec![ip("192.0.2.1"), ip(known)]);
        let packet = Packet {
            to: to.parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Node,
        };
        let found = decided(&map, &behaviour, &packet);
        assert_eq!(found.verdict, expected, "{mode}, {to}: {found:?}");
    }
}
