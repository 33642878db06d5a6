//! Traffic of endpoints in the namespaces of `--service-metrics`.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde_json::Value;

use super::start_with;
use crate::lab::{Lab, Service, ask, eventually, get, tripod_binary, udp_ask};

const NODE_PORTS: &str = "--nodeport-addresses=all";

/// Time limit within which a change must show.
const SOON: Duration = Duration::from_secs(10);

/// The report of `tripod services` about each port of `default/web`, by protocol and family.
fn ports(lab: &Lab) -> BTreeMap<String, Value> {
    let mut command = lab.node.command(tripod_binary());
    let asked = command.args(["services", "default/web", "--output=json"]);
    let output = asked.output().expect("running tripod");
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let items = answer["items"].as_array().expect("a list").iter();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let named = items.map(|port| {
        (
            text(&port["protocol"]) + &text(&port["family"]),
            port.clone(),
        )
    });
    named.collect()
}

/// Sums all series of an endpoint metric with these labels.
fn scraped(lab: &Lab, metric: &str, labels: &[&str]) -> u64 {
    let at = ([127, 0, 0, 1], 10249).into();
    let body = get(&lab.node, at, "/metrics").expect("an answer");
    let name = format!("tripod_endpoint_{metric}{{");
    let series = body.lines().filter(|line| line.starts_with(&name));
    let series = series.filter(|line| labels.iter().all(|label| line.contains(label)));
    let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

fn sum(port: &Value, what: &str) -> u64 {
    let endpoints = port["endpoints"].as_array().expect("a list").iter();
    let carried = endpoints.filter_map(|endpoint| endpoint["traffic"][what].as_u64());
    carried.sum()
}

#[test]
fn connections_and_bytes_of_each_endpoint_are_counted_once() {
    Lab::run(|lab| {
        let web = Service::new("web", 1).with_external_ip().with_node_port();
        lab.publish(&web, &["a", "b"]);
        let _tripod = start_with(lab, &[NODE_PORTS, "--service-metrics=default"]);
        for at in [0, 1] {
            let (cluster, external) = (web.cluster()[at], web.external()[at]);
            let node_port = SocketAddr::new(lab.node.addresses[at], web.node_port());
            let calls = [
                (&lab.client, cluster, 4),
                (&lab.node, cluster, 3),
                (&lab.outside, external, 2),
                (&lab.outside, node_port, 2),
            ];
            for (from, to, times) in calls {
                for _ in 0..times {
                    ask(from, to).unwrap_or_else(|error| panic!("{to}: {error}"));
                }
            }
            for _ in 0..2 {
                udp_ask(&lab.client, cluster).expect("an answer");
            }
        }
        let counted = ports(lab);
        for (name, connections) in [("TCPIPv4", 11), ("TCPIPv6", 11), ("UDPIPv4", 2)] {
            let port = &counted[name];
            assert_eq!(port["traffic"]["connections"], connections, "{port:#}");
            for what in ["connections", "bytesIn", "bytesOut"] {
                assert_eq!(port["traffic"][what], sum(port, what), "{what}: {port:#}");
            }
        }
        // A TCP connection with one line each of question and answer has at least 5 packets of 52
        // bytes to the endpoint, and less than 20 of 100.
        let bytes = sum(&counted["TCPIPv4"], "bytesIn");
        assert!((11 * 260..11 * 2_000).contains(&bytes), "{bytes} bytes");
        let mut command = lab.node.command(tripod_binary());
        let diff = command.arg("diff").output().expect("running tripod");
        assert!(diff.status.success(), "{diff:?}");
        let labels = ["service=\"web\"", "protocol=\"TCP\"", "ip_family=\"IPv4\""];
        assert_eq!(scraped(lab, "connections_total", &labels), 11);
        let answers = sum(&counted["TCPIPv4"], "bytesOut");
        assert_eq!(scraped(lab, "answer_bytes_total", &labels), answers);
        assert_eq!(scraped(lab, "client_bytes_total", &labels), bytes);
    });
}

#[test]
fn what_was_counted_stays_while_other_endpoints_come_and_go() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &["a"]);
        let _tripod = start_with(lab, &["--service-metrics=*"]);
        let to = web.cluster()[0];
        for _ in 0..3 {
            ask(&lab.client, to).expect("an answer");
        }
        for backends in [&["a", "b"][..], &["a"]] {
            lab.publish(&web, backends);
            eventually("the endpoints are applied", SOON, || {
                let port = &ports(lab)["TCPIPv4"];
                let endpoints = port["endpoints"].as_array().map_or(0, Vec::len);
                let same = endpoints == backends.len() && sum(port, "connections") == 3;
                same.then_some(()).ok_or_else(|| format!("{port:#}"))
            });
        }
    });
}

#[test]
fn nothing_is_counted_that_is_not_asked_for() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &["a"]);
        for (flags, counts) in [(&[][..], false), (&["--service-metrics=other"], true)] {
            let mut tripod = start_with(lab, flags);
            ask(&lab.client, web.cluster()[0]).expect("an answer");
            assert_eq!(ports(lab)["TCPIPv4"]["traffic"]["connections"], Value::Null);
            assert_eq!(scraped(lab, "connections_total", &[]), 0);
            let table = lab.node.show("nft list table ip tripod");
            assert_eq!(table.contains("count-forward"), counts, "{table}");
            tripod.terminate();
        }
    });
}
