//! The pure parts of a check.

use std::{collections::BTreeSet, io};

use serde_json::{Value, json};

use super::{
    super::call::Seen,
    calls::{Calls, Doubt},
    endpoints::{self, Called},
    sample::{digest, sample},
    state,
};
use crate::{
    ask::check::{CheckReport, Finding},
    cli::{self, Job},
    status_api::{Diff, ServicePort, Status},
};

fn port(name: &str, fields: Value) -> ServicePort {
    let mut port = json!({
        "namespace": "shop", "name": name, "port": "", "protocol": "TCP", "family": "IPv4",
        "addresses": [{"kind": "clusterIP", "ip": "10.96.0.1", "port": 80}], "scheduler": "rr",
        "affinitySeconds": null, "internalTrafficPolicy": "Cluster",
        "externalTrafficPolicy": "Cluster", "sourceRanges": [], "endpoints": [],
        "failing": null, "unsupported": [], "conflicts": [], "traffic": null,
    });
    let fields = fields.as_object().expect("fields").clone();
    port.as_object_mut().expect("an object").extend(fields);
    serde_json::from_value(port).expect("a ServicePort")
}

#[test]
fn a_sample_has_each_kind_and_other_nodes_call_others() {
    let mut ports: Vec<ServicePort> = (0..50).map(|n| port(&format!("s{n}"), json!({}))).collect();
    ports.extend([
        port("udp", json!({"protocol": "UDP"})),
        port("sctp", json!({"protocol": "SCTP"})),
        port("v6", json!({"family": "IPv6"})),
        port("sticky", json!({"affinitySeconds": 60})),
        port(
            "empty",
            json!({"noEndpoints": {"why": "none", "command": null}}),
        ),
        port("local", json!({"internalTrafficPolicy": "Local"})),
        port(
            "checked",
            json!({"healthCheck": {"port": 32_000, "localEndpoints": 1}}),
        ),
    ]);
    let dns = json!([{"kind": "clusterIP", "ip": "10.96.0.10", "port": 53}]);
    ports.push(port("dns", json!({"protocol": "UDP", "addresses": dns})));
    let node_port = json!([{"kind": "nodePort", "ip": null, "port": 30_000}]);
    ports.push(port("outside", json!({"addresses": node_port})));
    let range = json!([{"kind": "clusterIP", "ip": "10.96.0.1", "port": 80, "lastPort": 90}]);
    ports.push(port("range", json!({"addresses": range})));
    let names = |node: &str, most| -> BTreeSet<String> {
        let chosen = sample(&ports, node, most).into_iter();
        chosen.map(|target| target.port.name.clone()).collect()
    };
    let few = names("node-1", 12);
    for kind in [
        "v6", "sticky", "empty", "local", "checked", "dns", "outside",
    ] {
        assert!(few.contains(kind), "{kind}: {few:?}");
    }
    assert_eq!(few.len(), 12);
    assert_ne!(few, names("node-2", 12));
    let all = names("node-1", 1000);
    assert_eq!(all.len(), 57);
    assert!(
        ["udp", "sctp", "range"]
            .iter()
            .all(|name| !all.contains(*name))
    );
}

#[test]
fn a_digest_differs_with_services_and_endpoints_alone() {
    let web = |address: &str, in_use: bool| {
        port(
            "web",
            json!({"endpoints": [{
                "address": address, "node": null, "weight": 1, "starting": null, "inUse": in_use,
                "why": null, "traffic": null,
            }]}),
        )
    };
    let other = || port("other", json!({}));
    let same = [
        [web("10.1.0.1:80", true), other()],
        [other(), web("10.1.0.1:80", true)],
        [other(), web("10.1.0.1:80", false)],
    ];
    let digests = same.map(|ports| digest(&ports));
    assert!(
        digests.iter().all(|digest| *digest == digests[0]),
        "{digests:?}"
    );
    assert_ne!(digest(&[other(), web("10.1.0.2:80", true)]), digests[0]);
    assert_ne!(digest(&[web("10.1.0.1:80", true)]), digests[0]);
}

/// Returns the faults and the notes, each as its nodes and its object.
fn found(report: &CheckReport) -> [Vec<String>; 2] {
    let words = |one: &Finding| format!("{}: {}", one.nodes.join(","), one.object);
    [&report.faults, &report.notes].map(|all| all.iter().map(words).collect())
}

#[test]
fn an_endpoint_is_judged_by_its_own_node() {
    let of_namespace = |namespace: &str, number: u8, node: &str, seen| Called {
        service_port: format!("{namespace}/web"),
        namespace: namespace.to_owned(),
        protocol: "TCP".to_owned(),
        address: ([10, 1, 0, number], 80).into(),
        node: (!node.is_empty()).then(|| node.to_owned()),
        seen,
    };
    let called = |number, node: &str, seen| of_namespace("shop", number, node, seen);
    let of = |number: u8| format!("endpoint 10.1.0.{number}:80 TCP of shop/web");
    for (all, faults, notes) in [
        (
            vec![called(1, "me", Seen::Open), called(2, "other", Seen::Open)],
            vec![],
            vec![],
        ),
        (
            vec![called(1, "me", Seen::Refused)],
            vec![format!("me: {}", of(1))],
            vec![],
        ),
        (
            vec![called(1, "", Seen::Silence)],
            vec![format!("me: {}", of(1))],
            vec![],
        ),
        // A NetworkPolicy may forbid this one.
        (
            vec![
                called(2, "other", Seen::Silence),
                called(3, "other", Seen::Open),
            ],
            vec![],
            vec![format!("other: {}", of(2))],
        ),
        (
            vec![called(2, "other", Seen::Silence)],
            vec![],
            vec![format!("other: {}", of(2))],
        ),
        // It forbids pods of one namespace.
        (
            vec![
                called(2, "other", Seen::Silence),
                called(3, "other", Seen::Silence),
            ],
            vec![],
            vec![format!("other: {}", of(2)), format!("other: {}", of(3))],
        ),
        // It does not forbid those on a further node.
        (
            vec![
                called(2, "other", Seen::Silence),
                called(3, "other", Seen::Silence),
                called(4, "further", Seen::Open),
            ],
            vec!["other: IPv4 pods of node other".to_owned()],
            vec![],
        ),
        (
            vec![
                called(2, "other", Seen::Silence),
                of_namespace("host", 9, "other", Seen::Open),
                of_namespace("till", 3, "further", Seen::Silence),
            ],
            vec!["me: IPv4 pods of other nodes".to_owned()],
            vec![],
        ),
    ] {
        let mut report = CheckReport::default();
        let hosts = BTreeSet::from([[10, 1, 0, 9].into()]);
        endpoints::add("me", &hosts, &all, &mut report);
        assert_eq!(found(&report), [faults, notes], "{all:?}");
    }
}

#[tokio::test]
async fn a_question_without_an_answer_is_a_fault() {
    let line = ["tripod", "check", "--status-socket=/nonexistent"];
    let read = cli::read(
        line.map(Into::into),
        |_| Err(io::ErrorKind::NotFound.into()),
    );
    let Job::Check(asked) = read.expect("settings").job else {
        panic!("a check");
    };
    let ports = [port("web", json!({}))];
    let sample = sample(&ports, "me", 1);
    let calls = Calls::new(&asked, "me");
    let judged = calls.addresses(&ports, &sample).await;
    let [Err(Doubt::Wrong(finding))] = &judged[..] else {
        panic!("{judged:?}");
    };
    assert_eq!(finding.object, "Tripod");
}

#[test]
fn a_difference_that_lasts_is_a_fault() {
    let diff = |objects: &[&str], error: Option<&str>| -> Diff {
        let items = objects.iter().map(|object| {
            json!({"found": "missing", "object": object, "servicePort": "shop/web", "protocol": "TCP"})
        });
        let items: Vec<Value> = items.collect();
        serde_json::from_value(json!({
            "apiVersion": "tripod.proxy/v1", "kind": "Diff", "mode": "nftables",
            "families": [{
                "family": "IPv4", "error": error,
                "differences": {"total": items.len(), "items": items},
            }],
        }))
        .expect("a Diff")
    };
    let objects = |before: &[&str], now: &[&str], errors| {
        let mut report = CheckReport::default();
        let [earlier, error]: [Option<&str>; 2] = errors;
        state::add_differences("me", &diff(before, earlier), &diff(now, error), &mut report);
        report.faults
    };
    assert_eq!(objects(&["chain a"], &["chain b"], [None; 2]), []);
    let lasting = objects(&["chain a", "chain b"], &["chain b"], [None; 2]);
    assert_eq!(lasting[0].object, "chain b of shop/web");
    assert_eq!(lasting.len(), 1);
    let many = ["1", "2", "3", "4", "5", "6", "7"];
    let many = objects(&many, &many, [None; 2]);
    assert_eq!(many.len(), 5);
    assert!(many[4].problem.contains("2 more"), "{many:?}");
    assert_eq!(objects(&[], &[], [None, Some("no answer")]), []);
    assert_eq!(objects(&[], &[], [Some("no answer"); 2]).len(), 1);
}

#[test]
fn what_is_not_applied_is_a_fault() {
    let status: Status = serde_json::from_value(json!({
        "apiVersion": "tripod.proxy/v1", "kind": "Status", "version": "0.1.0", "pid": 1,
        "node": "me", "started": "2026-01-01T00:00:00Z", "healthy": false,
        "problems": ["1 things are not applied", "Services cannot be followed: no route"],
        "mode": {"name": "userspace", "passedOver": ["ipvs lacks x"], "named": true, "lost": []},
        "objects": {"source": "the API server", "kinds": []}, "syncs": [],
        "counts": {"services": 0, "servicePorts": 0, "endpoints": 0, "endpointsInUse": 0},
        "failing": {"total": 1, "items": [
            {"servicePort": "shop/web", "protocol": "TCP", "family": "IPv4", "why": "no memory"},
        ]},
        "unusable": {"total": 1, "items": [
            {"object": "Service shop/x", "since": "2026-01-01T00:00:00Z", "why": "y", "stays": true},
        ]},
        "unsupported": {"total": 0, "items": []},
        "conflicts": {"total": 2, "items": [
            {"servicePort": "shop/thief", "protocol": "TCP", "owner": "shop/web", "why": "z"},
            {"servicePort": "shop/port", "protocol": "TCP", "owner": "shop/port", "why": "hides"},
        ]},
    }))
    .expect("a Status");
    let faults = |status: &Status| {
        let mut report = CheckReport::default();
        state::add_status(status, &mut report);
        report
            .faults
            .into_iter()
            .map(|fault| {
                assert_eq!(fault.problem == "hides", fault.object == "shop/port");
                fault.object
            })
            .collect::<Vec<_>>()
    };
    let expected = [
        "Tripod",
        "shop/web IPv4",
        "Service shop/x",
        "shop/thief",
        "shop/port",
        "mode",
    ];
    assert_eq!(faults(&status), expected);
    let mut any = status.clone();
    any.mode.named = false;
    assert_eq!(faults(&any), expected[..5]);
}
