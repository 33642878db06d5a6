//! Policies × endpoints × callers: the corners that kube-proxy's own tests
//! turn around (`pkg/proxy/iptables/proxier_test.go`).

use net::Protocol;

use super::{
    walk::{Outcome, Packet, Ruleset},
    world::{NODE_IP, endpoints, exposed, net, options, service},
};
use crate::{
    modes::iptables::plan::{DetectLocal, Options},
    services::{ServicePort, TrafficPolicy},
};

pub(super) const POD: &str = "10.244.0.9";
pub(super) const OUTSIDE: &str = "192.0.2.20";
pub(super) const HERE: &str = "10.244.0.6:8080";
const THERE: &str = "10.244.1.7:8080";

/// Expected outcome of a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// Any of these endpoints, and no other, with the caller's own address.
    Kept(&'static [&'static str]),
    /// The same with the node's address.
    Masqueraded(&'static [&'static str]),
    Dropped,
    Rejected,
    Passed,
}
use Expect::*;

pub(super) fn check(
    what: &str,
    port: &ServicePort,
    options: &Options,
    packet: &Packet,
    expect: Expect,
) {
    let outcomes: Vec<Outcome> = Ruleset::new([port], options)
        .outcomes(packet)
        .into_keys()
        .collect();
    let to = |endpoints: &[&str], masquerade| {
        let to = endpoints.iter();
        to.map(|to| Outcome::To(to.parse().expect("an endpoint"), masquerade))
            .collect()
    };
    let expected: Vec<Outcome> = match expect {
        Kept(endpoints) => to(endpoints, false),
        Masqueraded(endpoints) => to(endpoints, true),
        Dropped => vec![Outcome::Dropped],
        Rejected => vec![Outcome::Rejected],
        Passed => vec![Outcome::Passed],
    };
    assert_eq!(outcomes, expected, "{what}: {packet:?}");
}

const BOTH: &[&str] = &[HERE, THERE];
const CLUSTER_IP: (&str, u16) = ("10.96.0.1", 80);
const EXTERNAL: (&str, u16) = ("198.51.100.1", 80);
const BALANCER: (&str, u16) = ("203.0.113.1", 80);
const NODE_PORT: (&str, u16) = (NODE_IP, 30080);
const LOCALHOST: (&str, u16) = ("127.0.0.1", 30080);

/// Endpoints or source ranges, caller, called, outcome.
type Case = (
    &'static [&'static str],
    &'static str,
    (&'static str, u16),
    Expect,
);

/// Checks the outcome of each case under an internal and an external policy.
fn check_policies(internal: TrafficPolicy, external: TrafficPolicy, cases: &[Case]) {
    for (at, from, (to, number), expect) in cases {
        let at: Vec<_> = at.iter().map(|at| (*at, *at == HERE, 1)).collect();
        let port = ServicePort {
            internal_traffic_policy: internal,
            external_traffic_policy: external,
            endpoints: endpoints(&at),
            ..exposed("web")
        };
        let what = format!("internal {internal:?}, external {external:?}, {at:?}");
        let packet = Packet::new(from, to, *number);
        check(&what, &port, &options(), &packet, *expect);
    }
}

#[test]
fn both_policies_are_cluster() {
    use TrafficPolicy::Cluster;
    check_policies(
        Cluster,
        Cluster,
        &[
            (BOTH, POD, CLUSTER_IP, Kept(BOTH)),
            (BOTH, OUTSIDE, CLUSTER_IP, Masqueraded(BOTH)),
            (BOTH, NODE_IP, CLUSTER_IP, Masqueraded(BOTH)),
            (BOTH, OUTSIDE, EXTERNAL, Masqueraded(BOTH)),
            (BOTH, POD, BALANCER, Masqueraded(BOTH)),
            (BOTH, OUTSIDE, NODE_PORT, Masqueraded(BOTH)),
            (BOTH, POD, NODE_PORT, Masqueraded(BOTH)),
            (BOTH, "127.0.0.1", LOCALHOST, Masqueraded(BOTH)),
            (BOTH, OUTSIDE, ("10.96.0.1", 81), Passed),
            (BOTH, OUTSIDE, ("10.96.0.2", 80), Passed),
            (BOTH, OUTSIDE, (NODE_IP, 30081), Passed),
            // The same node port behind another node's address.
            (BOTH, POD, ("192.168.77.3", 30080), Passed),
            // A pod that gets itself must see an address it can answer through us.
            (&[HERE], "10.244.0.6", CLUSTER_IP, Masqueraded(&[HERE])),
            // No Service has endpoints.
            (&[], POD, CLUSTER_IP, Rejected),
            (&[], OUTSIDE, EXTERNAL, Rejected),
            (&[], NODE_IP, CLUSTER_IP, Rejected),
            (&[], OUTSIDE, BALANCER, Rejected),
            (&[], OUTSIDE, NODE_PORT, Rejected),
        ],
    );
}

#[test]
fn a_policy_is_local() {
    use TrafficPolicy::{Cluster, Local};
    check_policies(
        Local,
        Local,
        &[
            (&[], OUTSIDE, NODE_PORT, Rejected),
            (&[], POD, CLUSTER_IP, Rejected),
        ],
    );
    check_policies(
        Local,
        Cluster,
        &[
            // The internal policy concerns cluster IPs alone.
            (BOTH, POD, CLUSTER_IP, Kept(&[HERE])),
            (BOTH, OUTSIDE, CLUSTER_IP, Masqueraded(&[HERE])),
            (&[THERE], POD, CLUSTER_IP, Dropped),
            (&[THERE], OUTSIDE, BALANCER, Masqueraded(&[THERE])),
        ],
    );
    check_policies(
        Cluster,
        Local,
        &[
            // External policy: pods and the node are not outside.
            (BOTH, OUTSIDE, BALANCER, Kept(&[HERE])),
            (BOTH, OUTSIDE, NODE_PORT, Kept(&[HERE])),
            (BOTH, POD, BALANCER, Kept(BOTH)),
            (BOTH, POD, NODE_PORT, Kept(BOTH)),
            (BOTH, NODE_IP, BALANCER, Masqueraded(BOTH)),
            (BOTH, OUTSIDE, CLUSTER_IP, Masqueraded(BOTH)),
            (&[THERE], OUTSIDE, BALANCER, Dropped),
            (&[THERE], OUTSIDE, NODE_PORT, Dropped),
            (&[THERE], POD, BALANCER, Kept(&[THERE])),
            (&[THERE], NODE_IP, NODE_PORT, Masqueraded(&[THERE])),
        ],
    );
    check_policies(
        Local,
        Local,
        &[
            // Each policy concerns its own addresses.
            (BOTH, POD, BALANCER, Kept(BOTH)),
            (&[THERE], POD, CLUSTER_IP, Dropped),
        ],
    );
}

#[test]
fn source_ranges() {
    let with = |ranges: &[&str]| ServicePort {
        load_balancer_source_ranges: ranges.iter().map(|range| net(range)).collect(),
        endpoints: endpoints(&[(HERE, true, 1)]),
        ..exposed("web")
    };
    let served = Masqueraded(&[HERE]);
    let balancer = BALANCER.0;
    let cases: [Case; 8] = [
        (&["192.0.2.0/24"], OUTSIDE, BALANCER, served),
        (&["192.0.3.0/24"], OUTSIDE, BALANCER, Dropped),
        (
            &["192.0.3.0/24", "192.0.2.20/32"],
            OUTSIDE,
            BALANCER,
            served,
        ),
        (&["0.0.0.0/0"], OUTSIDE, BALANCER, served),
        // They are about load balancers only.
        (&["192.0.3.0/24"], OUTSIDE, EXTERNAL, served),
        (&["192.0.3.0/24"], OUTSIDE, NODE_PORT, served),
        (&["192.0.3.0/24"], POD, BALANCER, Dropped),
        // A node within the range calls the balancer's address from itself.
        (&["192.168.77.0/24"], balancer, BALANCER, served),
    ];
    for (ranges, from, (to, number), expect) in cases {
        let what = format!("{ranges:?}");
        let packet = Packet::new(from, to, number);
        check(&what, &with(ranges), &options(), &packet, expect);
    }
}

#[test]
fn telling_pods_from_others() {
    let port = ServicePort {
        external_traffic_policy: TrafficPolicy::Local,
        endpoints: endpoints(&[(HERE, true, 1), (THERE, false, 1)]),
        ..exposed("web")
    };
    let call = |through, to| Packet {
        through,
        ..Packet::new("10.9.9.9", to, 80)
    };
    let from_link = |through| call(through, CLUSTER_IP.0);
    let to_balancer = |through| call(through, BALANCER.0);
    let bridge = || DetectLocal::Through("cbr0".to_owned());
    let prefix = || DetectLocal::Through("cali+".to_owned());
    let unknown = || DetectLocal::Unknown;
    let cases = [
        (bridge(), from_link("cbr0"), Kept(BOTH)),
        (bridge(), from_link("cbr01"), Masqueraded(BOTH)),
        (bridge(), to_balancer("cbr0"), Kept(BOTH)),
        (bridge(), to_balancer("eth0"), Kept(&[HERE])),
        (prefix(), from_link("cali12"), Kept(BOTH)),
        (prefix(), from_link("eth0"), Masqueraded(BOTH)),
        (unknown(), from_link("eth0"), Kept(BOTH)),
        (unknown(), to_balancer("cbr0"), Kept(&[HERE])),
    ];
    for (detect_local, packet, expect) in cases {
        let what = format!("{detect_local:?}");
        let options = Options {
            detect_local,
            ..options()
        };
        check(&what, &port, &options, &packet, expect);
    }
    let all = Options {
        masquerade_all: true,
        ..options()
    };
    let packet = Packet::new(POD, CLUSTER_IP.0, 80);
    check("all", &port, &all, &packet, Masqueraded(BOTH));
}

#[test]
fn each_protocol_is_its_own() {
    for protocol in Protocol::ALL {
        let mut port = ServicePort {
            endpoints: endpoints(&[(HERE, true, 1)]),
            ..service("web")
        };
        port.name = port.name.over(protocol);
        for called in Protocol::ALL {
            let packet = Packet {
                protocol: called,
                ..Packet::new(POD, "10.96.0.1", 80)
            };
            let expect = if called == protocol {
                Kept(&[HERE])
            } else {
                Passed
            };
            check(&format!("{protocol}"), &port, &options(), &packet, expect);
        }
    }
}

#[test]
fn endpoints_of_weight_0_are_as_gone() {
    use TrafficPolicy::{Cluster, Local};
    let cases: [(TrafficPolicy, u16, u16, Expect); 6] = [
        (Cluster, 1, 0, Kept(&[HERE])),
        (Cluster, 0, 1, Kept(&[THERE])),
        (Cluster, 0, 0, Rejected),
        (Local, 1, 0, Kept(&[HERE])),
        (Local, 0, 1, Dropped),
        (Local, 0, 0, Rejected),
    ];
    for (policy, here, there, expect) in cases {
        let port = ServicePort {
            internal_traffic_policy: policy,
            endpoints: endpoints(&[(HERE, true, here), (THERE, false, there)]),
            ..service("web")
        };
        let packet = Packet::new(POD, "10.96.0.1", 80);
        let what = format!("{policy:?} {here} {there}");
        check(&what, &port, &options(), &packet, expect);
    }
}
