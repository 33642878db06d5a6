//! The cost of many Services.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{adoption::Stop, node};
use crate::lab::{Capture, Lab, acceptance, ask, eventually, figure, get, run};

/// Number of Services, with [`ENDPOINTS`] endpoints each.
fn size() -> u16 {
    if acceptance() { 5_000 } else { 500 }
}

const ENDPOINTS: u8 = 5;
/// Issue 5, acceptance 3.
const FIRST_SYNC: f64 = 10.0;
const CHANGE: f64 = 0.030;
const RESIDENT: f64 = 45.0;

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn many_services_are_synced_in_time_and_memory() {
    run(|| {
        let mut lab = Lab::new(Capture::Redirect);
        lab.add_backends(&["a", "b"]);
        let number = size();
        let items: Vec<Value> = (0..number).flat_map(service).collect();
        lab.write("all.json", &list(&items));
        lab.write("one.json", &list(&one(11)));
        let tripod = node::start(&lab, &["--v=2"]);
        let metric = |name: &str| tripod.metric(&lab.node, name).unwrap_or_default();
        let first = metric("kubeproxy_sync_proxy_rules_duration_seconds_sum");
        let resident = tripod.resident_kib() as f64 / 1024.0;
        figure(&format!("first sync of {number} × {ENDPOINTS}, s"), first);
        figure("resident after it, MiB", resident);
        figure("of that", memory_parts(tripod.pid()));
        let servers = node::servers_there(&lab.node);
        assert_eq!(servers, usize::from(number) + 2, "virtual servers");

        let partial = "kubeproxy_sync_partial_proxy_rules_duration_seconds";
        let (sum, count) = (format!("{partial}_sum"), format!("{partial}_count"));
        let before = (metric(&sum), metric(&count));
        for turn in 0..6 {
            let (last, name) = [(12, "b"), (11, "a")][turn % 2];
            lab.write("one.json", &list(&one(last)));
            eventually("the change", Duration::from_secs(20), || {
                match ask(&lab.outside, ([198, 51, 100, 1], 80).into()) {
                    Ok(answer) if answer == name => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            });
        }
        let changes = metric(&count) - before.1;
        let each = (metric(&sum) - before.0) / changes;
        figure("sync of one changed endpoint, s", each);

        drop(tripod);
        let tripod = node::start(&lab, &["--v=2", "--ipvs-sync-period=3s"]);
        let stop = AtomicBool::new(false);
        let slowest = std::thread::scope(|scope| {
            let end = Stop(&stop);
            let asked = scope.spawn(|| slowest_answer(&lab, &stop));
            let name = "kubeproxy_sync_full_proxy_rules_duration_seconds";
            let (sum, count) = (format!("{name}_sum"), format!("{name}_count"));
            let metric = |name: &str| tripod.metric(&lab.node, name).unwrap_or_default();
            let before = (metric(&sum), metric(&count));
            eventually("periodic syncs", Duration::from_secs(60), || {
                match metric(&count) - before.1 {
                    done if done >= 3.0 => Ok(()),
                    done => Err(done.to_string()),
                }
            });
            let each = (metric(&sum) - before.0) / (metric(&count) - before.1);
            figure("periodic sync, s", each);
            drop(end);
            asked.join().expect("answers")
        });
        figure("slowest /livez during them", format!("{slowest:?}"));
        let resident_then = tripod.resident_kib() as f64 / 1024.0;
        figure("resident after them, MiB", resident_then);
        figure("of that", memory_parts(tripod.pid()));
        assert_eq!(tripod.logged(&["repaired"]), 0, "{}", tripod.log());
        if acceptance() {
            assert!(first <= FIRST_SYNC, "first sync took {first} s");
            assert!(each <= CHANGE, "a change took {each} s");
            let most = resident.max(resident_then);
            assert!(most <= RESIDENT, "{most} MiB are resident");
        }
    });
}

/// Number of foreign rules on the node. Tripod may use only little more memory at its peak than
/// without them.
fn foreign_rules() -> u32 {
    if acceptance() { 150_000 } else { 40_000 }
}
const MORE: u64 = 3 * 1024;

#[test]
#[ignore = "for a guest kernel with IPVS"]
fn rules_of_others_cost_no_memory() {
    run(|| {
        let lab = Lab::new(Capture::Redirect);
        lab.write("one.json", &list(&one(11)));
        let peak = || {
            let tripod = node::start(&lab, &["--ipvs-sync-period=1s"]);
            let full = "kubeproxy_sync_full_proxy_rules_duration_seconds_count";
            eventually("full syncs", Duration::from_secs(120), || {
                match tripod.metric(&lab.node, full).unwrap_or_default() {
                    done if done >= 3.0 => Ok(()),
                    done => Err(done.to_string()),
                }
            });
            tripod.resident_peak_kib()
        };
        let before = peak();
        let number = foreign_rules();
        let mut batch = String::from("*filter\n:OTHERS - [0:0]\n");
        for rule in 0..number {
            let source = Ipv4Addr::from(0x0b00_0000 + rule);
            let words = "-p tcp -m comment --comment \"a rule of others\" -j RETURN";
            batch.push_str(&format!("-A OTHERS -s {source}/32 {words}\n"));
        }
        batch.push_str("COMMIT\n");
        lab.write("others.rules", &batch);
        let file = lab.manifests().join("others.rules");
        let load = format!("iptables-restore --noflush {}", file.display());
        lab.node.show(&load);
        lab.remove("others.rules");
        let with = peak();
        figure("peak memory without rules of others, KiB", before);
        figure(&format!("peak memory with {number} of them, KiB"), with);
        assert!(with < before + MORE, "{before} KiB, then {with} KiB");
    });
}

/// Lists the kinds of resident memory.
fn memory_parts(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let parts = text.lines().filter(|line| {
        ["RssAnon", "RssFile", "VmHWM"]
            .iter()
            .any(|p| line.starts_with(p))
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Probes the program's liveness continuously: the slowest answer shows how long its thread was
/// busy.
fn slowest_answer(lab: &Lab, stop: &AtomicBool) -> Duration {
    let mut slowest = Duration::ZERO;
    while !stop.load(Relaxed) {
        let began = Instant::now();
        let at = (lab.node.addresses[0], 10256).into();
        let answer = get(&lab.node, at, "/livez").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        slowest = slowest.max(began.elapsed());
    }
    slowest
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn service(number: u16) -> [Value; 2] {
    let [high, low] = number.to_be_bytes();
    let endpoints = (1..=ENDPOINTS).map(|e| Ipv4Addr::new(10, e, high, low));
    objects(
        &format!("service-{number:05}"),
        Ipv4Addr::new(10, 97, high, low),
        json!([]),
        &endpoints.collect::<Vec<_>>(),
    )
}

/// The Service that changes.
fn one(last: u8) -> [Value; 2] {
    let external = json!(["198.51.100.1"]);
    let endpoint = Ipv4Addr::new(10, 244, 0, last);
    objects("one", [10, 96, 0, 1].into(), external, &[endpoint])
}

fn objects(name: &str, ip: Ipv4Addr, external: Value, endpoints: &[Ipv4Addr]) -> [Value; 2] {
    let endpoints = endpoints.iter().zip(0..).map(|(address, e)| {
        json!({
            "addresses": [address], "conditions": {"ready": true},
            "nodeName": format!("node-{e}"),
            "targetRef": {"kind": "Pod", "name": format!("{name}-{e}"), "namespace": "default"},
        })
    });
    [
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "clusterIP": ip, "externalIPs": external,
                "ports": [{"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP"}],
            },
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-abcde"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints.collect::<Vec<_>>(),
        }),
    ]
}
