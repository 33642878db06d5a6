//! Compares answers of a running Tripod with objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU32,
    sync::Arc,
};

use super::*;
use crate::{
    services::{Preferences, service_ports::port_name},
    status_api::{Candidate, Listed, VERSION},
    test::declared::{Endpoint, EndpointState, Frontend},
};

/// `default/web`, with a ready endpoint on `a` and one on `b`, and one on `a` that is not
/// ready.
fn web(external: TrafficPolicy) -> Declared {
    use EndpointState::{Closed, Ready};
    let endpoint = |node: &str, state| Endpoint {
        nodes: BTreeSet::from([node.into()]),
        state,
    };
    let endpoints = [
        ("10.1.0.1:80", endpoint("a", Ready)),
        ("10.1.0.2:80", endpoint("b", Ready)),
        ("10.1.0.3:80", endpoint("a", Closed)),
    ];
    let endpoints = endpoints.map(|(at, one)| (at.parse().expect("an address"), one));
    Declared {
        name: port_name("web"),
        frontends: Vec::<Frontend>::new(),
        endpoints: BTreeMap::from(endpoints),
        is_plain: true,
        has_source_ranges: false,
        internal: TrafficPolicy::Cluster,
        external,
        affinity: None,
        preferences: None,
    }
}

fn call(port: &Declared, kind: AddressKind, caller: Caller) -> Call<'_> {
    Call {
        port,
        kind,
        caller,
        node: "a",
        mode: ModeName::Nftables,
        checks: 1,
    }
}

fn explanation(verdict: &str, candidates: &[&str]) -> Explanation {
    let share = 1.0 / candidates.len() as f64;
    Explanation {
        forward_policies: None,
        api_version: VERSION.to_owned(),
        kind: "Explanation".to_owned(),
        mode: "nftables".to_owned(),
        to: String::new(),
        protocol: "TCP".to_owned(),
        from: String::new(),
        origin: String::new(),
        verdict: verdict.to_owned(),
        steps: vec!["the last step".to_owned()],
        service_port: Some("default/web".to_owned()),
        role: None,
        candidates: candidates
            .iter()
            .map(|address| Candidate {
                address: (*address).to_owned(),
                node: None,
                share: Some(share),
            })
            .collect(),
        no_endpoints: None,
        passed_over: Vec::new(),
        objects: Vec::new(),
        differences: Listed {
            total: 0,
            items: Vec::new(),
        },
        connections: None,
        connections_error: None,
        error: None,
    }
}

const BOTH: [&str; 2] = ["10.1.0.1:80", "10.1.0.2:80"];

#[test]
fn what_the_proxy_says_of_itself_is_not_enough() {
    use AddressKind::{ClusterIp, NodePort};
    use Caller::{Outside, Pod};
    use TrafficPolicy::{Cluster, Local};
    for (policy, kind, caller, verdict, candidates, wrong) in [
        (Cluster, ClusterIp, Pod, "forwarded", &BOTH[..], None),
        (Local, NodePort, Outside, "forwarded", &BOTH[..1], None),
        // Whether pods are exempt from the policy depends on the mode.
        (Local, NodePort, Pod, "forwarded", &BOTH[..], None),
        (Local, NodePort, Pod, "forwarded", &BOTH[..1], None),
        (
            Local,
            NodePort,
            Outside,
            "forwarded",
            &BOTH[..],
            Some("10.1.0.2:80, which by the EndpointSlices takes no such"),
        ),
        (
            Cluster,
            ClusterIp,
            Pod,
            "forwarded",
            &["10.1.0.1:80", "10.1.0.2:80", "10.1.0.3:80"],
            Some("Tripod sends to 10.1.0.3:80"),
        ),
        (
            Cluster,
            ClusterIp,
            Pod,
            "forwarded",
            &BOTH[..1],
            Some("does not send to 10.1.0.2:80"),
        ),
        (
            Cluster,
            ClusterIp,
            Pod,
            "refused",
            &[],
            Some("10.1.0.1:80, 10.1.0.2:80 takes connections, but: the last step"),
        ),
        (
            Local,
            NodePort,
            Outside,
            "dropped",
            &[],
            Some("10.1.0.1:80"),
        ),
        (Cluster, ClusterIp, Pod, "notServed", &[], Some("takes")),
        (
            Cluster,
            ClusterIp,
            Pod,
            "forwarded",
            &["web:80"],
            Some("no address"),
        ),
    ] {
        let port = web(policy);
        let promise = call(&port, kind, caller).promise(&explanation(verdict, candidates));
        match (promise, wrong) {
            (Ok(Promise::Answers(_)), None) => {}
            (Err(why), Some(words)) => assert!(why.contains(words), "{why}"),
            (promise, wrong) => panic!("{policy:?} {verdict}: {promise:?}, {wrong:?}"),
        }
    }
}

#[test]
fn whose_the_address_is_counts() {
    let port = web(TrafficPolicy::Cluster);
    let call = call(&port, AddressKind::ClusterIp, Caller::Pod);
    let mut answer = explanation("forwarded", &BOTH);
    answer.service_port = Some("default/older".to_owned());
    let expected = Promise::Nothing("default/older has this address".to_owned());
    assert_eq!(call.promise(&answer), Ok(expected));
    answer.service_port = None;
    let why = call.promise(&answer).expect_err("it is ours");
    assert_eq!(why, "Tripod serves it for no Service: the last step");
}

#[test]
fn without_ready_endpoints_it_is_refused_or_silent() {
    let mut port = web(TrafficPolicy::Local);
    for endpoint in port.endpoints.values_mut() {
        endpoint.state = EndpointState::Closed;
    }
    let call = call(&port, AddressKind::NodePort, Caller::Outside);
    for (verdict, promise) in [
        ("refused", Promise::Refused),
        ("dropped", Promise::Silence),
        ("notServed", Promise::Nothing("the last step".to_owned())),
        ("depends", Promise::Nothing("the last step".to_owned())),
    ] {
        assert_eq!(call.promise(&explanation(verdict, &[])), Ok(promise));
    }
    assert!(call.promise(&explanation("forwarded", &BOTH)).is_err());
}

#[test]
fn who_sees_the_caller_and_who_stays() {
    let answers = |port: &Declared, caller, mode| {
        let call = Call {
            mode,
            ..call(port, AddressKind::NodePort, caller)
        };
        match call.promise(&explanation("forwarded", &BOTH[..1])) {
            Ok(Promise::Answers(answers)) => answers,
            other => panic!("{other:?}"),
        }
    };
    let mut port = web(TrafficPolicy::Local);
    let (nftables, userspace) = (ModeName::Nftables, ModeName::Userspace);
    for (caller, mode, sees) in [
        (Caller::Outside, nftables, true),
        (Caller::Outside, userspace, false),
        (Caller::Pod, nftables, false),
    ] {
        assert_eq!(answers(&port, caller, mode).sees_caller, sees, "{caller:?}");
    }
    for (seconds, stays) in [(10_800, true), (1, false)] {
        let timeout = Duration::from_secs(seconds);
        port.affinity = Some(timeout);
        let answers = answers(&port, Caller::Outside, nftables);
        assert_eq!((answers.stays, answers.every), (stays, false));
    }
}

#[test]
fn nothing_is_promised_where_calls_may_reach_a_limit() {
    use ModeName::{Iptables, Nftables, Userspace};
    let mut port = web(TrafficPolicy::Cluster);
    for (mode, most, is_tried) in [
        (Nftables, 2, false),
        (Userspace, 2, false),
        (Iptables, 2, true),
        (Nftables, 10_000, true),
    ] {
        port.preferences = Some(Arc::new(Preferences {
            max_connections_per_client: NonZeroU32::new(most),
            ..Preferences::default()
        }));
        let call = Call {
            mode,
            ..call(&port, AddressKind::ClusterIp, Caller::Pod)
        };
        let found = call.promise(&explanation("forwarded", &BOTH));
        let is_promised = matches!(found, Ok(Promise::Answers(_)));
        assert_eq!(is_promised, is_tried, "{mode}, {most}: {found:?}");
        assert!(found.is_ok(), "{found:?}");
        assert!(call.promise(&explanation("refused", &[])).is_err());
    }
}

#[test]
fn calls_suffice_to_see_every_endpoint() {
    for (shares, checks, expected) in [
        (&[1.0][..], 1, Some(2)),
        (&[0.5, 0.5], 1, Some(21)),
        (&[0.5, 0.5], 1000, Some(31)),
        (&[0.9, 0.1], 1, Some(138)),
        (&[0.001; 1000], 1, None),
    ] {
        assert_eq!(calls(shares, checks), expected, "{shares:?}");
    }
}

#[test]
fn what_servers_here_cannot_do_is_not_tried() {
    let mut port = web(TrafficPolicy::Cluster);
    let mut why = |mode, preferences| {
        port.preferences = Some(Arc::new(preferences));
        let call = Call {
            mode,
            ..call(&port, AddressKind::ClusterIp, Caller::Pod)
        };
        call.not_tried()
    };
    let header = || Preferences {
        proxy_protocol: true,
        ..Preferences::default()
    };
    let direct = || Preferences {
        forwarding: Some(Forwarding::Dr),
        ..Preferences::default()
    };
    assert!(why(ModeName::Userspace, header()).is_some());
    assert!(why(ModeName::Nftables, header()).is_none());
    assert!(why(ModeName::Ipvs, direct()).is_some());
    assert!(why(ModeName::Nftables, direct()).is_none());
    let mut other = web(TrafficPolicy::Cluster);
    let loopback = "127.0.0.1:80".parse().expect("an address");
    let (_, endpoint) = other.endpoints.pop_first().expect("an endpoint");
    other.endpoints.insert(loopback, endpoint);
    port.name = port.name.over(Protocol::Sctp);
    for port in [port, other] {
        let call = call(&port, AddressKind::ClusterIp, Caller::Pod);
        assert!(call.not_tried().is_some());
    }
}
