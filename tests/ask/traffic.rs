//! The traffic that `tripod services` reports.

use std::time::Duration;

use serde_json::{Value, json};

use super::{SOON, started, tripod};
use crate::lab::{
    Capture, Lab, Service, Tripod, ask, eventually, get,
    guest::{Profile, in_guest},
    run, say, tcp, tripod_binary,
};

/// The answer about the port TCP over IPv4 of `default/web`.
fn port(lab: &Lab) -> Value {
    let answer = tripod(&lab.node, &["services", "default/web", "-o", "json"]).json();
    let items = answer["items"].as_array().expect("a list").iter();
    let mut items = items.filter(|port| port["protocol"] == "TCP" && port["family"] == "IPv4");
    items.next().expect("the port").clone()
}

#[test]
fn userspace_mode_knows_who_is_connected() {
    Lab::run(|lab| {
        let web = Service::new("web", 1).with_external_ip();
        lab.publish(&web, &["a", "b"]);
        let _running = started(lab, &[]);
        let (cluster, external) = (web.cluster()[0], web.external()[0]);
        let connections = [
            (&lab.client, cluster),
            (&lab.client, cluster),
            (&lab.outside, external),
        ];
        let mut open = connections.map(|(from, to)| tcp(from, to).expect("a connection"));
        for stream in &mut open {
            say(stream, "name").expect("an answer");
        }
        let port = port(lab);
        // Each sent a line of five bytes, and got an answer of two.
        let carried = json!({
            "active": 3, "connections": 3, "bytesIn": 15, "bytesOut": 6,
        });
        assert_eq!(port["traffic"], carried, "{port:#}");
        let endpoints = port["endpoints"].as_array().expect("a list").iter();
        let active: u64 = endpoints
            .filter_map(|endpoint| endpoint["traffic"]["active"].as_u64())
            .sum();
        assert_eq!(active, 3, "{port:#}");
        drop(open);
        eventually("they have ended", SOON, || match self::port(lab) {
            port if port["traffic"]["active"] == 0 => Ok(()),
            port => Err(format!("{port:#}")),
        });
    });
}

#[test]
fn an_endpoint_that_does_not_answer_is_ejected() {
    Lab::run(|lab| {
        let web = Service::new("web", 1);
        lab.publish(&web, &["a", "b"]);
        let _running = started(lab, &[]);
        lab.backend("a").kill();
        let to = web.cluster()[0];
        eventually("a is ejected", SOON, || {
            ask(&lab.client, to).map_err(|error| error.to_string())?;
            let port = port(lab);
            let expected = [
                json!({"inUse": false, "why": "ejected, it did not answer lately"}),
                json!({"inUse": true, "why": null}),
            ];
            let endpoints = port["endpoints"].as_array().expect("a list").iter();
            let found = endpoints
                .map(|endpoint| json!({"inUse": endpoint["inUse"], "why": endpoint["why"]}));
            if found.collect::<Vec<_>>() != expected {
                return Err(format!("{port:#}"));
            }
            // It may be tried again a moment later.
            let arguments = ["explain", "--to", &to.to_string(), "-o", "json"];
            let explained = tripod(&lab.node, &arguments).json();
            let candidates = explained["candidates"].as_array().expect("a list");
            let passed_over = &explained["passedOver"][0]["why"];
            let is_left_out = candidates.len() == 1 && candidates[0]["share"] == 1.0;
            match passed_over.as_str() {
                Some("ejected, it did not answer lately") if is_left_out => {}
                _ => return Err(format!("{explained:#}")),
            }
            let steps = explained["steps"].as_array().expect("a list");
            let count = "1 endpoint takes connections";
            assert!(steps.iter().any(|step| step == count), "{explained:#}");
            let status = tripod(&lab.node, &["status", "-o", "json"]).json();
            let counts = ["endpoints", "endpointsInUse"];
            let counts = counts.map(|count| status["counts"][count].as_u64());
            match counts.map(|count| count.expect("a number")) {
                [all, used] if used + 1 == all => Ok(()),
                counts => Err(format!("{counts:?}")),
            }
        });
    });
}

fn start_iptables(lab: &Lab, namespaces: &str) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args(["--proxy-mode=iptables", "--hostname-override=node"])
        .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64", "--v=2"])
        .args(["--conntrack-max-per-core=0", "--manifests"])
        .arg(lab.manifests())
        .arg(format!("--service-metrics={namespaces}"));
    Tripod::start_on(&lab.node, command)
}

#[test]
fn iptables_mode_counts_connections_of_chosen_namespaces() {
    Lab::run(|lab| {
        let web = Service::new("web", 1).with_external_ip();
        lab.publish(&web, &["a", "b"]);
        let mut running = start_iptables(lab, "default");
        // Recently read counters are not read again.
        let counted = |expected: u64, endpoints: usize| {
            eventually("all is counted", SOON, || {
                let port = port(lab);
                let each = port["endpoints"].as_array().expect("a list").iter();
                let each: Vec<_> = each
                    .filter_map(|endpoint| endpoint["traffic"]["connections"].as_u64())
                    .collect();
                let is_all = port["traffic"]["connections"] == expected
                    && each.len() == endpoints
                    && each.iter().sum::<u64>() == expected;
                is_all.then_some(()).ok_or_else(|| format!("{port:#}"))
            });
        };
        counted(0, 2);
        let (cluster, external) = (web.cluster()[0], web.external()[0]);
        for (from, to, times) in [
            (&lab.client, cluster, 4),
            (&lab.node, cluster, 3),
            (&lab.outside, external, 2),
        ] {
            for _ in 0..times {
                ask(from, to).expect("an answer");
            }
        }
        counted(9, 2);
        let port = port(lab);
        for what in ["active", "bytesIn", "bytesOut"] {
            assert_eq!(port["traffic"][what], Value::Null, "{what}: {port:#}");
        }
        let labels = ["service=\"web\"", "protocol=\"TCP\"", "ip_family=\"IPv4\""];
        let metrics = get(&lab.node, ([127, 0, 0, 1], 10249).into(), "/metrics");
        let metrics = metrics.expect("an answer");
        let series = metrics.lines().filter(|line| {
            line.starts_with("tripod_endpoint_connections_total{")
                && labels.iter().all(|label| line.contains(label))
        });
        let values = series.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
        assert_eq!(values.sum::<u64>(), 9, "{metrics}");
        assert!(
            !metrics.contains("tripod_endpoint_client_bytes"),
            "{metrics}"
        );
        lab.publish(&web, &["a", "b", "c"]);
        counted(9, 3);
        // The rules stay, and with them their counters.
        assert!(running.terminate().success());
        running = start_iptables(lab, "*");
        counted(9, 3);
        assert!(running.terminate().success());
        let _running = start_iptables(lab, "other");
        assert_eq!(self::port(lab)["traffic"]["connections"], Value::Null);
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn ipvs_counts_connections_and_bytes() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        let web = Service::new("web", 1).with_external_ip();
        lab.add_backends(&["a", "b"]).publish(&web, &["a", "b"]);
        let mut command = lab.node.command(tripod_binary());
        command
            .args([
                "--proxy-mode=ipvs",
                "--hostname-override=node",
                "--manifests",
            ])
            .arg(lab.manifests())
            .args(["--cluster-cidr=10.244.0.0/24,fd00:244::/64", "--v=2"]);
        let _running = Tripod::start_on(&lab.node, command);
        let to = web.external()[0];
        for _ in 0..8 {
            ask(&lab.outside, to).expect("an answer");
        }
        let mut open = tcp(&lab.outside, to).expect("a connection");
        say(&mut open, "name").expect("an answer");
        // The kernel adds up its counters every two seconds (`ip_vs_est.c`).
        let port = eventually("all is counted", Duration::from_secs(20), || {
            let port = port(&lab);
            match port["traffic"]["connections"].as_u64() {
                Some(9) => Ok(port),
                _ => Err(format!("{port:#}")),
            }
        });
        assert_eq!(port["traffic"]["active"], 1, "{port:#}");
        let endpoints = port["endpoints"].as_array().expect("a list");
        let number = |value: &Value, what: &str| value["traffic"][what].as_u64().unwrap_or(0);
        for what in ["connections", "bytesIn", "bytesOut"] {
            let sum: u64 = endpoints
                .iter()
                .map(|endpoint| number(endpoint, what))
                .sum();
            assert!(sum > 0 && sum == number(&port, what), "{what}: {port:#}");
        }
        let table = tripod(&lab.node, &["services", "default/web"]).text;
        let row = table.lines().nth(1).expect("a row");
        let words: Vec<_> = row.split_whitespace().collect();
        assert_eq!(words[7..9], ["1", "9"], "{table}");
    });
}

#[test]
fn guest_full_ask_traffic() {
    let tests = ["ask::traffic::ipvs_counts_connections_and_bytes"];
    in_guest(Profile::Full, &tests, &[]);
}
