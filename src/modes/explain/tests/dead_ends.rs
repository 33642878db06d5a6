//! Endpoints that have the address of a Service, or did not answer lately.

use std::net::SocketAddr;

use hashbrown::HashSet;

use super::*;

/// Explains packets to a Service with these endpoints, where others have 10.96.0.1:80 as cluster
/// IP, and 203.0.113.1:80 as external IP.
fn to_endpoints(mode: ModeName, all: &[&str], out: &[&str]) -> Explanation {
    on_a_node(mode, all, out, |_| {})
}

/// The same, where `change` makes the node differ.
fn on_a_node(
    mode: ModeName,
    all: &[&str],
    out: &[&str],
    change: impl FnOnce(&mut Behaviour),
) -> Explanation {
    let addresses = |all: &[&str]| -> Vec<SocketAddr> {
        let all = all.iter().map(|address| address.parse().expect("table"));
        all.collect()
    };
    let asked = ServicePort {
        external_ips: [ip("203.0.113.2")].into(),
        endpoints: endpoints(addresses(all).into_iter().map(endpoint)),
        ..service_port("other", [10, 96, 0, 2])
    };
    let web = ServicePort {
        external_ips: [ip("203.0.113.1")].into(),
        node_port: Some(30_080),
        ..service_port("web", [10, 96, 0, 1])
    };
    let map = [asked, web].into_iter().collect();
    let packet = Packet {
        to: "10.96.0.2:80".parse().expect("an address"),
        protocol: Protocol::Tcp,
        from: Caller::Pod,
    };
    let mut behaviour = Behaviour {
        properties: properties(mode),
        other_ports: match mode {
            ModeName::Iptables => OtherPorts::PassOn,
            ModeName::Ipvs => OtherPorts::RefusedEverywhere,
            _ => OtherPorts::RefusedAtClusterIps,
        },
        ..behaviour(pods())
    };
    change(&mut behaviour);
    let ejected: HashSet<SocketAddr> = addresses(out).into_iter().collect();
    let selection = |_: &ServicePort| Selection::Weighted;
    decide(&map, &behaviour, &selection, &|_| ejected.clone(), &packet)
}

#[test]
fn an_endpoint_that_is_the_address_of_a_service_is_not_used() {
    use ModeName::{Iptables, Ipvs, Nftables, Userspace};
    let [cluster_ip, external_ip, good] = ["10.96.0.1:80", "203.0.113.1:80", "10.244.0.1:80"];
    let own_external_ip = "203.0.113.2:80";
    for (mode, endpoints, verdict, candidates) in [
        (Userspace, &[cluster_ip][..], Verdict::Refused, 0),
        (Userspace, &[external_ip], Verdict::Forwarded, 1),
        (Userspace, &["192.0.2.1:30080"], Verdict::Refused, 0),
        (Userspace, &["192.0.2.7:30080"], Verdict::Forwarded, 1),
        (Userspace, &[cluster_ip, good], Verdict::Forwarded, 1),
        (Nftables, &[cluster_ip], Verdict::Refused, 0),
        (Iptables, &[cluster_ip], Verdict::NotServed, 0),
        (Ipvs, &[external_ip], Verdict::Refused, 0),
        // A load balancer may be there.
        (Nftables, &[external_ip], Verdict::Forwarded, 1),
        (Nftables, &[own_external_ip], Verdict::Forwarded, 1),
        // What listens on the node gets it.
        (Nftables, &["192.0.2.1:30080"], Verdict::Forwarded, 1),
        // The kernel sends it its share.
        (Nftables, &[cluster_ip, good], Verdict::Forwarded, 2),
    ] {
        let explanation = to_endpoints(mode, endpoints, &[]);
        let steps = &explanation.steps;
        assert_eq!(
            explanation.verdict, verdict,
            "{mode} {endpoints:?} {steps:?}"
        );
        assert_eq!(
            explanation.candidates.len(),
            candidates,
            "{mode} {endpoints:?}"
        );
        let is_named = steps
            .iter()
            .any(|step| step.contains("address of") || step.contains("its address is"));
        assert_eq!(
            is_named,
            ![["192.0.2.7:30080"], [own_external_ip]].contains(&[endpoints[0]]),
            "{steps:?}"
        );
        assert_eq!(
            explanation.no_endpoints.is_some(),
            candidates == 0,
            "{mode}"
        );
    }
    let explanation = to_endpoints(Userspace, &[cluster_ip, good], &[]);
    let [(address, why)] = &*explanation.passed_over else {
        panic!("{explanation:?}");
    };
    assert_eq!(address.to_string(), cluster_ip);
    assert!(
        why.starts_with("its address is one of Service default/web"),
        "{why}"
    );
}

#[test]
fn an_endpoint_that_is_an_external_ip_is_not_used_where_marks_do_not_pass() {
    let verdict = |change: fn(&mut Behaviour)| {
        on_a_node(ModeName::Userspace, &["203.0.113.1:80"], &[], change).verdict
    };
    assert_eq!(verdict(|_| {}), Verdict::Forwarded);
    let unmarked = verdict(|behaviour| behaviour.rules.pass_marked = false);
    assert_eq!(unmarked, Verdict::Refused);
    let own_with_local_capture = verdict(|behaviour| {
        behaviour.own.push(ip("203.0.113.1"));
        behaviour.has_service_addresses = true;
    });
    assert_eq!(own_with_local_capture, Verdict::Refused);
}

#[test]
fn an_ejected_endpoint_takes_no_connections_while_others_do() {
    let [one, other] = ["10.244.0.1:80", "10.244.0.2:80"];
    let of = |out: &[&str]| to_endpoints(ModeName::Userspace, &[one, other], out);
    let explanation = of(&[one]);
    let candidates: Vec<_> = explanation
        .candidates
        .iter()
        .map(|c| (c.address.to_string(), c.share))
        .collect();
    assert_eq!(candidates, [(other.to_owned(), Some(1.0))]);
    assert_eq!(
        explanation.steps.last().expect("a step"),
        "1 endpoint takes connections"
    );
    assert_eq!(explanation.passed_over.len(), 1);
    let all = of(&[one, other]);
    assert_eq!(
        (all.candidates.len(), all.passed_over.len()),
        (2, 0),
        "they are all there is"
    );
}
