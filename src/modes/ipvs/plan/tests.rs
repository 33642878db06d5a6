//! Plans of single ServicePorts, in addition to the cases in the recordings.

use std::{sync::Arc, time::Duration};

use ipvs::{FALL_BACK, Forwarding as Method, HASH_PORTS};
use net::PerFamily;
use xtables::{features::Features, rule::Table};

use super::*;
use crate::{
    modes::{Done, Reason},
    services::{Endpoint, Preferences, service_ports},
};

const REMOTE: u8 = 7;
const HERE: u8 = 6;

/// `default/web` on 10.0.0.1:80, with one endpoint here and one elsewhere.
fn port() -> ServicePort {
    let endpoint = |number: u8| Endpoint {
        local: number == HERE,
        weight: number.into(),
        ..service_ports::endpoint(([10, 244, 0, number], 80))
    };
    ServicePort {
        endpoints: service_ports::endpoints([HERE, REMOTE].map(endpoint)),
        ..service_ports::service_port("web", [10, 0, 0, 1])
    }
}

fn preferring(preferences: Preferences) -> ServicePort {
    ServicePort {
        preferences: Some(Arc::new(preferences)),
        ..port()
    }
}

fn node() -> NodeContext {
    let own: IpAddr = [192, 0, 2, 10].into();
    NodeContext {
        scheduler: ROUND_ROBIN.into(),
        addresses: [own].into(),
        node_ports: [own].into(),
        node_ip: PerFamily {
            v4: Some(own),
            v6: None,
        },
        ..NodeContext::default()
    }
}

fn sets(plan: &ServicePlan) -> Vec<Set> {
    plan.members.iter().map(|member| member.set).collect()
}

fn methods(plan: &ServicePlan) -> Vec<Method> {
    let reals = plan.servers.iter().flat_map(|server| &*server.reals);
    reals.map(|real| real.forwarding).collect()
}

#[test]
fn weights_are_the_endpoints_own() {
    let plan = plan(&port(), &node());
    let weights: Vec<u32> = plan.servers[0].reals.iter().map(|r| r.weight).collect();
    assert_eq!(weights, [u32::from(HERE), u32::from(REMOTE)]);
}

#[test]
fn endpoints_that_have_weights_get_their_shares() {
    let weighing = |weights: [u16; 2]| ServicePort {
        endpoints: service_ports::endpoints(weights.into_iter().zip([HERE, REMOTE]).map(
            |(weight, number)| Endpoint {
                weight,
                // The scheduler stays while those with weights are not ready.
                ready: weight == 1,
                ..service_ports::endpoint(([10, 244, 0, number], 80))
            },
        )),
        ..port()
    };
    let (equal, unready) = (weighing([1, 1]), weighing([3, 1]));
    let asking = preferring(Preferences {
        scheduler: Some(ROUND_ROBIN.into()),
        ..Preferences::default()
    });
    let scheduler = |port: &ServicePort, node: &NodeContext| {
        let [server] = &plan(port, node).servers[..] else {
            panic!("one address");
        };
        server.scheduler.to_string()
    };
    let of_all =
        |node: &NodeContext| [&port(), &unready, &equal, &asking].map(|port| scheduler(port, node));
    assert_eq!(of_all(&node()), ["wrr", "wrr", "rr", "rr"]);
    let with_lc = NodeContext {
        scheduler: "lc".into(),
        ..node()
    };
    assert_eq!(of_all(&with_lc), ["lc", "lc", "lc", "rr"]);
    let lacking = NodeContext {
        missing_schedulers: ["wrr".into()].into(),
        ..node()
    };
    assert_eq!(of_all(&lacking), ["rr"; 4]);
    let found = unsupported(&port(), &lacking);
    let [Reason { what, why, done }] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(*what, Preferences::SCHEDULER);
    assert_eq!(*done, Done::Instead(ROUND_ROBIN.into()));
    assert!(
        why.contains("ip_vs_wrr") && why.contains("ignores weights"),
        "{why}"
    );
    assert_eq!(unsupported(&equal, &lacking), []);
}

#[test]
fn clients_of_dh_are_led_past_endpoints_of_weight_0() {
    let weighing = |scheduler: &str, weights: [u16; 2]| {
        let endpoints = [HERE, REMOTE].into_iter().zip(weights);
        let endpoints = endpoints.map(|(number, weight)| Endpoint {
            weight,
            ..service_ports::endpoint(([10, 244, 0, number], 80))
        });
        let port = ServicePort {
            endpoints: service_ports::endpoints(endpoints),
            ..preferring(Preferences {
                scheduler: Some(scheduler.into()),
                ..Preferences::default()
            })
        };
        let servers = plan(&port, &node()).servers;
        servers[0]
            .reals
            .iter()
            .map(|real| real.weight)
            .collect::<Vec<_>>()
    };
    assert_eq!(weighing("dh", [0, 1]), [1]);
    assert_eq!(weighing("dh", [0, 0]), [0, 0], "all are drained");
    assert_eq!(weighing("sh", [0, 1]), [0, 1], "it falls back");
}

#[test]
fn only_schedulers_are_taken_from_annotations() {
    let port = preferring(Preferences {
        scheduler: Some("ftp".into()),
        ..Preferences::default()
    });
    let default = &node().scheduler;
    assert!(!may_be_tried(&asked_scheduler(&port, default), default));
    assert_eq!(&*plan(&port, &node()).servers[0].scheduler, ROUND_ROBIN);
    let found = unsupported(&port, &node());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].why.contains("neither a scheduler"), "{found:?}");
    let named_by_the_operator = NodeContext {
        scheduler: "ftp".into(),
        ..node()
    };
    let plan = plan(&port, &named_by_the_operator);
    assert_eq!(&*plan.servers[0].scheduler, "ftp");
}

#[test]
fn a_scheduler_that_the_kernel_lacks_is_reported() {
    let port = preferring(Preferences {
        scheduler: Some("mh".into()),
        ..Preferences::default()
    });
    let has = plan(&port, &node());
    assert_eq!(&*has.servers[0].scheduler, "mh");
    assert!(has.servers[0].hashes_ports() && unsupported(&port, &node()).is_empty());
    let lacking = NodeContext {
        missing_schedulers: ["mh".into()].into(),
        ..node()
    };
    let lacks = plan(&port, &lacking);
    assert_eq!(&*lacks.servers[0].scheduler, ROUND_ROBIN);
    let found = unsupported(&port, &lacking);
    let [Reason { what, why, done }] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(*what, Preferences::SCHEDULER);
    assert_eq!(*done, Done::Instead(ROUND_ROBIN.into()));
    assert!(why.contains("ip_vs_mh"), "{why}");
}

#[test]
fn clients_are_led_past_a_real_server_that_drains_whatever_the_scheduler() {
    let limit = Some(Duration::from_secs(9));
    for (scheduler, flags, drains_for) in [
        ("rr", 0, limit),
        ("sh", FALL_BACK, limit),
        ("mh", FALL_BACK | HASH_PORTS, limit),
        ("dh", 0, Some(Duration::ZERO)),
    ] {
        let server = VirtualServer {
            scheduler: scheduler.into(),
            ..plan(&port(), &node()).servers[0].clone()
        };
        assert_eq!(server.to_kernel().flags, flags, "{scheduler}");
        assert_eq!(server.drain_limit(limit), drains_for, "{scheduler}");
    }
}

#[test]
fn direct_answers_only_where_they_can_be() {
    let forwarding = |forwarding| {
        preferring(Preferences {
            forwarding: Some(forwarding),
            ..Preferences::default()
        })
    };
    let dr = forwarding(Forwarding::Dr);
    let there = plan(&dr, &node());
    assert_eq!(methods(&there), [Method::Masquerade, Method::DirectRoute]);
    assert!(sets(&there).contains(&Set::Direct) && unsupported(&dr, &node()).is_empty());
    let elsewhere = ServicePort { port: 8080, ..dr };
    let nat = plan(&elsewhere, &node());
    assert_eq!(methods(&nat), [Method::Masquerade; 2]);
    assert!(!sets(&nat).contains(&Set::Direct));
    let found = unsupported(&elsewhere, &node());
    assert_eq!(found[0].what, Preferences::FORWARDING);

    let full = plan(&forwarding(Forwarding::FullNat), &node());
    assert_eq!(methods(&full), [Method::Masquerade; 2]);
    assert!(sets(&full).contains(&Set::FullNat));
    let tunnel = plan(&forwarding(Forwarding::Tunnel), &node());
    assert_eq!(methods(&tunnel), [Method::Masquerade, Method::Tunnel]);
}

#[test]
fn source_ranges_decide_about_the_node_too() {
    let guarded = |range: &str| ServicePort {
        load_balancer_ips: [IpAddr::from([203, 0, 113, 1])].into(),
        load_balancer_source_ranges: [range.parse().expect("a network")].into(),
        ..port()
    };
    let within = sets(&plan(&guarded("192.0.2.0/24"), &node()));
    assert!(within.contains(&Set::SourceIp) && !within.contains(&Set::NotFromNode));
    let without = sets(&plan(&guarded("198.51.100.0/24"), &node()));
    assert!(!without.contains(&Set::SourceIp) && without.contains(&Set::NotFromNode));
    let everyone = plan(&guarded("0.0.0.0/0"), &node());
    let halves = everyone.members.iter().filter(|m| m.set == Set::SourceCidr);
    assert_eq!(halves.count(), 2);
}

#[test]
fn an_address_of_the_node_is_served_and_not_taken() {
    let own = ServicePort {
        external_ips: [IpAddr::from([192, 0, 2, 10])].into(),
        ..port()
    };
    let plan = plan(&own, &node());
    assert_eq!(plan.servers.len(), 2);
    assert_eq!(plan.addresses, [own.cluster_ip.unwrap()]);
}

#[test]
fn the_internal_policy_never_falls_back() {
    let mut nowhere = ServicePort {
        internal_traffic_policy: TrafficPolicy::Local,
        external_traffic_policy: TrafficPolicy::Local,
        node_port: Some(30_000),
        ..port()
    };
    Arc::make_mut(&mut nowhere.endpoints).local = Box::default();
    let plan = plan(&nowhere, &node());
    let reals: Vec<usize> = plan.servers.iter().map(|s| s.reals.len()).collect();
    assert_eq!(reals, [0, 2], "cluster IP, node port");
}

#[test]
fn the_node_calls_from_an_address_of_a_service_for_itself() {
    let non_empty: NonEmptySets = [Set::NotFromNode, Set::SourceCidr].into_iter().collect();
    let rules = rules(Family::V4, &node(), &Features::all(), non_empty);
    let chain = rules
        .chains
        .iter()
        .find(|chain| chain.table == Table::Mangle);
    let rules: Vec<String> = chain
        .expect("it is there")
        .contents
        .rules()
        .iter()
        .map(|rule| rule.words(Family::V4).to_string())
        .map(|words| {
            words
                .split_once("--match-set ")
                .expect("a set")
                .1
                .to_owned()
        })
        .collect();
    assert_eq!(
        rules,
        [
            "TRIPOD-NOT-FROM-NODE dst,dst -m set --match-set KUBE-IPVS-IPS src -j DROP",
            "KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN",
            "TRIPOD-NOT-FROM-NODE dst,dst -j DROP",
        ]
    );
}
