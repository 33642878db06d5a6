//! Hostile objects: each mode leaves out anything that would send packets to the node's loopback,
//! to its metadata service or back to itself, and serves everything else.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use super::probe::default_mode;
use crate::lab::{Capture, Host, Lab, Service, Tripod, ask, ask_within, get, run, tripod_binary};

/// Addresses that no object may reach.
const CANARY: [&str; 3] = ["127.0.0.1:7000", "[::1]:7000", "169.254.169.254:7000"];
const CANARY_PORT: u16 = 7000;

/// Time limit of calls that nobody answers.
const SHORT: Duration = Duration::from_millis(300);

/// Endpoints that are left out, which is logged. A file may name loopback ones.
const ENDPOINTS: [&str; 9] = [
    "0.0.0.0",
    "169.254.169.254",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "localhost",
];

/// Addresses at which no Service is served, by the field that names them.
const ADDRESSES: [(&str, &[&str]); 3] = [
    (
        "cluster",
        &[
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
        ],
    ),
    (
        "external",
        &[
            "127.0.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "::1",
            "169.254.169.254",
        ],
    ),
    ("balancer", &["127.0.0.1", "0.0.0.0", "224.0.0.1", "::1"]),
];

/// The modes, each with the capture of userspace mode.
pub(super) fn modes() -> &'static [(&'static str, Capture)] {
    match default_mode() {
        "ipvs" => &[("ipvs", Capture::Local)],
        "nftables" => &[
            ("nftables", Capture::Local),
            ("iptables", Capture::Local),
            ("userspace", Capture::Redirect),
            ("userspace", Capture::Local),
        ],
        _ => &[("userspace", Capture::Local)],
    }
}

pub(super) fn start(lab: &Lab, mode: &str) -> Tripod {
    start_with(lab, mode, &[])
}

/// Like [`start`], with further flags.
pub(super) fn start_with(lab: &Lab, mode: &str, flags: &[&str]) -> Tripod {
    start_by(lab.node.command(tripod_binary()), lab, mode, flags)
}

/// Like [`start_with`], by this `command`, to which flags are added.
pub(super) fn start_by(mut command: Command, lab: &Lab, mode: &str, flags: &[&str]) -> Tripod {
    command
        .args(flags)
        .args([&format!("--proxy-mode={mode}"), "--strict-proxy-mode"])
        .arg(format!("--userspace-capture={}", lab.capture.flag()))
        .arg("--manifests")
        .arg(lab.manifests())
        .args(["--hostname-override=node", "--conntrack-max-per-core=0"])
        // Pods are on one bridge: their answers have to come through the node.
        .arg("--masquerade-all")
        .arg("--metrics-bind-address=127.0.0.1:10249");
    Tripod::start_on(&lab.node, command)
}

/// A server on the node for the node only, which records who reached it.
struct Canary {
    calls: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl Canary {
    fn on(node: &Host) -> Canary {
        node.ip(&["addr add 169.254.169.254/32 dev lo"]);
        let listeners = node.enter(|| CANARY.map(|at| TcpListener::bind(at).expect("a listener")));
        let (calls, over) = (Arc::default(), Arc::default());
        let (counted, ends) = (Arc::clone(&calls), Arc::clone(&over));
        let server = std::thread::spawn(move || serve(&listeners, &counted, &ends));
        Canary {
            calls,
            over,
            server: Some(server),
        }
    }

    fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        let ended = self.server.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()) || std::thread::panicking());
    }
}

fn serve(listeners: &[TcpListener], calls: &AtomicUsize, over: &AtomicBool) {
    for listener in listeners {
        listener.set_nonblocking(true).expect("a listener");
    }
    while !over.load(Relaxed) {
        for listener in listeners {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    calls.fetch_add(1, Relaxed);
                    // Closing with a question unread resets the connection.
                    let _ = stream.set_read_timeout(Some(SHORT));
                    let _ = stream.read(&mut [0; 64]);
                    let _ = stream.write_all(b"canary\n");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        // This is the pace; nothing is awaited.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A Service with this `spec` in addition to its port, and a slice with `endpoint`.
fn objects(name: &str, spec: Value, status: Value, endpoint: (&str, u16)) -> [Value; 2] {
    let (address, port) = endpoint;
    let family = if address.contains(':') {
        "IPv6"
    } else {
        "IPv4"
    };
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "status": status,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": CANARY_PORT}]},
    });
    for (field, value) in spec.as_object().expect("fields") {
        service["spec"][field] = value.clone();
    }
    [service, slice(name, family, &[address], port)]
}

pub(super) fn slice(service: &str, family: &str, addresses: &[&str], port: u16) -> Value {
    let endpoint = |address: &&str| json!({"addresses": [address]});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": service, "namespace": "default",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": family,
        "ports": [{"port": port}],
        "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
    })
}

/// The addresses of the Service with that number; two have a cluster IP of each family.
pub(super) fn called(number: usize) -> [SocketAddr; 2] {
    let v4: IpAddr = format!("10.96.1.{number}").parse().expect("an address");
    let v6: IpAddr = format!("fd00:96::1:{number}").parse().expect("an address");
    [v4, v6].map(|ip| SocketAddr::new(ip, CANARY_PORT))
}

pub(super) fn cluster_ips(number: usize) -> Value {
    let ips = called(number).map(|at| at.ip());
    json!({"clusterIP": ips[0], "clusterIPs": ips})
}

/// Services with endpoints that are left out, numbered from 1.
fn bad_endpoints() -> Vec<Value> {
    let objects = ENDPOINTS.iter().enumerate().flat_map(|(n, endpoint)| {
        let name = format!("endpoint-{}", n + 1);
        objects(
            &name,
            cluster_ips(n + 1),
            json!({}),
            (endpoint, CANARY_PORT),
        )
    });
    objects.collect()
}

/// Services with addresses at which none is served; their endpoint is backend `a`.
fn bad_addresses(backend: &str) -> Vec<Value> {
    let mut all = Vec::new();
    for (kind, addresses) in ADDRESSES {
        for (n, address) in addresses.iter().enumerate() {
            let own = cluster_ips(100 + n);
            let (spec, status) = match kind {
                "cluster" => (json!({"clusterIP": address}), json!({})),
                "external" => {
                    let mut spec = own;
                    spec["externalIPs"] = json!([address]);
                    (spec, json!({}))
                }
                _ => {
                    let balancer = json!({"loadBalancer": {"ingress": [{"ip": address}]}});
                    (cluster_ips(120 + n), balancer)
                }
            };
            all.extend(objects(
                &format!("{kind}-{n}"),
                spec,
                status,
                (backend, 8080),
            ));
        }
    }
    all
}

/// Objects with names and ports that the API forbids, and values as large as an object may have.
fn absurd(backend: &str) -> Vec<Value> {
    let long = "x".repeat(1 << 20);
    let mut all: Vec<Value> = objects(&long, cluster_ips(200), json!({}), (backend, 8080)).into();
    all.extend(objects("port-0", cluster_ips(201), json!({}), (backend, 0)));
    let mut none = cluster_ips(202);
    none["ports"] = json!([{"port": 0}]);
    all.extend(objects("service-port-0", none, json!({}), (backend, 8080)));
    let mut named = cluster_ips(203);
    named["ports"] = json!([{"port": 80, "name": long}]);
    all.extend(objects("long-port", named, json!({}), (backend, 8080)));
    let mut annotated = objects("annotated", cluster_ips(204), json!({}), (backend, 8080));
    annotated[0]["metadata"]["annotations"] = json!({"tripod.proxy/scheduler": long});
    all.extend(annotated);
    all
}

pub(super) fn write(lab: &Lab, file: &str, items: &[Value]) {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    lab.write(file, &list.to_string());
}

#[test]
fn hostile_objects_reach_nothing_of_the_node() {
    run(|| {
        for (mode, capture) in modes() {
            let mut lab = Lab::new(*capture);
            lab.add_backends(&["a", "b"]);
            let good = Service::new("good", 1);
            lab.publish(&good, &["a"]);
            let a = lab.backends[0].direct().ip().to_string();
            let canary = Canary::on(&lab.node);
            write(&lab, "endpoints.json", &bad_endpoints());
            write(&lab, "addresses.json", &bad_addresses(&a));
            write(&lab, "absurd.json", &absurd(&a));
            write(&lab, "circles.json", &circles(&lab, &good));
            let tripod = start(&lab, mode);
            nothing_leads_astray(&lab, &format!("{mode}, {}", capture.name()), &canary);
            others_are_served(&lab, mode, &good);
            reports_are_short(&lab, &tripod);
        }
    });
}

/// Services whose endpoints are addresses of Services, and some that claim the cluster IP of `good`
/// as their own, with endpoint `b`.
fn circles(lab: &Lab, good: &Service) -> Vec<Value> {
    let b = lab.backends[1].direct().ip().to_string();
    let cluster = good.cluster()[0];
    let own = called(210)[0];
    let mut all = Vec::new();
    for (number, to) in [(210, own), (211, cluster)] {
        let endpoint = (&*to.ip().to_string(), to.port());
        all.extend(objects(
            &format!("circle-{number}"),
            cluster_ips(number),
            json!({}),
            endpoint,
        ));
    }
    let mut thief = cluster_ips(212);
    thief["externalIPs"] = json!([cluster.ip()]);
    thief["ports"] = json!([{"port": cluster.port()}]);
    let balancer = json!({"loadBalancer": {"ingress": [{"ip": cluster.ip()}]}});
    all.extend(objects("thief", thief, balancer, (&b, 8080)));
    all
}

fn nothing_leads_astray(lab: &Lab, mode: &str, canary: &Canary) {
    for host in lab.cluster_clients() {
        for number in (1..=ENDPOINTS.len()).chain([210]) {
            for to in called(number) {
                let answer = ask_within(host, to, SHORT);
                assert!(
                    answer.is_err(),
                    "{mode}: {} of {to}: {answer:?}",
                    host.name()
                );
            }
        }
    }
    // At the cluster IP of another Service only that Service's endpoint may answer.
    if let Ok(answer) = ask_within(&lab.client, called(211)[0], SHORT) {
        assert_eq!(answer, "a", "{mode}");
    }
    assert_eq!(canary.calls(), 0, "{mode}: calls of what is the node's own");
    // And no Service has come between the node and its own server.
    for at in CANARY {
        let at = at.parse().expect("an address");
        assert_eq!(
            ask(&lab.node, at).expect("an answer"),
            "canary",
            "{mode}: {at}"
        );
    }
    let at = CANARY[2].parse().expect("an address");
    assert_eq!(
        ask(&lab.client, at).expect("an answer"),
        "canary",
        "{mode}: {at}"
    );
}

fn others_are_served(lab: &Lab, mode: &str, good: &Service) {
    for to in good.cluster() {
        for _ in 0..10 {
            let answer = ask(&lab.client, to).unwrap_or_else(|e| panic!("{mode}: {to}: {e}"));
            assert_eq!(answer, "a", "{mode}: {to}");
        }
    }
}

fn reports_are_short(lab: &Lab, tripod: &Tripod) {
    for (n, endpoint) in ENDPOINTS.iter().enumerate() {
        let slice = format!("default/endpoint-{}:", n + 1);
        tripod.logs_once(&["EndpointSlice", &slice, "addresses[0]", endpoint]);
    }
    why_left_out(lab);
    let log = tripod.log();
    let longest = log.lines().map(str::len).max();
    assert!(longest < Some(4_000), "a line of {longest:?} bytes");
    assert!(log.len() < 200_000, "{} bytes of log", log.len());
    let metrics = get(&lab.node, ([127, 0, 0, 1], 10249).into(), "/metrics").expect("metrics");
    assert!(!metrics.contains(&"x".repeat(300)));
}

/// Checks that `tripod services` shows them with the reason.
fn why_left_out(lab: &Lab) {
    let line = format!("{} services --output json", tripod_binary().display());
    let shown: Value = serde_json::from_str(&lab.node.show(&line)).expect("JSON");
    let ports = shown["items"].as_array().expect("a list").iter();
    let endpoints = ports.flat_map(|port| port["endpoints"].as_array().expect("a list"));
    let whys = endpoints.filter_map(|endpoint| endpoint["why"].as_str());
    let left_out = whys.filter(|why| why.starts_with("an endpoint cannot have"));
    // Two are not addresses of their family.
    assert_eq!(left_out.count(), ENDPOINTS.len() - 2, "{shown:#}");
}
