//! Sets with more members than the kernel's default size.

use std::{net::IpAddr, time::Duration};

use serde_json::{Value, json};

use super::node;
use crate::lab::{Capture, Host, Lab, ask, eventually, figure, run};

/// Load balancers and source ranges: more members than the 65,536 that a set can have by
/// default.
const BALANCERS: u16 = 256;
const RANGES: u16 = 257;
const CLUSTER_IP: [u8; 4] = [10, 96, 0, 1];
/// The name under which a larger set is filled.
const TEMPORARY: &str = "TRIPOD-TEMPORARY";

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_set_grows_with_what_it_must_hold() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        // As another proxy left it, and too small.
        let small = "ipset create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net maxelem 100";
        lab.node.show(small);
        lab.write("all.json", &guarded(1, 40));
        let tripod = node::start(&lab, &[]);
        let allowed = || ask(&lab.outside, at(balancer(0))).expect("an answer");
        assert_eq!(allowed(), "a");
        lab.write("all.json", &guarded(BALANCERS, RANGES));
        let expected = usize::from(BALANCERS) * usize::from(RANGES);
        let began = std::time::Instant::now();
        eventually("all members", Duration::from_secs(100), || {
            match members(&lab.node, "KUBE-LOAD-BALANCER-SOURCE-CIDR") {
                found if found == expected => Ok(()),
                found => Err(format!("{found} of {expected}")),
            }
        });
        figure(
            &format!("{expected} members, s"),
            began.elapsed().as_secs_f64(),
        );
        for number in [0, BALANCERS / 2, BALANCERS - 1] {
            eventually("it is served", Duration::from_secs(20), || {
                match ask(&lab.outside, at(balancer(number))) {
                    Ok(answer) if answer == "a" => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        assert_eq!(ask(&lab.node, at(CLUSTER_IP.into())).expect("one"), "a");
        assert!(!lab.node.show("ipset list -n").contains(TEMPORARY));
        assert_eq!(tripod.logged(&["not applied"]), 0, "{}", tripod.log());
        assert_eq!(tripod.logged(&["repaired"]), 0, "{}", tripod.log());
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn what_does_not_fit_costs_only_its_address() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        let node = &lab.node;
        // Room for one of three balancers and a part of the second one, and a rule that
        // blocks the temporary name.
        node.show("ipset create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net maxelem 64");
        node.show(&format!("ipset create {TEMPORARY} hash:ip"));
        let rule = format!("INPUT -m set --match-set {TEMPORARY} src -j ACCEPT");
        node.show(&format!("iptables -A {rule}"));
        lab.write("all.json", &guarded(3, 40));
        let tripod = node::spawn(&lab, &["--ipvs-sync-period=2s"]);
        let served = |ip: IpAddr| ask(&lab.outside, at(ip)).ok();
        eventually("the first balancer", Duration::from_secs(40), || {
            served(balancer(0)).ok_or(tripod.log())
        });
        assert_eq!(ask(node, at(CLUSTER_IP.into())).expect("it is served"), "a");
        let servers = node.show("ipvsadm -Sn");
        for number in [1, 2] {
            let ip = balancer(number);
            assert!(!servers.contains(&ip.to_string()), "{servers}");
        }
        // Endpoints of Services that are served are updated.
        lab.write("more.json", &other());
        eventually("another Service", Duration::from_secs(20), || {
            ask(&lab.node, at([10, 96, 0, 2].into())).map_err(|error| error.to_string())
        });
        let named = tripod.log();
        let named: Vec<&str> = named
            .lines()
            .filter(|l| l.contains("not applied"))
            .collect();
        let [line] = &named[..] else {
            panic!("{named:#?}");
        };
        assert!(line.contains("SOURCE-CIDR") && line.len() < 1_000, "{line}");

        // Once there is room, everything is served.
        node.show(&format!("iptables -D {rule}"));
        for number in [1, 2] {
            eventually("it is served", Duration::from_secs(40), || {
                served(balancer(number)).ok_or(tripod.log())
            });
        }
        assert!(!lab.node.show("ipset list -n").contains(TEMPORARY));
    });
}

fn at(ip: IpAddr) -> std::net::SocketAddr {
    (ip, 80).into()
}

fn balancer(number: u16) -> IpAddr {
    let [_, low] = number.to_be_bytes();
    [203, 0, 113, low].into()
}

fn members(host: &Host, set: &str) -> usize {
    let text = host.show(&format!("ipset list -t {set}"));
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("Number of entries: "));
    line.and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Returns a Service with this number of load balancers, each with this number of source ranges;
/// the last of these contains the caller from outside.
fn guarded(balancers: u16, ranges: u16) -> String {
    let ranges = (1..ranges).map(|range| {
        let [high, low] = range.to_be_bytes();
        format!("100.64.{high}.{low}/32")
    });
    let ranges: Vec<String> = ranges.chain(["192.0.2.20/32".to_owned()]).collect();
    let ingress: Vec<Value> = (0..balancers)
        .map(|number| json!({"ip": balancer(number)}))
        .collect();
    // More for one Service would exceed its limit.
    let mut items = Vec::new();
    for (number, ingress) in (0..).zip(ingress.chunks(128)) {
        let [a, b, c, d] = CLUSTER_IP;
        let mut pair = objects(&format!("web-{number}"), [a, b, c + number, d]);
        pair[0]["spec"]["type"] = "LoadBalancer".into();
        pair[0]["spec"]["loadBalancerSourceRanges"] = json!(ranges);
        pair[0]["status"] = json!({"loadBalancer": {"ingress": ingress}});
        items.extend(pair);
    }
    list(&items)
}

fn other() -> String {
    list(&objects("other", [10, 96, 0, 2]))
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn objects(name: &str, cluster_ip: [u8; 4]) -> [Value; 2] {
    [
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "clusterIP": IpAddr::from(cluster_ip),
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.0.11"], "conditions": {"ready": true}}],
        }),
    ]
}
