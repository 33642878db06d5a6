//! No excluded client gets through during changes.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream},
    ops::Range,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{adoption::Stop, node, recorded::State};
use crate::lab::{Capture, Lab, eventually, figure, run, tripod_binary};

/// Number of Services: two ports each for half as many load balancers.
const SERVICES: u16 = 500;
/// How often each half of them is removed and added again.
const ROUNDS: usize = 3;
/// Time limit for a sync, in a slow guest. It only ends a test that hangs.
const LATER: Duration = Duration::from_secs(90);
/// How often a first sync is interrupted.
const KILLS: u32 = 6;

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn a_forbidden_client_never_gets_through() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        lab.outside.ip(&["addr add 198.18.0.5/32 dev eth0"]);
        lab.write("all.json", &services(0..SERVICES));
        let (stop, tried) = (AtomicBool::new(false), AtomicUsize::new(0));
        let end = Stop(&stop);
        std::thread::scope(|scope| {
            let end = end;
            let callers: Vec<_> = (0..8u16)
                .map(|caller| {
                    let (outside, stop, tried) = (&lab.outside, &stop, &tried);
                    scope.spawn(move || outside.enter(|| probe(caller, stop, tried)))
                })
                .collect();
            // Killed at any time, it continues where it was.
            let mut tripod = node::start(&lab, &[]);
            tripod.kill();
            drop(tripod);
            let tripod = node::start(&lab, &[]);
            let all = State::of(&lab.node);
            assert_eq!(all.addresses.len(), usize::from(SERVICES) * 3 / 2);
            let allowed = SocketAddr::from(([198, 18, 0, 5], 0));
            let to = SocketAddr::new(load_balancer(7), 81);
            crate::lab::tcp_from(&lab.outside, allowed, to).expect("who may gets through");
            // One half after the other, so that others exist all the time.
            for _ in 0..ROUNDS {
                for half in [0..SERVICES / 2, SERVICES / 2..SERVICES] {
                    lab.write("all.json", &services(half.clone()));
                    eventually("one half", LATER, || match node::servers_there(&lab.node) {
                        all if all == half.len() * 2 => Ok(()),
                        other => Err(format!("{other} virtual servers")),
                    });
                }
            }
            lab.remove("all.json");
            eventually("all is gone", LATER, || {
                match State::of(&lab.node).servers.len() {
                    0 => Ok(()),
                    left => Err(format!("{left} lines; {}", tripod.log())),
                }
            });
            drop(end);
            for caller in callers {
                let through = caller.join().expect("it probes");
                assert_eq!(through, Vec::<SocketAddr>::new(), "got through");
            }
        });
        figure("probes of a forbidden client", tried.load(Relaxed));
    });
}

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn killed_in_mid_sync_it_converges_and_doubles_nothing() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a"]);
        lab.write("all.json", &services(0..SERVICES));
        let began = Instant::now();
        let tripod = node::start(&lab, &[]);
        let whole = began.elapsed();
        let expected = State::of(&lab.node);
        assert_eq!(expected.addresses.len(), usize::from(SERVICES) * 3 / 2);
        drop(tripod);
        let mut reached = Vec::new();
        for part in 1..=KILLS {
            let cleanup = format!("{} cleanup", tripod_binary().display());
            lab.node.show(&cleanup);
            let mut tripod = node::spawn(&lab, &[]);
            match part % 2 {
                // At an arbitrary point.
                0 => std::thread::sleep(whole * part / (KILLS + 1)),
                // With some of the virtual servers in place.
                _ => lab.node.enter(|| reach(20 * part as usize, whole * 3)),
            }
            tripod.kill();
            let there = State::of(&lab.node);
            reached.push((there.servers.len(), there.addresses.len()));
            drop(tripod);
            let tripod = node::start(&lab, &[]);
            let found = expected.differences(&State::of(&lab.node));
            assert!(found.is_empty(), "{part}: {}", found.join("\n"));
            for program in ["iptables-save", "ip6tables-save"] {
                let text = lab.node.show(program);
                let mut seen = BTreeSet::new();
                let mut table = "";
                for line in text.lines().filter(|line| !line.starts_with('#')) {
                    if line.starts_with('*') {
                        table = line;
                    }
                    let is_new = line == "COMMIT" || seen.insert((table, line));
                    assert!(is_new, "{part}: twice in {table}: {line}");
                }
            }
            drop(tripod);
        }
        figure(
            "lines of ipvsadm and addresses when killed",
            format!(
                "{reached:?} of ({}, {})",
                expected.servers.len(),
                expected.addresses.len()
            ),
        );
    });
}

/// Waits until `lines` lines list virtual servers in this namespace.
fn reach(lines: usize, patience: Duration) {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        let text = std::fs::read_to_string("/proc/thread-self/net/ip_vs");
        // The first three lines are a heading.
        if text.is_ok_and(|text| text.lines().count() >= lines + 3) {
            return;
        }
        std::thread::yield_now();
    }
}

/// Calls one load balancer after the other. Returns those that admit it.
fn probe(first: u16, stop: &AtomicBool, tried: &AtomicUsize) -> Vec<SocketAddr> {
    let mut through = Vec::new();
    let mut number = first;
    while !stop.load(Relaxed) {
        number = (number + 8) % (SERVICES / 2);
        for port in [80, 81] {
            let to = SocketAddr::new(load_balancer(number), port);
            let wait = Duration::from_millis(50);
            if TcpStream::connect_timeout(&to, wait).is_ok() {
                through.push(to);
            }
            // Callers that get an answer at once must not take the processor from Tripod.
            std::thread::sleep(Duration::from_millis(2));
            tried.fetch_add(1, Relaxed);
        }
    }
    through
}

fn load_balancer(number: u16) -> IpAddr {
    let [_, low] = number.to_be_bytes();
    Ipv4Addr::new(203, 0, 113, low).into()
}

fn services(numbers: Range<u16>) -> String {
    let items = numbers.flat_map(|i| {
        let (half, port) = (i / 2, 80 + i % 2);
        let [high, low] = i.to_be_bytes();
        let name = format!("s{i}");
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": Ipv4Addr::new(10, 97, high, low),
                "loadBalancerSourceRanges": ["198.18.0.0/15"],
                "ports": [{"port": port, "targetPort": 8080, "protocol": "TCP"}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": load_balancer(half)}]}},
        });
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": name, "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.244.0.11"], "conditions": {"ready": true}}],
        });
        [service, slice]
    });
    let items: Vec<Value> = items.collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}
