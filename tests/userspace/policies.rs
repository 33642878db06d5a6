//! A Service's settings for its callers and its endpoints.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::{SOON, comes_to_reach};
use crate::lab::{EndpointChoice, Host, Lab, Service, ask, eventually, get, udp, udp_ask, udp_say};

on_each_capture!(
    internal_policy_local_keeps_to_this_node,
    external_policy_local_is_for_callers_from_outside,
    without_local_endpoints_only_cluster_local_clients_are_served,
    source_ranges_guard_the_load_balancer_address_alone,
    source_ranges_know_the_node_by_its_address,
    source_ranges_change_and_may_be_too_many_to_be_silent,
    zone_hints_keep_traffic_in_the_zone_of_the_node,
    node_hints_keep_traffic_on_the_node,
    terminating_endpoints_serve_when_none_is_ready,
    health_check_ports_count_local_endpoints,
);

const ALL: [&str; 3] = ["a", "b", "c"];
/// One question and its answer.
type Call = fn(&Host, SocketAddr) -> std::io::Result<String>;

const PROTOCOLS: [(&str, Call); 2] = [("TCP", ask), ("UDP", udp_ask)];

/// Checks that exactly `names` answer. Round robin reaches each of three endpoints long
/// before the last of these calls.
fn answered_by(names: &[&str], from: &Host, to: SocketAddr) {
    for (protocol, call) in PROTOCOLS {
        let what = format!("{protocol} from {} to {to}", from.name());
        let answers: BTreeSet<String> = (0..24)
            .map(|_| call(from, to).unwrap_or_else(|error| panic!("{what}: {error}")))
            .collect();
        assert!(
            answers.iter().eq(names),
            "{what}: {answers:?}, not {names:?}"
        );
    }
}

/// How long a datagram that is kept out must go without an answer: far longer than other answers
/// take.
const SILENCE: Duration = Duration::from_millis(500);

/// Checks that there is no answer: a connection is neither accepted nor refused.
fn turned_away(from: &Host, to: SocketAddr) {
    let what = format!("from {} to {to}", from.name());
    let heard = from.enter(|| TcpStream::connect_timeout(&to, SILENCE));
    let kind = heard.map_err(|error| error.kind()).err();
    assert_eq!(kind, Some(ErrorKind::TimedOut), "TCP {what}");
    let socket = udp(from, to).expect("a socket");
    socket
        .set_read_timeout(Some(SILENCE))
        .expect("a time to wait");
    let answer = udp_say(&socket, "name").map_err(|error| error.kind());
    assert_eq!(answer, Err(ErrorKind::WouldBlock), "UDP {what}");
}

/// Endpoint `a` on this node, `b` and `c` elsewhere.
fn one_here() -> [EndpointChoice; 3] {
    [("a", "node"), ("b", "other"), ("c", "other")]
        .map(|(name, node)| EndpointChoice::ready(name).on(node))
}

fn all_elsewhere() -> [EndpointChoice; 3] {
    ALL.map(|name| EndpointChoice::ready(name).on("other"))
}

fn everywhere(number: u8) -> Service {
    Service::new(&format!("web-{number}"), number)
        .with_node_port()
        .with_external_ip()
        .with_load_balancer()
}

fn node_ports(lab: &Lab, web: &Service) -> [SocketAddr; 2] {
    lab.node
        .addresses
        .map(|ip| SocketAddr::new(ip, web.node_port()))
}

/// The addresses for callers from outside, to which `externalTrafficPolicy` applies.
fn outer(lab: &Lab, web: &Service) -> Vec<SocketAddr> {
    [node_ports(lab, web), web.external(), web.ingress()].concat()
}

/// A host's addresses as source ranges.
fn ranges(of: &Host) -> Value {
    let [v4, v6] = of.addresses;
    json!([format!("{v4}/32"), format!("{v6}/128")])
}

fn node_in_zone(lab: &Lab, zone: &str) {
    let labels = json!({"topology.kubernetes.io/zone": zone});
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "node", "labels": labels},
    });
    lab.write("node.json", &node.to_string());
}

fn internal_policy_local_keeps_to_this_node(lab: &mut Lab) {
    let [here, elsewhere] =
        [10, 11].map(|number| everywhere(number).spec("internalTrafficPolicy", "Local"));
    lab.three_backends().publish_endpoints(&here, &one_here());
    lab.publish_endpoints(&elsewhere, &all_elsewhere());
    let _tripod = lab.tripod();
    for from in lab.cluster_clients() {
        for to in here.cluster() {
            answered_by(&["a"], from, to);
        }
        for to in elsewhere.cluster() {
            let kinds = PROTOCOLS.map(|(_, call)| call(from, to).map_err(|error| error.kind()));
            let refused = Err(ErrorKind::ConnectionRefused);
            assert_eq!(kinds, [refused.clone(), refused], "{} {to}", from.name());
        }
    }
    for to in outer(lab, &here) {
        answered_by(&ALL, &lab.outside, to);
    }
}

fn external_policy_local_is_for_callers_from_outside(lab: &mut Lab) {
    let web = everywhere(10).spec("externalTrafficPolicy", "Local");
    lab.three_backends().publish_endpoints(&web, &one_here());
    let _tripod = lab.tripod();
    for to in outer(lab, &web) {
        answered_by(&["a"], &lab.outside, to);
    }
    for from in lab.cluster_clients() {
        for to in outer(lab, &web).into_iter().chain(web.cluster()) {
            answered_by(&ALL, from, to);
        }
    }
}

fn without_local_endpoints_only_cluster_local_clients_are_served(lab: &mut Lab) {
    let web = everywhere(10).spec("externalTrafficPolicy", "Local");
    lab.three_backends()
        .publish_endpoints(&web, &all_elsewhere());
    let _tripod = lab.tripod();
    for to in outer(lab, &web) {
        turned_away(&lab.outside, to);
        for from in lab.cluster_clients() {
            answered_by(&ALL, from, to);
        }
    }
    lab.publish_endpoints(&web, &one_here());
    for to in outer(lab, &web) {
        comes_to_reach("an endpoint came here", &["a"], || ask(&lab.outside, to));
        answered_by(&["a"], &lab.outside, to);
    }
}

fn source_ranges_guard_the_load_balancer_address_alone(lab: &mut Lab) {
    lab.three_backends();
    let guarded = |number, ranges: Value| {
        let web = everywhere(number).spec("loadBalancerSourceRanges", ranges);
        lab.publish_all(&web);
        web
    };
    let for_outside = guarded(10, ranges(&lab.outside));
    let for_pods = guarded(11, json!(["10.244.0.0/24", "fd00:244::/64"]));
    let _tripod = lab.tripod();
    for (web, allowed, other) in [
        (&for_outside, &lab.outside, &lab.client),
        (&for_pods, &lab.client, &lab.outside),
    ] {
        for to in web.ingress() {
            answered_by(&ALL, allowed, to);
            turned_away(other, to);
        }
        for to in [web.external(), node_ports(lab, web)].concat() {
            answered_by(&ALL, other, to);
        }
        for to in web.cluster() {
            answered_by(&ALL, &lab.client, to);
        }
    }
}

fn source_ranges_know_the_node_by_its_address(lab: &mut Lab) {
    let with_node = everywhere(10).spec("loadBalancerSourceRanges", ranges(&lab.node));
    let without = everywhere(11).spec("loadBalancerSourceRanges", ranges(&lab.outside));
    lab.three_backends().publish_all(&with_node);
    lab.publish_all(&without);
    let _tripod = lab.tripod();
    for to in with_node.ingress() {
        answered_by(&ALL, &lab.node, to);
    }
    for to in without.ingress() {
        turned_away(&lab.node, to);
    }
}

fn source_ranges_change_and_may_be_too_many_to_be_silent(lab: &mut Lab) {
    let web = |ranges| everywhere(10).spec("loadBalancerSourceRanges", ranges);
    lab.three_backends();
    lab.publish_all(&web(ranges(&lab.client)));
    let tripod = lab.tripod();
    let ingress = web(json!([])).ingress();
    for to in ingress {
        turned_away(&lab.outside, to);
    }
    lab.publish_all(&web(ranges(&lab.outside)));
    for to in ingress {
        comes_to_reach("ranges that change", &ALL, || ask(&lab.outside, to));
        turned_away(&lab.client, to);
    }
    assert_eq!(tripod.logged(&["optmem_max"]), 0);
    let many: Vec<_> = (0..2500)
        .flat_map(|n| {
            let (high, low) = (n / 256, n % 256);
            [format!("10.{high}.{low}.1/32"), format!("fd00:{n:x}::/64")]
        })
        .collect();
    lab.publish_all(&web(json!(many)));
    for to in ingress {
        eventually("who may not call is reset", SOON, || {
            match ask(&lab.outside, to).map_err(|error| error.kind()) {
                Err(ErrorKind::ConnectionReset) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
    }
    tripod.logs_once(&["optmem_max"]);
    lab.publish_all(&web(json!([])));
    for to in ingress {
        comes_to_reach("no ranges", &ALL, || ask(&lab.client, to));
    }
}

fn zone_hints_keep_traffic_in_the_zone_of_the_node(lab: &mut Lab) {
    let (hinted, half_hinted) = (Service::new("hinted", 10), Service::new("half-hinted", 11));
    let mut endpoints = [("a", "east"), ("b", "west"), ("c", "west")]
        .map(|(name, zone)| EndpointChoice::ready(name).hint("forZones", zone));
    lab.three_backends().publish_endpoints(&hinted, &endpoints);
    endpoints[2] = EndpointChoice::ready("c");
    lab.publish_endpoints(&half_hinted, &endpoints);
    node_in_zone(lab, "east");
    let _tripod = lab.tripod();
    for to in hinted.cluster() {
        answered_by(&["a"], &lab.client, to);
    }
    for to in half_hinted.cluster() {
        answered_by(&ALL, &lab.client, to);
    }
    for (zone, names) in [("west", &["b", "c"][..]), ("north", &ALL)] {
        node_in_zone(lab, zone);
        for to in hinted.cluster() {
            eventually(&format!("the node is in {zone}"), SOON, || {
                let answers: BTreeSet<_> = (0..24).flat_map(|_| ask(&lab.client, to)).collect();
                if answers.iter().eq(names) {
                    Ok(())
                } else {
                    Err(format!("{answers:?}"))
                }
            });
        }
    }
}

fn node_hints_keep_traffic_on_the_node(lab: &mut Lab) {
    let web = Service::new("web", 10);
    let endpoints = one_here().map(|endpoint| {
        let node = if endpoint.name == "a" {
            "node"
        } else {
            "other"
        };
        endpoint.hint("forNodes", node).hint("forZones", "east")
    });
    lab.three_backends().publish_endpoints(&web, &endpoints);
    node_in_zone(lab, "east");
    let _tripod = lab.tripod();
    for to in web.cluster() {
        answered_by(&["a"], &lab.client, to);
    }
}

fn terminating_endpoints_serve_when_none_is_ready(lab: &mut Lab) {
    lab.three_backends();
    let (ready, unready) = (EndpointChoice::ready, EndpointChoice::unready);
    let serving = |name| EndpointChoice::terminating(name, true);
    let silent = |name| EndpointChoice::terminating(name, false);
    let cases = [
        (10, [ready("a"), serving("b"), silent("c")], &["a"][..]),
        (11, [serving("a"), serving("b"), silent("c")], &["a", "b"]),
        (12, [unready("a"), serving("b"), silent("c")], &["b"]),
    ]
    .map(|(number, endpoints, names)| {
        let web = everywhere(number).spec("externalTrafficPolicy", "Local");
        lab.publish_endpoints(&web, &endpoints.map(|endpoint| endpoint.on("node")));
        (web, names)
    });
    // Ready endpoints elsewhere do not help a policy that is limited to this node.
    let local = everywhere(13).spec("externalTrafficPolicy", "Local");
    let endpoints = [serving("a").on("node"), ready("b").on("other")];
    lab.publish_endpoints(&local, &endpoints);
    let _tripod = lab.tripod();
    for (web, names) in cases {
        for to in web.cluster() {
            answered_by(names, &lab.client, to);
        }
        for to in outer(lab, &web) {
            answered_by(names, &lab.outside, to);
        }
    }
    for to in outer(lab, &local) {
        answered_by(&["a"], &lab.outside, to);
        answered_by(&["b"], &lab.client, to);
    }
}

fn health_check_ports_count_local_endpoints(lab: &mut Lab) {
    let web = everywhere(10)
        .spec("externalTrafficPolicy", "Local")
        .spec("healthCheckNodePort", 31_000);
    lab.three_backends().publish_endpoints(&web, &one_here());
    let _tripod = lab.tripod();
    let two_here = ["a", "b"].map(|name| EndpointChoice::ready(name).on("node"));
    for (endpoints, status, count) in [
        (&one_here()[..], 200, 1),
        (&two_here, 200, 2),
        (&all_elsewhere(), 503, 0),
        (&one_here(), 200, 1),
    ] {
        lab.publish_endpoints(&web, endpoints);
        for ip in lab.node.addresses {
            let at = SocketAddr::new(ip, 31_000);
            let what = format!("{at} says {status} and {count}");
            eventually(&what, SOON, || {
                let answer = get(&lab.outside, at, "/").map_err(|error| error.to_string())?;
                let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
                let body: Value = serde_json::from_str(body).map_err(|_| answer.clone())?;
                let is_answered = head.starts_with(&format!("HTTP/1.1 {status} "))
                    && body["localEndpoints"] == count
                    && body["service"] == json!({"namespace": "default", "name": "web-10"});
                if is_answered { Ok(()) } else { Err(answer) }
            });
        }
    }
}
