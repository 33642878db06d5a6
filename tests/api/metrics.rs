//! docs/metrics.md: every metric that the program exports, with or without an API server, in each
//! mode that this kernel runs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::PathBuf,
    time::Duration,
};

use super::{
    lists::shop,
    program::{fetch, in_sandbox, tripod},
    tcp_server::TcpServer,
    tls::Authority,
};
use crate::lab::{
    Capture, Lab, Service, Tripod, eventually, get,
    guest::{Profile, in_guest},
    run, tripod_binary,
};

const SOON: Duration = Duration::from_secs(30);
const MODES: [&str; 4] = ["iptables", "ipvs", "nftables", "userspace"];
/// The modes that run here: ipvs mode needs a kernel with IPVS.
const TRIED: [&str; 3] = ["iptables", "nftables", "userspace"];
/// Metrics of ipvs mode that nftables mode, with the same relay and the same ejection, does not
/// have: IPVS knows the open connections, and it uses rules of iptables.
const OF_IPVS: [&str; 2] = [
    "tripod_endpoint_active_connections",
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
];
/// Metrics of nftables mode that ipvs mode does not have.
const OF_NFTABLES: [&str; 5] = [
    "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
    "tripod_connections_reset_total",
    "tripod_nftables_affinity_refused_total",
];
const WITH_SERVER: &str = "with an API server";

const HEAD: &str = "\
# Metrics

This page lists the metrics that `/metrics` shows at `metricsBindAddress` (by default
127.0.0.1:10249). Metrics with names of kube-proxy have the same meaning as there. In ipvs and
nftables mode, the metrics of the relay (`tripod_userspace_…`,
`kubeproxy_nftables_localhost_nodeport_listen…`) are shown if node ports are served on loopback
addresses. `tripod_endpoint_…` and `tripod_service_limited_total` are shown for Services in the
namespaces that `--service-metrics` names. A test of `make test` compares this list with the
output of the program.

The format is Prometheus' text format, or OpenMetrics 1.0 without exemplars for clients that
accept `application/openmetrics-text`, as Prometheus does. In OpenMetrics no two metrics may
have the same name: a counter whose name without `_total` is also the name of a gauge has the
type unknown. With `featureGates: {NativeHistograms: true}`, as in kube-proxy 1.37, histograms are
also native ones (factor 1.1, at most 160 buckets) for clients that prefer Prometheus' protobuf
format, as Prometheus does with `scrape_native_histograms`.

| metric | type | labels | mode | meaning |
|---|---|---|---|---|
";

/// A metric with its attributes.
#[derive(Default)]
struct Metric {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    modes: BTreeSet<&'static str>,
}

/// Adds the metrics of a scrape.
fn add(metrics: &mut BTreeMap<String, Metric>, mode: &'static str, scrape: &str) {
    let mut current = String::new();
    for line in scrape.lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            current = name.to_owned();
            let metric = metrics.entry(current.clone()).or_default();
            metric.help = help.to_owned();
            metric.modes.insert(mode);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = rest.rsplit(' ').next().unwrap_or_default();
            metrics.entry(current.clone()).or_default().kind = kind.to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let metric = metrics.entry(current.clone()).or_default();
            let names = labels
                .split("\",")
                .filter_map(|label| label.split_once("=\""));
            let names = names.map(|(name, _)| name.to_owned());
            metric.labels.extend(names.filter(|name| name != "le"));
        }
    }
}

/// Adds ipvs mode, which [`guest_full_metrics`] tests in a kernel, and a metric of limits, which
/// `nftables::limits` tests.
fn add_untried(metrics: &mut BTreeMap<String, Metric>) {
    for (name, metric) in metrics.iter_mut() {
        let is_shared = metric.modes.contains("nftables") && !OF_NFTABLES.contains(&&**name);
        if is_shared || OF_IPVS.contains(&&**name) {
            metric.modes.insert("ipvs");
        }
    }
    let limited = metrics.get_mut("tripod_service_limited_total");
    limited
        .expect("userspace mode has it")
        .modes
        .insert("nftables");
}

fn document(metrics: &BTreeMap<String, Metric>) -> String {
    let mut text = String::from(HEAD);
    for (name, metric) in metrics {
        let labels: Vec<String> = metric.labels.iter().map(|l| format!("`{l}`")).collect();
        let in_all = MODES.iter().all(|mode| metric.modes.contains(mode));
        let modes: Vec<&str> = match metric.modes.iter().next() {
            _ if in_all => vec!["all"],
            Some(&only) if metric.modes.len() == 1 => vec![only],
            _ => (metric.modes.iter().copied())
                .filter(|mode| *mode != WITH_SERVER)
                .collect(),
        };
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | {} | {} |",
            metric.kind,
            labels.join(", "),
            modes.join(", "),
            metric.help
        );
    }
    text
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")
}

/// Returns the result of `scrape` after the first sync of both families.
fn synced(scrape: impl Fn() -> std::io::Result<String>) -> String {
    let mut found = String::new();
    eventually("metrics of syncs", SOON, || {
        let synced = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{";
        found = scrape().map_err(|error| error.to_string())?;
        match found.matches(synced).count() {
            2 => Ok(()),
            n => Err(format!("{n} families")),
        }
    });
    found
}

/// A lab with a Service.
fn lab() -> Lab {
    let mut lab = Lab::new(Capture::Redirect);
    lab.add_backends(&["a"]);
    lab.publish_all(&Service::new("web", 1).with_node_port());
    lab
}

/// Returns the metrics of the program in `mode` after the first sync.
fn shown(lab: &Lab, mode: &str) -> String {
    let mut command = lab.node.command(tripod_binary());
    command
        .arg(format!("--proxy-mode={mode}"))
        .args(["--strict-proxy-mode", "--hostname-override=node"])
        .args(["--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0"])
        .args(["--service-metrics=*", "--nodeport-addresses=127.0.0.0/8"])
        .arg("--manifests")
        .arg(lab.manifests());
    // It ends at once; otherwise it would wait for a successor, in order to relay.
    let _tripod = Tripod::start_on(&lab.node, command);
    let at = ([127, 0, 0, 1], 10249).into();
    synced(|| get(&lab.node, at, "/metrics"))
}

/// Passes the document to `judge`, as generated from the program now.
fn with_document(judge: impl FnOnce(String)) {
    in_sandbox(async || {
        let mut metrics = BTreeMap::new();
        let lab = lab();
        for mode in TRIED {
            add(&mut metrics, mode, &shown(&lab, mode));
        }
        add_untried(&mut metrics);
        let tcp = TcpServer::open(shop(), "metrics", &Authority::new(), false).await;
        let _tripod = tripod(&tcp, &[]);
        let text = synced(|| fetch("127.0.0.1:10249", "/metrics"));
        add(&mut metrics, WITH_SERVER, &text);
        judge(document(&metrics));
    });
}

#[test]
fn the_document_is_current() {
    with_document(|current| {
        let text = fs::read_to_string(path()).unwrap_or_default();
        assert!(
            text == current,
            "it should be (write it by the test api::metrics::write):\n{current}"
        );
    });
}

/// Parses the columns of each metric in a document, by its name.
fn rows(document: &str) -> BTreeMap<&str, Vec<&str>> {
    document
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|row| row.split_once("` | "))
        .map(|(name, row)| (name, row.split(" | ").collect()))
        .collect()
}

/// The document derives ipvs mode from nftables mode; here a kernel confirms it.
#[test]
#[ignore = "for a guest kernel with IPVS"]
fn ipvs_mode_shows_what_the_document_says() {
    run(|| {
        let mut metrics = BTreeMap::new();
        add(&mut metrics, "ipvs", &shown(&lab(), "ipvs"));
        let found: BTreeSet<&str> = metrics.keys().map(String::as_str).collect();
        let text = fs::read_to_string(path()).expect("docs/metrics.md");
        let rows = rows(&text).into_iter();
        let of_ipvs =
            rows.filter(|(_, row)| row[2].split(", ").any(|m| ["all", "ipvs"].contains(&m)));
        let expected: BTreeSet<&str> = of_ipvs.map(|(name, _)| name).collect();
        let missing = OF_IPVS.iter().find(|name| !expected.contains(*name));
        assert_eq!(missing, None, "{expected:?}");
        let other: Vec<_> = expected.symmetric_difference(&found).collect();
        assert!(other.is_empty(), "{other:?}");
    });
}

#[test]
fn guest_full_metrics() {
    let tests = ["api::metrics::ipvs_mode_shows_what_the_document_says"];
    in_guest(Profile::Full, &tests, &[]);
}

/// The document, which other tests compare with the program, has each metric of kube-proxy with its
/// type and labels.
#[test]
fn those_of_kube_proxy_are_there() {
    let text = fs::read_to_string(path()).expect("docs/metrics.md");
    let rows = rows(&text);
    let expected = include_str!("kube_proxy_metrics.tsv").lines();
    let expected = expected.filter(|line| !line.starts_with('#'));
    let mut known = BTreeSet::new();
    for line in expected {
        let [name, kind, labels] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line:?}");
        };
        let row = rows.get(name);
        let row = row.unwrap_or_else(|| panic!("{name} is missing"));
        let shown = row[1].replace(['`', ' '], "");
        assert_eq!((row[0], &*shown), (kind, labels), "{name}");
        let modes = ["all", "iptables", "iptables, ipvs", "nftables", WITH_SERVER];
        assert!(modes.contains(&row[2]), "{name}: {}", row[2]);
        known.insert(name);
    }
    assert!(known.len() > 30);
    // None of our own metrics uses the prefix of kube-proxy, except those of its nftables mode.
    let ours = rows.keys().filter(|name| name.starts_with("kubeproxy_"));
    for name in ours.filter(|name| !name.starts_with("kubeproxy_nftables_")) {
        assert!(known.contains(name), "{name}");
    }
}

#[test]
#[ignore = "writes docs/metrics.md"]
fn write() {
    with_document(|current| fs::write(path(), current).expect("docs/metrics.md"));
}
