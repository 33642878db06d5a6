//! Whatever happens to the process and to endpoints: no forbidden client gets through, no
//! connection breaks, and the table is right in the end.

use std::{
    net::{Ipv4Addr, TcpStream},
    thread::sleep,
    time::Duration,
};

use serde_json::{Value, json};

use super::{command, start};
use crate::lab::{Lab, Service, Tripod, ask, eventually, none_gets_through, say, tcp};

const SERVICES: u16 = 500;
const LOAD_BALANCER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
const SOON: Duration = Duration::from_secs(10);

/// Pseudorandom numbers below a bound, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // Knuth's linear congruential generator, its upper bits.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % bound
    }

    /// Waits for a random time, less than this number of milliseconds.
    fn wait(&mut self, millis: u64) {
        sleep(Duration::from_millis(self.below(millis)));
    }
}

/// A Service with one load-balancer address and port, and its endpoint.
fn balanced(number: u16, allowed: &str) -> [Value; 2] {
    let name = format!("lb-{number}");
    let [high, low] = number.to_be_bytes();
    let cluster_ip = format!("10.96.{}.{low}", 1 + high);
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "type": "LoadBalancer", "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ports": [{"port": 1000 + number, "protocol": "TCP", "targetPort": 8080}],
            "loadBalancerSourceRanges": [allowed],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": LOAD_BALANCER}]}},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": name, "namespace": "default",
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.0.11"], "conditions": {"ready": true}}],
    });
    [service, slice]
}

#[test]
fn a_forbidden_client_never_gets_through() {
    Lab::run(|lab| {
        // All Services except the last keep out the host outside.
        let forbidden = (0..SERVICES).flat_map(|number| balanced(number, "198.51.100.0/24"));
        let all = forbidden.chain(balanced(SERVICES, "192.0.2.0/24"));
        let items: Vec<Value> = all.collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        lab.write("balanced.json", &list.to_string());
        let allowed = (LOAD_BALANCER, 1000 + SERVICES).into();
        let lab = &*lab;
        let forbidden = 1000..1000 + SERVICES;
        none_gets_through(&lab.outside, 2, LOAD_BALANCER, forbidden, || {
            let mut random = Random(1);
            for _ in 0..3 {
                let mut tripod = start(lab);
                assert_eq!(ask(&lab.outside, allowed).expect("allowed"), "a");
                tripod.kill();
                lab.node.show("nft delete table ip tripod");
                // This process may end in the middle of its first sync.
                let mut killed = Tripod::spawn(command(lab));
                random.wait(1000);
                killed.kill();
                lab.node.show("nft flush ruleset");
            }
        });
    });
}

/// The content of the table as text, without the parts that differ each time it is written.
fn table(lab: &Lab) -> Vec<String> {
    let text = lab.node.show("nft -s list table ip tripod");
    let mut lines: Vec<String> = text
        .lines()
        .map(|line| line.trim().trim_end_matches(',').to_owned())
        .collect();
    lines.sort();
    lines
}

fn living(open: &mut [TcpStream], when: &str) {
    for stream in open {
        say(stream, "name").unwrap_or_else(|error| panic!("{when}: {error}"));
    }
}

#[test]
fn killed_while_endpoints_are_replaced_it_breaks_no_connection_and_converges() {
    Lab::run(|lab| {
        let service = Service::new("web", 1);
        lab.publish_all(&service);
        let mut tripod = start(lab);
        let to = service.cluster()[0];
        let call = || ask(&lab.client, to).map_err(|error| error.to_string());
        eventually("the Service is applied", SOON, call);
        let open = (0..12).map(|_| tcp(&lab.client, to).expect("a connection"));
        let mut open: Vec<TcpStream> = open.collect();
        let mut random = Random(2);
        let sets: [&[&str]; 4] = [&["a", "b"], &["b", "c"], &["c", "a"], &["a", "b", "c"]];
        for round in 0..16 {
            lab.publish(&service, sets[random.below(4) as usize]);
            random.wait(60);
            let when = format!("round {round}");
            tripod.kill();
            call().unwrap_or_else(|error| panic!("{when}, nothing runs: {error}"));
            living(&mut open, &when);
            tripod = if random.below(2) == 0 {
                start(lab)
            } else {
                Tripod::spawn(command(lab))
            };
            random.wait(300);
            call().unwrap_or_else(|error| panic!("{when}: {error}"));
        }
        tripod.kill();
        lab.publish(&service, &["b"]);
        let tripod = start(lab);
        eventually("only b is called", SOON, || {
            let answers: Result<Vec<String>, String> = (0..20).map(|_| call()).collect();
            let answers = answers?;
            let right = answers.iter().all(|answer| answer == "b");
            right.then_some(()).ok_or(format!("{answers:?}"))
        });
        living(&mut open, "in the end");
        let found = table(lab);
        drop(tripod);
        lab.node.show("nft flush ruleset");
        let _fresh = start(lab);
        assert_eq!(found, table(lab));
    });
}
