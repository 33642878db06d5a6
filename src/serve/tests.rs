use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use hyper::StatusCode;
use jiff::Timestamp;
use net::Family;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::advance,
};

use super::{
    exposition,
    healthz::Probes,
    http::{Answer, Answers, Asked, Methods},
    listeners::Listening,
    *,
};
use crate::{
    config::ModeName,
    modes,
    runner::metrics::Metrics,
    services::{Names, Node},
};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Names and types of the metrics that kube-proxy 1.36 serves in any mode, and those of the
/// iptables mode that are meaningful everywhere, recorded from a running one. Metrics about
/// iptables rules or about the API client are left out.
const KUBE_PROXY: [(&str, &str); 28] = [
    (
        "kubeproxy_conntrack_reconciler_deleted_entries_total",
        "counter",
    ),
    (
        "kubeproxy_conntrack_reconciler_sync_duration_seconds",
        "histogram",
    ),
    (
        "kubeproxy_network_programming_duration_seconds",
        "histogram",
    ),
    ("kubeproxy_proxy_healthz_total", "counter"),
    ("kubeproxy_proxy_livez_total", "counter"),
    (
        "kubeproxy_sync_full_proxy_rules_duration_seconds",
        "histogram",
    ),
    (
        "kubeproxy_sync_partial_proxy_rules_duration_seconds",
        "histogram",
    ),
    ("kubeproxy_sync_proxy_rules_duration_seconds", "histogram"),
    (
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
        "gauge",
    ),
    (
        "kubeproxy_sync_proxy_rules_endpoint_changes_total",
        "counter",
    ),
    (
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        "gauge",
    ),
    ("kubeproxy_sync_proxy_rules_last_timestamp_seconds", "gauge"),
    (
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
        "gauge",
    ),
    (
        "kubeproxy_sync_proxy_rules_service_changes_pending",
        "gauge",
    ),
    (
        "kubeproxy_sync_proxy_rules_service_changes_total",
        "counter",
    ),
    ("kubernetes_build_info", "gauge"),
    ("kubernetes_feature_enabled", "gauge"),
    ("process_cpu_seconds_total", "counter"),
    ("process_max_fds", "gauge"),
    ("process_network_receive_bytes_total", "counter"),
    ("process_network_transmit_bytes_total", "counter"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
    ("process_virtual_memory_max_bytes", "gauge"),
    ("tripod_build_info", "gauge"),
    ("tripod_mode", "gauge"),
];

fn get<'a>(path: &'a str) -> Asked<'a> {
    Asked {
        path,
        ..Asked::default()
    }
}

fn probes(health: &Arc<Health>) -> Probes {
    Probes::register(Arc::clone(health), &Registry::new()).unwrap()
}

fn about(registry: &Registry) -> Introspection {
    about_mode(registry, true)
}

fn about_mode(registry: &Registry, named: bool) -> Introspection {
    let configuration = json!({"mode": "userspace"});
    let flags = BTreeMap::from([("proxy-mode".to_owned(), "userspace".to_owned())]);
    let running = Running {
        mode: ModeName::Userspace,
        named,
        passed_over: vec!["ipvs mode cannot run here".to_owned()],
        wanting: vec!["ipvs".to_owned(), "dummy".to_owned()],
        gates: vec![Gate {
            name: "KubeProxyIPVS",
            stage: "DEPRECATED",
            enabled: true,
        }],
    };
    Introspection::new(registry.clone(), running, configuration, flags)
}

/// Status and body; its times are checked and then replaced by T.
fn probe(probes: &Probes, path: &str) -> (u16, String) {
    let answer = probes.page(get(path));
    assert_eq!(answer.kind, "application/json");
    let text = String::from_utf8(answer.body).unwrap();
    let body: Value = serde_json::from_str(&text).unwrap();
    let mut plain = text.clone();
    let status = body["status"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, v)| v);
    for time in std::iter::once(&body)
        .chain(status)
        .flat_map(|v| [&v["lastUpdated"], &v["currentTime"]])
        .filter_map(Value::as_str)
        .filter(|time| !time.starts_with("0001"))
    {
        let at: Timestamp = time.parse().unwrap();
        let age = Timestamp::now().duration_since(at).as_secs();
        assert!((0..60).contains(&age), "{time} in {text}");
        plain = plain.replace(time, "T");
    }
    (answer.status.as_u16(), plain)
}

#[tokio::test(start_paused = true)]
async fn probes_are_answered_in_kube_proxys_words() {
    let health = Arc::new(Health::new(TIMEOUT));
    let probes = probes(&health);
    let expect = |path: &str, status: u16, body: &str| {
        assert_eq!(probe(&probes, path), (status, body.to_owned()), "{path}");
    };

    // Starting: nothing is known yet.
    let never = "0001-01-01T00:00:00Z";
    let starting = format!(
        r#"{{"lastUpdated":"{never}","currentTime":"T","nodeEligible":false,"healthy":true}}"#
    );
    expect("/healthz", 503, &starting);
    health.objects_known();
    // Nothing synced, nothing overdue, no Node seen.
    expect(
        "/healthz",
        200,
        r#"{"lastUpdated":"T","currentTime":"T","nodeEligible":true,"healthy":true}"#,
    );
    expect(
        "/livez",
        200,
        r#"{"lastUpdated":"T","currentTime":"T","healthy":true}"#,
    );

    health.updated(Family::V4);
    health.updated(Family::V6);
    let fine = r#""healthy":true,"status":{"IPv4":{"lastUpdated":"T","healthy":true},"IPv6":{"lastUpdated":"T","healthy":true}}}"#;
    let healthz = format!(r#"{{"lastUpdated":"T","currentTime":"T","nodeEligible":true,{fine}"#);
    let livez = format!(r#"{{"lastUpdated":"T","currentTime":"T",{fine}"#);
    expect("/healthz", 200, &healthz);
    expect("/livez", 200, &livez);

    // The node is about to be removed: load balancers should send elsewhere, but the proxy is
    // alive.
    let node = json!({"metadata": {"name": "n"}, "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}});
    let node = serde_json::from_value(node).unwrap();
    let node = Node::reduce(&node, &mut Names::default()).unwrap().object;
    health.set_node(&node, false);
    expect(
        "/healthz",
        503,
        &healthz.replace(r#"nodeEligible":true"#, r#"nodeEligible":false"#),
    );
    expect("/livez", 200, &livez);

    // One family is overdue.
    health.queued(Family::V6);
    advance(TIMEOUT).await;
    let stale = livez
        .replace(r#""healthy":true,"status""#, r#""healthy":false,"status""#)
        .replace(r#""healthy":true}}}"#, r#""healthy":false}}}"#);
    expect("/livez", 503, &stale);
    health.updated(Family::V6);
    expect("/livez", 200, &livez);

    // One family was never applied: it is named, and the pod continues.
    let health = Arc::new(Health::new(TIMEOUT));
    let left_out = self::probes(&health);
    health.updated(Family::V4);
    health.queued(Family::V6);
    advance(TIMEOUT).await;
    let never = r#""IPv6":{"lastUpdated":"0001-01-01T00:00:00Z","healthy":false}}}"#;
    let (both, _) = livez.split_once(r#""IPv6""#).unwrap();
    assert_eq!(probe(&left_out, "/livez"), (200, format!("{both}{never}")));

    assert_eq!(probes.page(get("/")).status, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_before_the_first_sync_has_no_time_to_show() {
    let health = Arc::new(Health::new(TIMEOUT));
    health.queued(Family::V4);
    advance(TIMEOUT).await;
    let never = "0001-01-01T00:00:00Z";
    let body = format!(
        r#"{{"lastUpdated":"{never}","currentTime":"T","healthy":false,"status":{{"IPv4":{{"lastUpdated":"{never}","healthy":false}}}}}}"#
    );
    assert_eq!(probe(&probes(&health), "/livez"), (503, body));
}

#[test]
fn a_scrape_has_every_name_of_kube_proxys_that_applies() {
    let registry = Registry::new();
    let health = Arc::new(Health::new(TIMEOUT));
    health.objects_known();
    let probes = Probes::register(Arc::clone(&health), &registry).unwrap();
    let metrics = Metrics::register(&registry).unwrap();
    metrics.queued(Family::V4);
    metrics.synced(Family::V4);
    metrics.took(Family::V4, Duration::from_millis(3), false);
    modes::Metrics::conntrack_cleared(&metrics, Family::V6, Duration::from_millis(1), 7);
    probes.page(get("/healthz"));
    let about = about(&registry);
    about.register().unwrap();
    let answer = about.page(get("/metrics"));
    assert_eq!(answer.kind, "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(answer.body).unwrap();
    let scrape = exposition::parse(&text).unwrap_or_else(|wrong| panic!("{wrong}\n{text}"));

    for (name, kind) in KUBE_PROXY {
        let metric = scrape
            .get(name)
            .unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(metric.kind, kind, "{name}");
    }
    let value = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let labels: BTreeMap<_, _> = labels.collect();
        let mut samples = scrape.values().flat_map(|metric| &metric.samples);
        let sample = samples.find(|s| s.name == name && s.labels == labels);
        sample.unwrap_or_else(|| panic!("{name} {labels:?}")).value
    };
    let v4 = ("ip_family", "IPv4");
    let v6 = ("ip_family", "IPv6");
    assert_eq!(
        value("kubeproxy_proxy_healthz_total", &[("code", "200")]),
        1.0
    );
    assert_eq!(
        value(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            &[v6]
        ),
        7.0
    );
    let none = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    for family in [v4, v6] {
        for policy in ["internal", "external"] {
            assert_eq!(value(none, &[family, ("traffic_policy", policy)]), 0.0);
        }
    }
    let took = "kubeproxy_sync_partial_proxy_rules_duration_seconds_bucket";
    assert_eq!(value(took, &[v4, ("le", "0.002")]), 0.0);
    assert_eq!(value(took, &[v4, ("le", "0.004")]), 1.0);
    assert_eq!(value("tripod_mode", &[("mode", "userspace")]), 1.0);
    let wanting = [("reason", "ipvs,dummy")];
    assert_eq!(value("tripod_mode_fallback", &wanting), 1.0);
}

#[test]
fn a_worse_mode_counts_as_fallback_where_the_settings_name_one() {
    for (named, expected) in [(true, 1.0), (false, 0.0)] {
        let registry = Registry::new();
        let about = about_mode(&registry, named);
        about.register().unwrap();
        let text = String::from_utf8(about.page(get("/metrics")).body).unwrap();
        let scrape = exposition::parse(&text).unwrap();
        let sample = &scrape["tripod_mode_fallback"].samples[0];
        assert_eq!(sample.labels["reason"], "ipvs,dummy");
        assert_eq!(sample.value, expected, "named: {named}");
    }
}

#[test]
fn buckets_are_kube_proxys() {
    let registry = Registry::new();
    Metrics::register(&registry).unwrap();
    let text = String::from_utf8(about(&registry).page(get("/metrics")).body).unwrap();
    let scrape = exposition::parse(&text).unwrap();
    let bounds = |name: &str| -> Vec<String> {
        let samples = scrape[name].samples.iter();
        let v4 = samples.filter(|s| s.labels["ip_family"] == "IPv4");
        v4.filter_map(|s| s.labels.get("le").cloned()).collect()
    };
    let numbers = |numbers: Vec<f64>| -> Vec<String> {
        let mut text: Vec<_> = numbers.iter().map(f64::to_string).collect();
        text.push("+Inf".to_owned());
        text
    };
    let sync = [
        0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
        8.192, 16.384,
    ];
    for name in ["", "_full", "_partial"] {
        let name = format!("kubeproxy_sync{name}_proxy_rules_duration_seconds");
        assert_eq!(bounds(&name), numbers(sync.to_vec()));
    }
    let mut programming = vec![0.0, 0.25, 0.5];
    programming.extend((1..=60).map(f64::from));
    programming.extend([65., 70., 75., 80., 85., 90., 95., 100., 105., 110., 115.]);
    programming.extend([120., 150., 180., 210., 240., 270., 300.]);
    let name = "kubeproxy_network_programming_duration_seconds";
    assert_eq!(bounds(name), numbers(programming));
}

#[test]
fn the_other_pages() {
    let about = about(&Registry::new());
    let text = |path: &str| String::from_utf8(about.page(get(path)).body).unwrap();
    assert_eq!(text("/proxyMode"), "userspace");
    assert_eq!(text("/metrics/slis"), "");
    assert_eq!(text("/healthz"), "ok");
    assert_eq!(text("/healthz"), "ok");
    let labels = r#"{name="ping",status="success",type="healthz"}"#;
    let counted = format!("kubernetes_healthchecks_total{labels} 2");
    assert!(text("/metrics/slis").lines().any(|line| line == counted));
    let configuration: Value = serde_json::from_str(&text("/configz")).unwrap();
    let expected = json!({"kubeproxy.config.k8s.io": {"mode": "userspace"}});
    assert_eq!(configuration, expected);
    for path in ["/debug/pprof/", "/debug/pprof/profile", "/nothing"] {
        assert_eq!(
            about.page(get(path)).status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
    assert!(text("/debug/pprof/").contains("perf"));
    let listed: BTreeSet<_> = text("/statusz")
        .lines()
        .find_map(|line| line.strip_prefix("Paths: "))
        .unwrap()
        .split(' ')
        .map(str::to_owned)
        .collect();
    for path in &listed {
        assert_eq!(about.page(get(path)).status, StatusCode::OK, "{path}");
    }
    assert_eq!(listed.len(), 8);
}

/// Sends `request` and reads until the server closes the connection.
async fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.to_lowercase()
}

fn listener() -> (Listening, SocketAddr) {
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = Listeners::default().listen(any).unwrap();
    let address = listener.socket().local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn over_the_wire() {
    let (listener, address) = listener();
    let health = Arc::new(Health::new(TIMEOUT));
    let probes = Arc::new(probes(&health));
    let server = tokio::spawn(http::serve(listener, Arc::default(), Methods::Any, probes));
    health.objects_known();
    let close = "host: x\r\nconnection: close\r\n\r\n";

    let answer = exchange(
        address,
        &format!("GET /healthz?verbose HTTP/1.1\r\n{close}"),
    )
    .await;
    assert!(answer.starts_with("http/1.1 200 ok\r\n"), "{answer}");
    assert!(answer.contains("\r\ncontent-type: application/json\r\n"));
    assert!(answer.contains("\r\nx-content-type-options: nosniff\r\n"));
    assert!(answer.ends_with("\"healthy\":true}"));

    let answer = exchange(address, &format!("HEAD /livez HTTP/1.1\r\n{close}")).await;
    assert!(answer.starts_with("http/1.1 200 ok\r\n") && answer.ends_with("\r\n\r\n"));
    // As HAProxy asks where no method is named.
    let answer = exchange(address, &format!("OPTIONS /livez HTTP/1.0\r\n{close}")).await;
    assert!(answer.starts_with("http/1.0 200 ok\r\n"), "{answer}");
    let answer = exchange(address, "nonsense\r\n\r\n").await;
    assert!(answer.starts_with("http/1.1 400 "), "{answer}");

    // One answer per connection, whatever else was requested.
    let ask = "GET /livez HTTP/1.1\r\nhost: x\r\n\r\n";
    let answer = exchange(address, ask).await;
    assert!(answer.contains("\r\nconnection: close\r\n"), "{answer}");

    // An open connection ends with the server.
    let mut idle = TcpStream::connect(address).await.unwrap();
    idle.write_all(b"GET /livez").await.unwrap();
    exchange(address, ask).await;
    server.abort();
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(10), idle.read_to_end(&mut rest));
    // The end of the stream or a reset: the connection ends in either case.
    let _ = end.await.expect("the connection is still open");
}

/// Opens this number of clients, `peers`, that send requests without waiting for an answer, and
/// read none.
async fn pipeline_and_never_read(address: SocketAddr, peers: u16) -> Vec<TcpStream> {
    let requests = "GET /large HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2_000);
    let mut clients = Vec::new();
    for n in 0..300_u16 {
        let [high, low] = (n % peers + 2).to_be_bytes();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket
            .bind(SocketAddr::from(([127, 9, high, low], 0)))
            .unwrap();
        let stream = socket.connect(address).await.unwrap();
        // The server does not take all of it.
        let _ = stream.try_write(requests.as_bytes());
        clients.push(stream);
    }
    clients
}

/// Has an answer that a client cannot take at once.
struct Large;

impl Answers for Large {
    async fn answer(&self, asked: Asked<'_>) -> Answer {
        match asked.path {
            "/large" => Answer::text(vec![b'x'; 4 << 20]),
            _ => Answer::text("ok"),
        }
    }
}

#[tokio::test]
async fn a_probe_is_answered_whoever_pipelines_and_never_reads() {
    for peers in [1, 300] {
        let (listener, address) = listener();
        let large = Arc::new(Large);
        let server = tokio::spawn(http::serve(listener, Arc::default(), Methods::Read, large));
        let clients = pipeline_and_never_read(address, peers).await;
        let probe = "GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let answer = tokio::time::timeout(Duration::from_secs(5), exchange(address, probe));
        let answer = answer.await.expect("the probe is not answered");
        assert!(answer.ends_with("\r\n\r\nok"), "{peers} peers: {answer}");
        drop(clients);
        server.abort();
    }
}
