//! `tripod explain`. The cases of `tests/conformance` test that it is true.

use std::net::{SocketAddr, TcpListener};

use serde_json::{Value, json};

use super::{SOON, diff::Change, started, started_in, tripod};
use crate::lab::{
    BACKEND_PORT, Capture, Lab, Service, Tripod, ask, eventually,
    guest::{Profile, in_guest},
    run, say, tcp,
};

fn explained(lab: &Lab, arguments: &[&str]) -> Value {
    let arguments = [&["explain", "--output=json"], arguments].concat();
    tripod(&lab.node, &arguments).json()
}

#[test]
fn a_packet_is_followed_to_its_endpoints() {
    Lab::run(|lab| {
        let web = Service::new("web", 1).with_external_ip();
        lab.publish(&web, &["a", "b"]);
        let _running = started(lab, &[]);
        let to = web.cluster()[0].to_string();
        let printed = tripod(&lab.node, &["explain", "--to", &to, "--from", "10.244.0.9"]);
        assert_eq!(printed.status, Some(0), "{printed:?}");
        for words in [
            &*format!("{to}/TCP from 10.244.0.9, in userspace mode:\n"),
            "1. the caller is a pod of the cluster\n",
            "2. it is the cluster IP of default/web:tcp (TCP)\n",
            "2 endpoints take connections",
            "It is sent to one of:\n",
            "50.0 %",
            "desired state of default/web:tcp:\n  present  ",
        ] {
            assert!(printed.text.contains(words), "no {words:?} in {printed:?}");
        }
        for absent in ["missing", "not sent to", "other differences", "\x1b["] {
            assert!(!printed.text.contains(absent), "{absent:?} in {printed:?}");
        }
        let answer = explained(lab, &["--to", &to]);
        let shares = answer["candidates"].as_array().expect("a list").iter();
        let shares = shares.map(|candidate| candidate["share"].clone());
        assert_eq!(shares.collect::<Vec<_>>(), [json!(0.5), json!(0.5)]);
        assert_eq!(answer["servicePort"], "default/web:tcp");
        assert_eq!(answer["role"], "clusterIP");
    });
}

#[test]
fn who_gets_no_packets_is_named_with_the_reason() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &["a"]);
        let _running = started(lab, &[]);
        let to = web.cluster()[0];
        let other = |port: u16| format!("{}:{port}", to.ip());
        for (destination, verdict, last) in [
            (
                other(to.port()),
                "forwarded",
                "1 endpoint takes connections",
            ),
            (other(99), "notServed", "it is routed as usual"),
            (
                "10.99.0.1:80".to_owned(),
                "notServed",
                "no Service has this address",
            ),
        ] {
            let answer = explained(lab, &["--to", &destination]);
            assert_eq!(answer["verdict"], verdict, "{answer:#}");
            let steps = answer["steps"].as_array().expect("a list");
            let step = steps.last().and_then(Value::as_str).unwrap_or_default();
            assert!(step.contains(last), "{answer:#}");
        }
        lab.publish(&web, &[]);
        let refused = eventually("it is refused", SOON, || {
            let answer = explained(lab, &["--to", &to.to_string()]);
            match answer["verdict"].as_str() {
                Some("refused") => Ok(answer),
                _ => Err(format!("{answer:#}")),
            }
        });
        assert_eq!(refused["candidates"], json!([]));
    });
}

/// A policy that another program set at the hook, of each engine and of a table of both families,
/// is named with its chain.
#[test]
fn policies_of_others_that_drop_what_is_forwarded_are_named() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = started_in(&lab, "nftables");
        let to = web.cluster()[0].to_string();
        let policies = |from: &str| {
            let answer = explained(&lab, &["--to", &to, "--from", from]);
            assert_eq!(answer["verdict"], "forwarded", "{answer:#}");
            answer["forwardPolicies"].clone()
        };
        assert_eq!(policies("pod"), json!([]));
        let chain = "{ type filter hook forward priority 0; policy drop; }";
        for line in [
            "iptables-nft -P FORWARD DROP",
            "nft add table inet firewall",
            &format!("nft add chain inet firewall forward '{chain}'"),
            "iptables-legacy -P FORWARD DROP",
        ] {
            let done = lab.node.command("sh").args(["-c", line]).status();
            assert!(done.expect("running sh").success(), "{line}");
        }
        let chains = [
            "chain FORWARD of table ip filter (nf_tables)",
            "chain forward of table inet firewall (nf_tables)",
            "chain FORWARD of table filter (IPv4, iptables-legacy)",
        ];
        assert_eq!(policies("pod"), json!(chains));
        assert_eq!(policies("node"), json!([]), "it is not forwarded");
        let printed = tripod(&lab.node, &["explain", "--to", &to]).text;
        for chain in chains {
            let line = format!("  the policy of {chain} is DROP\n");
            assert!(printed.contains(&line), "{printed}");
        }
    });
}

/// Packets for Tripod's sockets pass INPUT.
#[test]
fn policies_of_others_that_drop_what_is_relayed_are_named() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = started_in(&lab, "userspace");
        let to = web.cluster()[0].to_string();
        for line in [
            "iptables-nft -P FORWARD DROP",
            "iptables-legacy -P INPUT DROP",
        ] {
            let done = lab.node.command("sh").args(["-c", line]).status();
            assert!(done.expect("running sh").success(), "{line}");
        }
        let answer = explained(&lab, &["--to", &to]);
        let chain = "chain INPUT of table filter (IPv4, iptables-legacy)";
        assert_eq!(answer["forwardPolicies"], json!([chain]), "{answer:#}");
        let of_node = explained(&lab, &["--to", &to, "--from", "node"]);
        assert_eq!(of_node["forwardPolicies"], json!([]), "its own call");
    });
}

/// The guest has no `br_netfilter`, so answers from pod to pod would not return through the node.
fn through_the_node(service: Service) -> Service {
    service.annotated("tripod.proxy/forwarding", "fullnat")
}

/// The entries of conntrack for `to`, with one open connection from the client pod, while the
/// Service moves from backend `a` to `b`.
fn a_connection_is_followed(mode: &str) {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = match mode {
            "ipvs" => through_the_node(Service::new("web", 1)),
            _ => Service::new("web", 1),
        };
        lab.add_backends(&["a", "b"]).publish(&web, &["a"]);
        let _running = started_in(&lab, mode);
        let open = web.cluster().map(|to| {
            let mut stream = tcp(&lab.client, to).expect("a connection");
            say(&mut stream, "name").expect("an answer");
            stream
        });
        let pod = lab.backend("a").host().addresses;
        let connection = |at: usize, why: Value| {
            let endpoint = SocketAddr::new(pod[at], BACKEND_PORT).to_string();
            let client = open[at].local_addr().expect("an address").to_string();
            json!({
                "client": client, "endpoint": endpoint, "state": "ESTABLISHED", "stale": why,
            })
        };
        let held = |stale: usize, item: Value| json!({"total": 1, "stale": stale, "items": [item]});
        let to = web.cluster().map(|to| to.to_string());
        for (at, to) in to.iter().enumerate() {
            let answer = explained(&lab, &["--to", to]);
            let expected = held(0, connection(at, Value::Null));
            assert_eq!(answer["connections"], expected, "{answer:#}");
            let other = if at == 0 {
                "10.244.0.99"
            } else {
                "fd00:244::99"
            };
            let answer = explained(&lab, &["--to", to, "--from", other]);
            assert_eq!(answer["connections"]["total"], 0, "{answer:#}");
            let answer = explained(&lab, &["--to", to, "--desired-only"]);
            assert_eq!(answer["connections"], Value::Null, "{answer:#}");
        }
        lab.publish(&web, &["b"]);
        for (at, to) in to.iter().enumerate() {
            let expected = held(1, connection(at, json!("no such endpoint")));
            eventually("the connection is stale", SOON, || {
                match explained(&lab, &["--to", to]) {
                    answer if answer["connections"] == expected => Ok(()),
                    answer => Err(format!("{answer:#}")),
                }
            });
            let printed = tripod(&lab.node, &["explain", "--to", to]).text;
            for words in [
                "connections to it in conntrack, 1, 1 of them stale:",
                "stale: no such",
            ] {
                assert!(printed.contains(words), "no {words:?} in {printed}");
            }
        }
    });
}

#[test]
fn connections_to_an_endpoint_that_went_are_stale_in_nftables_mode() {
    a_connection_is_followed("nftables");
}

#[test]
fn connections_to_an_endpoint_that_went_are_stale_in_iptables_mode() {
    a_connection_is_followed("iptables");
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn connections_to_an_endpoint_that_went_are_stale_in_ipvs_mode() {
    a_connection_is_followed("ipvs");
}

/// A program of the node has the address before the Service exists: conntrack has its connection
/// without translation, so IPVS does not know it.
#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_connection_that_ipvs_did_not_see_begin_is_stale() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = through_the_node(Service::new("web", 1));
        let other = Service::new("other", 2);
        lab.add_backends(&["a"]).publish_all(&other);
        let _running = started_in(&lab, "ipvs");
        let to = web.cluster()[0];
        lab.node.ip(&[&format!("addr add {}/32 dev lo", to.ip())]);
        let listener = lab
            .node
            .enter(|| TcpListener::bind(to))
            .expect("a listener");
        let open = tcp(&lab.client, to).expect("a connection");
        let _accepted = listener.accept().expect("a connection");
        drop(listener);
        let client = open.local_addr().expect("an address").to_string();
        lab.publish_all(&web);
        eventually("new connections reach the endpoint", SOON, || {
            match ask(&lab.client, to) {
                Ok(name) if name == "a" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        let answer = explained(&lab, &["--to", &to.to_string()]);
        assert_eq!(answer["connections"]["stale"], 1, "{answer:#}");
        let item = &answer["connections"]["items"][0];
        let why = "it began before there was an endpoint";
        assert_eq!(
            (&item["client"], &item["stale"]),
            (&json!(client), &json!(why))
        );
    });
}

#[test]
fn guest_full_ask_explain() {
    let tests = [
        "ask::explain::connections_to_an_endpoint_that_went_are_stale_in_ipvs_mode",
        "ask::explain::a_connection_that_ipvs_did_not_see_begin_is_stale",
    ];
    in_guest(Profile::Full, &tests, &[]);
}

/// A Service is named as for kubectl; each of its cluster IPs is explained.
#[test]
fn a_service_stands_for_its_cluster_ips() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish_all(&web);
        let _running = started(lab, &[]);
        let to = |arguments: &[&str]| {
            let answer = explained(lab, arguments);
            assert_eq!(answer["kind"], "ExplanationList", "{answer:#}");
            let items = answer["items"].as_array().expect("a list").clone();
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let all = items.iter().map(|item| {
                assert_eq!(item["verdict"], "forwarded", "{item:#}");
                format!("{}/{}", text(&item["to"]), text(&item["protocol"]))
            });
            all.collect::<Vec<_>>()
        };
        let [v4, v6] = [web.cluster()[0], web.cluster()[1]].map(|at| at.to_string());
        let expected = |protocol: &str| [&v4, &v6].map(|to| format!("{to}/{protocol}"));
        assert_eq!(to(&["--to", "web:tcp"]), expected("TCP"));
        assert_eq!(to(&["--to", "default/web/udp"]), expected("UDP"));
        let of_v4 = ["--to", "web:tcp", "--from", "10.244.0.11"];
        assert_eq!(to(&of_v4), expected("TCP")[..1]);
        let table = tripod(&lab.node, &["explain", "--to", "web:tcp"]).text;
        for to in expected("TCP") {
            assert!(table.contains(&format!("{to} from pod")), "{table}");
        }
        for (to, words) in [
            ("web", "several ports; name one of them"),
            ("web:http", "no such port: it has tcp ("),
            (
                "shop/web:tcp",
                "no Service shop/web is served on this node: there is default/web",
            ),
            (
                "shop",
                "no Service default/shop is served on this node: headless Services",
            ),
        ] {
            let printed = tripod(&lab.node, &["explain", "--to", to]);
            assert_eq!(printed.status, Some(1), "{printed:?}");
            assert!(printed.error.contains(words), "{printed:?}");
        }
        let trace = |arguments: &[&str]| {
            let arguments = [&["trace", "--timeout=200ms", "--to=web:tcp"], arguments].concat();
            tripod(&lab.node, &arguments)
        };
        let both = trace(&[]);
        assert_eq!(both.status, Some(2), "{both:?}");
        assert!(
            both.error
                .contains(&format!("name one of them, {v4}/tcp or {v6}/tcp")),
            "{both:?}"
        );
        let one = trace(&["--from=10.244.0.11"]);
        assert!(
            one.text.starts_with(&format!("{v4}/TCP from 10.244.0.11")),
            "{one:?}"
        );
    });
}

#[test]
fn a_wrong_question_says_what_is_wrong() {
    Lab::run(|lab| {
        lab.publish_all(&Service::new("web", 1));
        let _running = started(lab, &[]);
        for (arguments, status, words) in [
            (&["--to", "10.96.0.1"][..], 2, "10.96.0.10:53/udp"),
            (&["--to", "10.96.0.1:80/icmp"], 2, "10.96.0.10:53/udp"),
            (
                &["--to", "10.96.0.1:80", "--from", "web"],
                2,
                "pod, node or outside",
            ),
            (
                &["--to", "10.96.0.1:80", "--from", "::1"],
                1,
                "different IP families",
            ),
        ] {
            let arguments = [&["explain"], arguments].concat();
            let printed = tripod(&lab.node, &arguments);
            assert_eq!(printed.status, Some(status), "{printed:?}");
            assert!(printed.error.contains(words), "{printed:?}");
        }
    });
}

/// The rules, routes or elements of a ServicePort are its objects, and one that another
/// program removes by `breakage` is shown as missing among them, in each format; `named` are words
/// of it.
fn what_is_gone_is_missing(
    capture: Capture,
    start: impl FnOnce(&Lab) -> Tripod,
    named: &str,
    breakage: &'static str,
) {
    run(|| {
        let mut lab = Lab::new(capture);
        let web = Service::new("web", 1);
        lab.add_backends(&["a"]).publish(&web, &["a"]);
        let _running = start(&lab);
        let to = web.cluster()[0].to_string();
        let found = |breakage: &str| {
            let _ = lab.node.command("sh").args(["-c", breakage]).output();
            let answer = explained(&lab, &["--to", &to]);
            let objects = answer["objects"].as_array().expect("a list").iter();
            let of_it = objects.filter(|object| {
                let object = object["object"].as_str().unwrap_or_default();
                object.contains(named)
            });
            let found = of_it.map(|object| object["found"].as_str().unwrap_or_default());
            found.map(str::to_owned).collect::<Vec<_>>()
        };
        eventually("all is present", SOON, || match found("true") {
            found if !found.is_empty() && found.iter().all(|f| f == "present") => Ok(()),
            found => Err(format!("{capture:?}: {found:?}")),
        });
        // The proxy may have repaired it before the command asks.
        eventually("something is missing", SOON, || match found(breakage) {
            found if found.iter().any(|found| found == "missing") => Ok(()),
            found => Err(format!("{breakage}: {found:?}")),
        });
        for format in ["wide", "yaml"] {
            let change = Change {
                command: breakage,
                named: &["missing"],
            };
            change.is_named(&lab, &["explain", "-o", format, "--to", &to], 0);
        }
    });
}

#[test]
fn what_captures_a_service_port_is_among_its_objects() {
    let started = |lab: &Lab| started(lab, &[]);
    for (capture, named, breakage) in [
        (
            Capture::Redirect,
            "rule -A TRIPOD-USERSPACE",
            "iptables -t nat -F TRIPOD-USERSPACE",
        ),
        (
            Capture::Local,
            "10.96.0.1",
            "ip route flush 10.96.0.1 table all",
        ),
    ] {
        what_is_gone_is_missing(capture, started, named, breakage);
    }
}

#[test]
fn what_is_gone_is_missing_in_nftables_mode() {
    let started = |lab: &Lab| started_in(lab, "nftables");
    for breakage in [
        "nft flush map ip tripod services",
        "nft delete table ip tripod",
    ] {
        let named = "element 10.96.0.1 . tcp . 80";
        what_is_gone_is_missing(Capture::Redirect, started, named, breakage);
    }
}

#[test]
fn what_is_gone_is_missing_in_iptables_mode() {
    let started = |lab: &Lab| started_in(lab, "iptables");
    for (named, breakage) in [
        ("-d 10.96.0.1/32", "iptables -t nat -F KUBE-SERVICES"),
        (
            "chain KUBE-SVC-",
            "iptables -t nat -F KUBE-SERVICES; for chain in $(iptables -t nat -S | \
             sed -n 's/^-N \\(KUBE-SVC-.*\\)/\\1/p'); do iptables -t nat -F $chain; \
             iptables -t nat -X $chain; done",
        ),
    ] {
        what_is_gone_is_missing(Capture::Redirect, started, named, breakage);
    }
}

/// Missing objects of the Service itself are shown next to the present ones.
#[test]
#[ignore = "for a guest kernel with IPVS"]
fn in_ipvs_mode() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1);
        lab.add_backends(&["a", "b"]).publish(&web, &["a", "b"]);
        let _running = started_in(&lab, "ipvs");
        let to = web.cluster()[0].to_string();
        let asked = ["explain", "-o", "wide", "--to", &to];
        let there = tripod(&lab.node, &asked).text;
        assert!(!there.contains("missing"), "{there}");
        let gone = "ipvsadm -D -t 10.96.0.1:80";
        let all: [(&str, &'static [&str]); 4] = [
            (gone, &["missing", "virtual server 10.96.0.1:80/TCP"]),
            (gone, &["missing", "real server 10.244.0.11:8080 of"]),
            (
                "ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.11:8080",
                &["missing", "real server 10.244.0.11:8080"],
            ),
            (
                "ipset del KUBE-CLUSTER-IP 10.96.0.1,tcp:80",
                &["missing", "member 10.96.0.1,tcp:80 of set KUBE-CLUSTER-IP"],
            ),
        ];
        for (command, named) in all {
            Change { command, named }.is_named(&lab, &asked, 0);
        }
    });
}
