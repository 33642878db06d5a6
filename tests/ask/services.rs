//! `tripod services`.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::mpsc::{Receiver, channel},
    time::Instant,
};

use serde_json::{Value, json};

use super::{SOON, started, started_in, started_in_with, tripod};
use crate::lab::{EndpointChoice, Group, Lab, Service, ask, eventually, tripod_binary};

/// The answer about one ServicePort of `default/web`.
fn port(lab: &Lab, protocol: &str, family: &str) -> Value {
    let answer = tripod(&lab.node, &["services", "default/web", "--output=json"]).json();
    let mut items = answer["items"].as_array().expect("a list").iter();
    let port = items.find(|port| port["protocol"] == protocol && port["family"] == family);
    port.unwrap_or_else(|| panic!("no {protocol} {family} in {answer:#}"))
        .clone()
}

/// The reasons why the endpoints a, b and c of the port TCP over IPv4 are not used.
fn reasons(lab: &Lab) -> [Value; 3] {
    let port = port(lab, "TCP", "IPv4");
    let endpoints = port["endpoints"].as_array().expect("a list");
    let reasons = endpoints.iter().map(|endpoint| {
        assert_eq!(endpoint["inUse"], endpoint["why"].is_null(), "{endpoint}");
        endpoint["why"].clone()
    });
    let reasons: Vec<_> = reasons.collect();
    reasons.try_into().expect("three endpoints")
}

/// Endpoints a, b and c of a Service, each with the reason why it is not used.
struct Case {
    what: &'static str,
    service: Service,
    endpoints: [EndpointChoice; 3],
    reasons: [Value; 3],
}

fn cases() -> Vec<Case> {
    let web = || Service::new("web", 1);
    let ready = EndpointChoice::ready;
    let (unready, terminating) = (EndpointChoice::unready, EndpointChoice::terminating);
    let local = json!("on another node, the traffic policy is Local");
    let topology = json!("for other zones or nodes, by topology hints");
    let case = |what, service, endpoints, reasons| Case {
        what,
        service,
        endpoints,
        reasons,
    };
    vec![
        case(
            "all",
            web(),
            [ready("a"), ready("b"), ready("c")],
            [json!(null), json!(null), json!(null)],
        ),
        case(
            "conditions",
            web(),
            [ready("a"), unready("b"), terminating("c", true)],
            [json!(null), json!("not ready"), json!("terminating")],
        ),
        case(
            "only terminating ones are left",
            web(),
            [
                terminating("a", true),
                unready("b"),
                terminating("c", false),
            ],
            [json!(null), json!("not ready"), json!("terminating")],
        ),
        case(
            "policy",
            web().spec("internalTrafficPolicy", "Local"),
            [ready("a").on("node"), ready("b").on("far"), ready("c")],
            [json!(null), local.clone(), local],
        ),
        case(
            "topology",
            web(),
            [("a", "node"), ("b", "far"), ("c", "far")]
                .map(|(name, node)| ready(name).hint("forNodes", node)),
            [json!(null), topology.clone(), topology],
        ),
        case(
            "weight",
            web(),
            [ready("a").on("weightless"), ready("b"), ready("c")],
            [json!("weight 0"), json!(null), json!(null)],
        ),
    ]
}

#[test]
fn each_endpoint_that_gets_nothing_has_its_reason() {
    Lab::run(|lab| {
        lab.write(
            "node.yaml",
            "apiVersion: v1\nkind: Node\nmetadata:\n  name: weightless\n  annotations:\n    \
             tripod.proxy/weight: '0'\n",
        );
        let cases = cases();
        lab.publish_endpoints(&cases[0].service, &cases[0].endpoints);
        let _running = started(lab, &[]);
        for case in cases {
            lab.publish_endpoints(&case.service, &case.endpoints);
            eventually(case.what, SOON, || match reasons(lab) {
                found if found == case.reasons => Ok(()),
                found => Err(format!("{found:?}")),
            });
        }
        the_last_case_in_tables(lab);
    });
}

fn the_last_case_in_tables(lab: &Lab) {
    let all = tripod(&lab.node, &["services"]).text;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = all.lines().map(words).collect();
    let expected = [
        "SERVICE PROTOCOL ENDPOINTS ADDRESSES SCHEDULER AFFINITY POLICY ACTIVE CONNECTIONS BYTES",
        "default/web:tcp TCP 2/3 10.96.0.1:80 wrr - Cluster/Cluster 0 0 0/0",
        "10.244.0.11:8080 on weightless: not used: weight 0",
        "default/web:tcp TCP 2/3 [fd00:96::1]:80 wrr - Cluster/Cluster 0 0 0/0",
        "[fd00:244::11]:8080 on weightless: not used: weight 0",
    ];
    assert_eq!(lines[..5], expected, "{all}");
    let one = tripod(&lab.node, &["services", "default/web"]).text;
    assert!(one.contains("\n    10.244.0.12:8080: in use\n"), "{one}");
    let wide = tripod(&lab.node, &["services", "-o", "wide"]).text;
    let words = "not used: weight 0; weight 0, active 0, connections 0, bytes 0/0";
    assert!(wide.contains(words), "{wide}");
}

/// The lines of a command while it runs.
fn lines_of(group: &mut Group) -> Receiver<String> {
    let stdout = group.child().stdout.take().expect("it is piped");
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stdout).lines().map_while(Result::ok);
        lines.for_each(|line| drop(sender.send(line)));
    });
    lines
}

#[test]
fn a_watch_writes_what_changes() {
    Lab::run(|lab| {
        let [web, other] = [Service::new("web", 1), Service::new("other", 2)];
        lab.publish_all(&web);
        lab.publish_all(&other);
        let mut running = started(lab, &[]);
        let mut command = lab.node.command(tripod_binary());
        command.args(["services", "--watch"]).stdout(Stdio::piped());
        let mut watch = Group::spawn(&mut command).expect("starting it");
        let lines = lines_of(&mut watch);
        let next = || {
            let line = lines.recv_timeout(SOON).expect("a line");
            line.split_whitespace()
                .take(2)
                .collect::<Vec<_>>()
                .join(" ")
        };
        let all: Vec<_> = (0..9).map(|_| next()).collect();
        assert_eq!(
            (&*all[0], &*all[1]),
            ("SERVICE PROTOCOL", "default/other:tcp TCP")
        );
        // One Service changes, and only that is printed again.
        let endpoints = [EndpointChoice::ready("a"), EndpointChoice::unready("b")];
        lab.publish_endpoints(&web, &endpoints);
        for protocol in ["tcp TCP", "tcp TCP", "udp UDP", "udp UDP"] {
            assert_eq!(next(), format!("default/web:{protocol}"));
            let why = next();
            assert!(why.ends_with(": not"), "{why}");
        }
        // It waits for a proxy that is being replaced.
        running.kill();
        assert_eq!(next(), "no Tripod");
        let _running = started(lab, &[]);
        assert_eq!(next(), "SERVICE PROTOCOL");
        assert!(watch.wait_until(Instant::now()).is_none(), "it continues");
    });
}

#[test]
fn a_service_is_shown_with_all_that_it_asks_for() {
    Lab::run(|lab| {
        let web = Service::new("web", 7)
            .sticky(60)
            .with_node_port()
            .with_external_ip()
            .with_load_balancer()
            .annotated("tripod.proxy/scheduler", "lc")
            .spec("loadBalancerSourceRanges", json!(["192.0.2.0/24"]));
        lab.publish_all(&web);
        lab.publish_all(&Service::new("other", 8));
        let _running = started(lab, &[]);
        let found = port(lab, "UDP", "IPv6");
        let expected = json!([
            {"kind": "clusterIP", "ip": "fd00:96::7", "port": 80, "unserved": null},
            {"kind": "externalIP", "ip": "2001:db8:51::7", "port": 80, "unserved": null},
            {"kind": "loadBalancerIP", "ip": "2001:db8:113::7", "port": 80, "unserved": null},
            {"kind": "nodePort", "ip": null, "port": 30007, "unserved": null},
        ]);
        assert_eq!(found["addresses"], expected);
        assert_eq!(found["scheduler"], "lc");
        assert_eq!(found["affinitySeconds"], 60);
        let none = json!({"active": 0, "connections": 0, "bytesIn": 0, "bytesOut": 0});
        assert_eq!(found["traffic"], none);
        let ranges = &port(lab, "TCP", "IPv4")["sourceRanges"];
        assert_eq!(ranges, &json!(["192.0.2.0/24"]));

        for (arguments, services) in [
            (&["services"][..], &["other", "web"][..]),
            (&["services", "default"], &["other", "web"]),
            (&["ls"], &["other", "web"]),
            (&["svc", "default"], &["other", "web"]),
            (&["list", "default/web"], &["web"]),
            (&["services", "default/other"], &["other"]),
            (&["services", "elsewhere"], &[]),
        ] {
            let printed = tripod(&lab.node, &[arguments, &["--output=json"]].concat());
            let answer = printed.json();
            let items = answer["items"].as_array().expect("a list").iter();
            let mut names: Vec<_> = items.map(|port| port["name"].clone()).collect();
            names.dedup();
            assert_eq!(names, services, "{arguments:?}");
            let status = i32::from(services.is_empty());
            assert_eq!(printed.status, Some(status), "{arguments:?}");
        }
        let none = tripod(&lab.node, &["services", "default/nothing"]);
        assert_eq!(none.status, Some(1), "{none:?}");
        assert!(
            none.error.contains("no Service default/nothing is served"),
            "{none:?}"
        );
        let none = tripod(&lab.node, &["services", "elsewhere"]);
        let says = "error: no Service is served in namespace elsewhere; one Service is named \
                    NAMESPACE/NAME, as in default/elsewhere\n";
        assert_eq!((&*none.text, &*none.error), ("", says));
        assert_eq!(none.status, Some(1));
    });
}

/// Endpoints are missing or not ready; a folder of manifests has no cluster to ask.
#[test]
fn a_service_without_endpoints_in_use_says_why() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &[]);
        let _running = started(lab, &[]);
        let becomes = |expected: &str| {
            eventually(expected, SOON, || {
                let none = port(lab, "TCP", "IPv4")["noEndpoints"].clone();
                let why = none["why"].as_str().unwrap_or_default();
                if why.contains(expected) && none["command"].is_null() {
                    Ok(())
                } else {
                    Err(none.to_string())
                }
            });
            let all = tripod(&lab.node, &["services"]).text;
            let words = "\n    no endpoint in use: ";
            assert!(all.contains(words) && all.contains(expected), "{all}");
        };
        becomes("its EndpointSlices have no endpoints");
        lab.publish_endpoints(&web, &["a", "b"].map(EndpointChoice::unready));
        becomes("2 not ready");
        let to = web.cluster()[0].to_string();
        let explained = tripod(&lab.node, &["explain", "--to", &to]).text;
        assert!(
            explained.contains("no endpoint takes connections: 2 not ready"),
            "{explained}"
        );
        lab.publish(&web, &["a"]);
        eventually("one is in use", SOON, || {
            match &port(lab, "TCP", "IPv4")["noEndpoints"] {
                Value::Null => Ok(()),
                none => Err(none.to_string()),
            }
        });
    });
}

/// Userspace mode does not call it; rules send packets to it, where they are refused.
#[test]
fn an_endpoint_with_the_address_of_a_service_is_not_in_use() {
    for mode in ["userspace", "nftables"] {
        Lab::run(|lab| {
            let other = Service::new("other", 2);
            lab.publish(&other, &["a"]);
            let called = other.cluster()[0];
            let (metadata, to) = (
                json!({"name": "web", "namespace": "default"}),
                "10.96.0.99:80",
            );
            let ports = json!([{"name": "http", "port": 80}]);
            let web = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": metadata,
                "spec": {"clusterIP": "10.96.0.99", "ports": ports},
            });
            let publish = |endpoints: Value| {
                let slice = json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "metadata": {
                        "name": "web-1", "namespace": "default",
                        "labels": {"kubernetes.io/service-name": "web"},
                    },
                    "addressType": "IPv4", "ports": [{"name": "http", "port": called.port()}],
                    "endpoints": endpoints,
                });
                let list = json!({"apiVersion": "v1", "kind": "List", "items": [&web, slice]});
                lab.write("web.json", &list.to_string());
            };
            publish(json!([{"addresses": [called.ip()]}]));
            let _running = started_in(lab, mode);
            let status = || tripod(&lab.node, &["status", "-o", "json"]).json();
            eventually("the first sync is over", SOON, || {
                match status()["syncs"].to_string() {
                    syncs if syncs.matches("\"ended\"").count() == 2 => Ok(()),
                    syncs => Err(syncs),
                }
            });
            let refused = ask(&lab.client, to.parse().expect("an address"));
            assert!(refused.is_err(), "{mode}: {refused:?}");
            let endpoint = &port(lab, "TCP", "IPv4")["endpoints"][0];
            let why = endpoint["why"].as_str().unwrap_or_default();
            let words = "its address is one of Service default/other";
            assert!(
                endpoint["inUse"] == false && why.starts_with(words),
                "{mode}: {endpoint}"
            );
            let explained = tripod(&lab.node, &["explain", "--to", to, "-o", "json"]).json();
            assert_eq!(explained["verdict"], "refused", "{mode}: {explained:#}");
            assert_eq!(explained["candidates"], json!([]), "{mode}");
            let passed_over = &explained["passedOver"][0]["why"];
            assert_eq!(passed_over, &endpoint["why"], "{mode}");
            let counts = &status()["counts"];
            let [all, used] = ["endpoints", "endpointsInUse"].map(|count| counts[count].as_u64());
            assert_eq!(used.map(|used| used + 1), all, "{mode}: {counts}");
            // The kernel sends it its share as soon as there is another one.
            publish(json!([{"addresses": [called.ip()]}, {"addresses": ["10.1.9.9"]}]));
            let (is_used, words) = match mode {
                "userspace" => (1, "not used: its address is one of Service default/other"),
                _ => (
                    2,
                    "gets its share, but its address is one of Service default/other",
                ),
            };
            eventually("there are two endpoints", SOON, || {
                let text = tripod(&lab.node, &["services", "default/web"]).text;
                let is_named = text.contains(&format!("{called}: {words}"));
                match is_named && text.contains(&format!("{is_used}/2")) {
                    true => Ok(()),
                    false => Err(format!("{mode}: {text}")),
                }
            });
        });
    }
}

/// In nftables mode node ports are served at the addresses of the Node object.
#[test]
fn node_ports_that_are_served_nowhere_say_so() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1).with_node_port());
        let metrics = Service::new("web", 1).node_port();
        let metrics = format!("--metrics-bind-address=0.0.0.0:{metrics}");
        for (flag, is_served) in [("primary", false), ("all", true)] {
            let flag = format!("--nodeport-addresses={flag}");
            let running = started_in_with(lab, "nftables", &[&flag, &metrics]);
            let text = tripod(&lab.node, &["services", "default/web"]).text;
            let hidden = "is also the port at which Tripod serves";
            assert!(text.contains(hidden), "{text}");
            let status = tripod(&lab.node, &["status"]).text;
            assert!(status.contains(hidden), "{status}");
            let why = "is not served: none of this node's addresses serves node ports";
            assert_eq!(text.contains("node:3"), is_served, "{flag}: {text}");
            assert_eq!(text.contains(why), !is_served, "{flag}: {text}");
            assert_eq!(
                text.contains("--nodeport-addresses=all"),
                !is_served,
                "{text}"
            );
            drop(running);
        }
    });
}
