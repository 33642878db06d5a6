//! Questions that no case of the conformance tests asks; those compare the answers with packets.

mod callers;
mod dead_ends;

use std::{
    net::{IpAddr, SocketAddr},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use super::*;
use crate::{
    config::ModeName,
    modes::{iptables, ipvs, nftables, userspace},
    node::Served,
    services::{
        Endpoint, Endpoints, Preferences, ServiceMap, ServicePort, TrafficPolicy,
        service_ports::{endpoint, endpoints, service_port},
    },
};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn properties(mode: ModeName) -> &'static Properties {
    match mode {
        ModeName::Ipvs => &ipvs::explain::PROPERTIES,
        ModeName::Nftables => &nftables::explain::PROPERTIES,
        ModeName::Iptables => &iptables::explain::PROPERTIES,
        ModeName::Userspace => &userspace::explain::PROPERTIES,
    }
}

fn behaviour(pods: Pods) -> Behaviour {
    Behaviour {
        properties: properties(ModeName::Nftables),
        unserved: None,
        pods,
        own: vec![ip("192.0.2.1")],
        node_ip: Some(ip("192.0.2.1")),
        has_service_addresses: false,
        served: Arc::new(Served::All),
        loopback: Loopback::Relayed(Vec::new()),
        other_ports: OtherPorts::RefusedAtClusterIps,
        rules: Rules::complete(),
        dropped_networks: vec!["10.96.0.0/16".parse().unwrap()],
    }
}

fn pods() -> Pods {
    Pods::Within(vec!["10.244.0.0/16".parse().unwrap()])
}

/// A load balancer with endpoints elsewhere, for callers of one network.
fn map() -> ServiceMap {
    let web = ServicePort {
        load_balancer_ips: [ip("203.0.113.1")].into(),
        load_balancer_source_ranges: ["198.51.100.0/24".parse().unwrap()].into(),
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        external_traffic_policy: TrafficPolicy::Cluster,
        ..service_port("web", [10, 96, 0, 1])
    };
    [web].into_iter().collect()
}

fn decided(map: &ServiceMap, behaviour: &Behaviour, packet: &Packet) -> Explanation {
    decide(
        map,
        behaviour,
        &|_| Selection::Weighted,
        &|_| HashSet::new(),
        packet,
    )
}

fn explained(pods: Pods, to: &str, from: Caller) -> Explanation {
    let packet = Packet {
        to: to.parse().unwrap(),
        protocol: Protocol::Tcp,
        from,
    };
    decided(&map(), &behaviour(pods), &packet)
}

#[test]
fn a_pod_that_nothing_tells_from_others_is_named_so() {
    let undistinguished = || Pods::Within(Vec::new());
    for (pods, from, expected) in [
        (pods(), Caller::Pod, "the caller is a pod of the cluster"),
        (
            undistinguished(),
            Caller::Pod,
            "the caller is a pod, which counts as a host outside the cluster: nothing \
             distinguishes them here (clusterCIDR)",
        ),
        (
            undistinguished(),
            Caller::Outside,
            "the caller is outside the cluster",
        ),
    ] {
        let steps = explained(pods, "10.96.0.1:80", from).steps;
        assert_eq!(steps[0], expected, "{from:?}");
    }
}

fn verdict(pods: Pods, to: &str, from: Caller) -> (Origin, Verdict) {
    let explanation = explained(pods, to, from);
    assert!(!explanation.steps.is_empty());
    (explanation.origin, explanation.verdict)
}

#[test]
fn who_calls_may_have_to_be_said() {
    let balancer = "203.0.113.1:80";
    let at = |text| Caller::At(ip(text));
    let through = || Pods::Through("link cni0".to_owned());
    for (pods, from, expected) in [
        (pods(), Caller::Outside, (Origin::Outside, Verdict::Depends)),
        // No address of a pod is in the range.
        (pods(), Caller::Pod, (Origin::Pod, Verdict::Dropped)),
        (
            pods(),
            at("198.51.100.7"),
            (Origin::Outside, Verdict::Forwarded),
        ),
        (
            pods(),
            at("198.51.101.7"),
            (Origin::Outside, Verdict::Dropped),
        ),
        (pods(), at("10.244.0.7"), (Origin::Pod, Verdict::Dropped)),
        (pods(), Caller::Node, (Origin::Node, Verdict::Dropped)),
        (
            through(),
            at("10.244.0.7"),
            (Origin::Outside, Verdict::Dropped),
        ),
        (through(), Caller::Pod, (Origin::Pod, Verdict::Depends)),
        // Where pods are not distinguished, they count as everybody.
        (
            Pods::Within(Vec::new()),
            Caller::Pod,
            (Origin::Outside, Verdict::Depends),
        ),
    ] {
        let found = verdict(pods.clone(), balancer, from);
        assert_eq!(found, expected, "{from:?} with {pods:?}");
    }
}

#[test]
fn addresses_without_a_service_port() {
    for (to, expected) in [
        ("10.96.0.1:80", Verdict::Forwarded),
        ("10.96.0.1:81", Verdict::Refused),
        ("10.96.0.2:80", Verdict::Dropped),
        ("203.0.113.1:81", Verdict::NotServed),
        ("192.0.2.1:30080", Verdict::NotServed),
        ("10.97.0.1:80", Verdict::NotServed),
    ] {
        let (_, found) = verdict(pods(), to, Caller::Pod);
        assert_eq!(found, expected, "{to}");
    }
}

#[test]
fn tripod_answers_health_checks_where_node_ports_are_served() {
    let web = ServicePort {
        health_check_node_port: Some(31_000),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map: ServiceMap = [web].into_iter().collect();
    let elsewhere = Served::Within(vec!["198.51.100.0/24".parse().unwrap()]);
    for (served, protocol, expected, last) in [
        (Served::All, Protocol::Tcp, Verdict::Answered, "over HTTP"),
        (
            elsewhere,
            Protocol::Tcp,
            Verdict::NotServed,
            "what listens on the node answers",
        ),
        (
            Served::All,
            Protocol::Udp,
            Verdict::NotServed,
            "no Service has that port",
        ),
    ] {
        let behaviour = Behaviour {
            served: Arc::new(served),
            ..behaviour(pods())
        };
        let packet = Packet {
            to: "192.0.2.1:31000".parse().unwrap(),
            protocol,
            from: Caller::Outside,
        };
        let explanation = decided(&map, &behaviour, &packet);
        assert_eq!(explanation.verdict, expected, "{protocol:?}");
        let step = explanation.steps.last().unwrap();
        assert!(step.contains(last), "{step}");
    }
}

#[test]
fn ipvs_mode_lets_health_checks_pass_at_service_addresses() {
    let web = ServicePort {
        health_check_node_port: Some(31_000),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map: ServiceMap = [web].into_iter().collect();
    let elsewhere = || Served::Within(vec!["198.51.100.0/24".parse().unwrap()]);
    for (other_ports, served, to, expected) in [
        (
            OtherPorts::RefusedEverywhere,
            Served::All,
            31_000,
            Verdict::Answered,
        ),
        (
            OtherPorts::RefusedEverywhere,
            elsewhere(),
            31_000,
            Verdict::NotServed,
        ),
        (
            OtherPorts::RefusedEverywhere,
            Served::All,
            31_001,
            Verdict::Refused,
        ),
        (
            OtherPorts::RefusedAtClusterIps,
            Served::All,
            31_000,
            Verdict::Refused,
        ),
    ] {
        let behaviour = Behaviour {
            other_ports,
            served: Arc::new(served),
            ..behaviour(pods())
        };
        let packet = Packet {
            to: ([10, 96, 0, 1], to).into(),
            protocol: Protocol::Tcp,
            from: Caller::Outside,
        };
        let verdict = decided(&map, &behaviour, &packet).verdict;
        assert_eq!(verdict, expected, "{other_ports:?} {to}");
    }
}

#[test]
fn a_connection_is_stale_where_new_ones_would_not_go_the_same_way() {
    let map = map();
    let port = map.iter().next().expect("a ServicePort");
    let to = |text: &str| text.parse().unwrap();
    let packet = Packet {
        to: to("10.96.0.1:80"),
        protocol: Protocol::Tcp,
        from: Caller::Pod,
    };
    let explained = |mode| {
        let behaviour = Behaviour {
            properties: properties(mode),
            ..behaviour(pods())
        };
        decided(&map, &behaviour, &packet)
    };
    let cases = [
        (ModeName::Nftables, Some("10.244.1.1:8080"), None),
        (
            ModeName::Nftables,
            Some("10.244.1.2:8080"),
            Some(Stale::Gone),
        ),
        (ModeName::Iptables, None, Some(Stale::Untranslated)),
        (ModeName::Ipvs, None, Some(Stale::Untranslated)),
        (ModeName::Ipvs, Some("10.244.1.2:8080"), Some(Stale::Gone)),
        (ModeName::Userspace, Some("192.0.2.1:40000"), None),
    ];
    for (mode, translated_to, expected) in cases {
        let connection = Connection {
            client: to("10.244.0.9:40000"),
            translated_to: translated_to.map(to),
            state: "ESTABLISHED",
        };
        let explanation = explained(mode);
        let found = stale(&connection, &packet, &explanation, port);
        assert_eq!(found, expected, "{mode}, {translated_to:?}");
        let ended = Connection {
            state: "TIME_WAIT",
            ..connection
        };
        let found = stale(&ended, &packet, &explanation, port);
        assert_eq!(found, None, "{mode}, {translated_to:?}");
    }
    // IPVS takes up a UDP client by its next datagram, rules do not.
    let client = Connection {
        client: to("10.244.0.9:40000"),
        translated_to: None,
        state: "",
    };
    let packet = Packet {
        protocol: Protocol::Udp,
        ..packet
    };
    for (mode, expected) in [
        (ModeName::Ipvs, None),
        (ModeName::Nftables, Some(Stale::Untranslated)),
    ] {
        let found = stale(&client, &packet, &explained(mode), port);
        assert_eq!(found, expected, "{mode}");
    }
}

#[test]
fn limits_are_named_where_rules_count() {
    let preferences = Preferences {
        max_connections: NonZeroU32::new(100),
        max_connections_per_client: NonZeroU32::new(1),
        ..Preferences::default()
    };
    let web = ServicePort {
        preferences: Some(Arc::new(preferences)),
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map: ServiceMap = [web].into_iter().collect();
    for (countable, named) in [(u32::MAX, 2), (100, 2), (99, 1), (0, 0)] {
        let behaviour = Behaviour {
            rules: Rules {
                countable,
                ..Rules::complete()
            },
            ..behaviour(pods())
        };
        let packet = Packet {
            to: "10.96.0.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Outside,
        };
        let found = decided(&map, &behaviour, &packet);
        let steps: Vec<&String> = found
            .steps
            .iter()
            .filter(|step| step.contains("at most"))
            .collect();
        let expected = [
            "the Service has at most 100 connections at a time on this node \
             (tripod.proxy/max-connections)",
            "a client has at most 1 connection at a time on this node \
             (tripod.proxy/max-connections-per-client)",
        ];
        assert_eq!(steps, expected[2 - named..], "{countable}");
    }
}

#[test]
fn what_rules_cannot_do_here_is_said() {
    let nothing = |mode| Behaviour {
        properties: properties(mode),
        rules: Rules {
            refuse: false,
            remember: false,
            countable: 0,
            pass_marked: false,
            known: Some(vec![ip("192.0.2.1")]),
            ranges: false,
            refused_on_loopback: Vec::new(),
        },
        own: vec![ip("192.0.2.1"), ip("192.0.2.2")],
        ..behaviour(pods())
    };
    let web = ServicePort {
        node_port: Some(30_080),
        session_affinity: Some(Duration::from_secs(60)),
        endpoints: endpoints([endpoint(([10, 244, 1, 1], 8080))]),
        ..service_port("web", [10, 96, 0, 1])
    };
    let empty = ServicePort {
        node_port: Some(30_081),
        ..service_port("empty", [10, 96, 0, 2])
    };
    let map: ServiceMap = [web, empty].into_iter().collect();
    let (nftables, iptables) = (ModeName::Nftables, ModeName::Iptables);
    for (mode, to, expected, last) in [
        (nftables, "10.96.0.2:80", Verdict::Dropped, "cannot refuse"),
        (nftables, "10.96.0.1:81", Verdict::Dropped, "cannot refuse"),
        (iptables, "10.96.0.2:80", Verdict::Dropped, "cannot refuse"),
        (
            iptables,
            "192.0.2.1:30081",
            Verdict::Dropped,
            "cannot refuse",
        ),
        // IPVS and sockets refuse by themselves.
        (
            ModeName::Ipvs,
            "10.96.0.2:80",
            Verdict::Refused,
            "no endpoint takes connections",
        ),
        (
            nftables,
            "192.0.2.2:30080",
            Verdict::NotServed,
            "and it does not list this one: what listens on the node answers, or it is refused",
        ),
        (
            nftables,
            "192.0.2.1:30080",
            Verdict::Forwarded,
            "which rules on this kernel cannot keep",
        ),
    ] {
        let packet = Packet {
            to: to.parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Outside,
        };
        let explanation = decided(&map, &nothing(mode), &packet);
        assert_eq!(explanation.verdict, expected, "{mode}: {to}");
        let step = explanation.steps.last().unwrap();
        assert!(step.contains(last), "{mode}: {to}: {step}");
    }
}

#[test]
fn pods_are_let_in_where_all_of_their_addresses_are() {
    for (ranges, expected) in [
        (&["10.0.0.0/8"][..], Verdict::Forwarded),
        (&["10.244.0.0/16", "192.0.2.0/24"], Verdict::Forwarded),
        (&["10.244.7.0/24"], Verdict::Depends),
        (&["192.0.2.0/24"], Verdict::Dropped),
        (&["0.0.0.0/0"], Verdict::Forwarded),
    ] {
        let mut web = ServicePort::clone(map().iter().next().unwrap());
        web.load_balancer_source_ranges = ranges.iter().map(|of| of.parse().unwrap()).collect();
        let packet = Packet {
            to: "203.0.113.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Pod,
        };
        let map = [web].into_iter().collect();
        let verdict = decided(&map, &behaviour(pods()), &packet).verdict;
        assert_eq!(verdict, expected, "{ranges:?}");
    }
}

/// IPVS has one virtual server for all callers, and kube-proxy gives it other nodes' endpoints if
/// none is here.
#[test]
fn ipvs_falls_back_from_a_policy_of_local() {
    use ModeName::{Ipvs, Nftables, Userspace};
    use Verdict::{Dropped, Forwarded, Refused};
    let [here, there] = [[10, 244, 0, 1], [10, 244, 1, 1]].map(|ip| (ip, 8080));
    let explained = |mode, local_weight: Option<u16>, role: &str, from| {
        let mut local = endpoint(here);
        local.local = true;
        local.weight = local_weight.unwrap_or_default();
        let mut all = Endpoints::clone(&endpoints([endpoint(there)]));
        if local_weight.is_some() {
            all = Endpoints::clone(&endpoints([local, endpoint(there)]));
            all.local = [0].into();
        }
        let port = ServicePort {
            endpoints: Arc::new(all),
            external_ips: [[203, 0, 113, 1].into()].into(),
            external_traffic_policy: TrafficPolicy::Local,
            internal_traffic_policy: TrafficPolicy::Local,
            ..service_port("web", [10, 96, 0, 1])
        };
        let packet = Packet {
            to: role.parse().unwrap(),
            protocol: Protocol::Tcp,
            from,
        };
        let behaviour = Behaviour {
            properties: properties(mode),
            ..behaviour(pods())
        };
        let found = decided(&[port].into_iter().collect(), &behaviour, &packet);
        let candidates = found.candidates.iter();
        let candidates: Vec<SocketAddr> = candidates.map(|one| one.address).collect();
        (found.verdict, candidates)
    };
    let (external, cluster) = ("203.0.113.1:80", "10.96.0.1:80");
    let (outside, pod) = (Caller::Outside, Caller::Pod);
    let [here, there] = [here, there].map(SocketAddr::from);
    for (mode, local, to, from, expected) in [
        (Ipvs, None, external, outside, (Forwarded, vec![there])),
        (Ipvs, None, external, pod, (Forwarded, vec![there])),
        (Ipvs, None, cluster, pod, (Refused, vec![])),
        (Ipvs, Some(1), external, outside, (Forwarded, vec![here])),
        (Ipvs, Some(1), external, pod, (Forwarded, vec![here])),
        (Ipvs, Some(0), external, outside, (Refused, vec![])),
        (Nftables, None, external, outside, (Dropped, vec![])),
        (Nftables, None, external, pod, (Forwarded, vec![there])),
        (Userspace, None, external, outside, (Dropped, vec![])),
    ] {
        let found = explained(mode, local, to, from);
        assert_eq!(found, expected, "{mode}: {to} from {from:?}");
    }
}

/// Unlike `kubectl get endpoints`, the explanation says why the packet has nowhere to go.
#[test]
fn a_service_port_that_no_endpoint_serves_says_why() {
    let explained = |change: fn(&mut Endpoint)| {
        let mut one = endpoint(([10, 244, 1, 1], 8080));
        change(&mut one);
        let mut endpoints = Endpoints::clone(&endpoints([one]));
        if !endpoints.all[0].ready {
            endpoints.cluster = Box::default();
            endpoints.all_reachable = Box::default();
        }
        let port = ServicePort {
            endpoints: Arc::new(endpoints),
            external_ips: [[203, 0, 113, 1].into()].into(),
            external_traffic_policy: TrafficPolicy::Local,
            ..service_port("web", [10, 96, 0, 1])
        };
        let packet = Packet {
            to: "203.0.113.1:80".parse().unwrap(),
            protocol: Protocol::Tcp,
            from: Caller::Outside,
        };
        let map = [port].into_iter().collect();
        decided(&map, &behaviour(pods()), &packet)
    };
    for (change, why) in [
        (
            (|one| one.ready = false) as fn(&mut Endpoint),
            "1 not ready",
        ),
        (|_| {}, "1 on another node, the traffic policy is Local"),
    ] {
        let found = explained(change);
        assert_eq!(found.no_endpoints.as_deref(), Some(why), "{found:?}");
        let last = found.steps.last().expect("a step");
        assert!(last.ends_with(why), "{last}");
    }
}
