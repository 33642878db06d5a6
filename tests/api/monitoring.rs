//! A real Prometheus scrapes the real program: every panel of the dashboards has data,
//! and each alert fires on its fault alone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::{
    lists::shop,
    objects::{service, slice},
    program::{fetch, in_sandbox, tripod},
    tcp_server::TcpServer,
    tls::Authority,
};
use crate::lab::{eventually, skip};

const SOON: Duration = Duration::from_secs(60);
const PROMETHEUS: &str = "127.0.0.1:9090";

/// What the dashboard "Kubernetes / Proxy" of the kubernetes-mixin asks, panel by
/// panel (`dashboards/proxy.libsonnet`).
const COMMUNITY: [(&str, &str); 11] = [
    ("Up", "sum(up{JOB})"),
    (
        "Rules Sync Rate",
        "sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{JOB}[1m]))",
    ),
    (
        "Rules Sync Latency",
        "histogram_quantile(0.99, rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{JOB}[1m]))",
    ),
    (
        "Network Programming Rate",
        "sum(rate(kubeproxy_network_programming_duration_seconds_count{JOB}[1m]))",
    ),
    (
        "Network Programming Latency",
        "histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket\
         {JOB}[1m])) by (instance, le))",
    ),
    (
        "Kube API Request Rate",
        "sum(rate(rest_client_requests_total{JOB,code=~\"2..\"}[1m]))",
    ),
    (
        "Post Request Latency",
        "histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket\
         {JOB,verb=\"POST\"}[1m])) by (verb, le))",
    ),
    (
        "Get Request Latency",
        "histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket\
         {JOB,verb=\"GET\"}[1m])) by (verb, le))",
    ),
    ("Memory", "process_resident_memory_bytes{JOB}"),
    ("CPU usage", "rate(process_cpu_seconds_total{JOB}[1m])"),
    ("Goroutines", "go_goroutines{JOB}"),
];

/// Returns a program of Prometheus: `make test-tools` unpacks them there.
fn program(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let program = target.map(|target| target.join("tools/usr/bin").join(name));
    let program = program.filter(|program| program.exists());
    if program.is_none() {
        skip(format!("there is no {name}; make test-tools unpacks it"));
    }
    program
}

fn monitoring(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring");
    fs::read_to_string(folder.join(file)).expect(file)
}

/// A Prometheus that scrapes this program; ends when dropped.
struct Prometheus(Child);

impl Prometheus {
    fn start(program: &Path, folder: &Path) -> Prometheus {
        let config = folder.join("prometheus.yaml");
        let text = "global: {scrape_interval: 1s}\n\
             scrape_configs:\n\
             - job_name: kube-proxy\n  \
               static_configs: [{targets: ['127.0.0.1:10249']}]\n";
        fs::write(&config, text).expect("its configuration");
        let child = Command::new(program)
            .arg("--config.file")
            .arg(&config)
            .arg("--storage.tsdb.path")
            .arg(folder.join("prometheus"))
            .args(["--web.listen-address", PROMETHEUS, "--log.level=error"])
            .stdin(Stdio::null())
            .spawn();
        Prometheus(child.expect("Prometheus starts"))
    }

    /// Returns the series that answer a query.
    fn ask(&self, query: &str) -> Result<Vec<Value>, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let body = fetch(PROMETHEUS, &format!("/api/v1/query?query={encoded}"));
        let body = body.map_err(|error| error.to_string())?;
        let answer: Value = serde_json::from_str(&body).map_err(|_| body)?;
        match answer["data"]["result"].as_array() {
            Some(series) => Ok(series.clone()),
            None => Err(answer.to_string()),
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The panels of our own dashboard, with each query.
fn panels() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&monitoring("dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let queries = panels.iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().expect("targets");
        targets.iter().map(|target| {
            let query = target["expr"].as_str().expect("a query");
            let query = query.replace("$__rate_interval", "1m");
            let title = panel["title"].as_str().expect("a title");
            (title.to_owned(), query.replace("$instance", ".+"))
        })
    });
    queries.collect()
}

#[test]
fn every_panel_has_data() {
    let Some(program) = program("prometheus") else {
        return;
    };
    in_sandbox(async || {
        let tcp = TcpServer::open(shop(), "monitoring", &Authority::new(), false).await;
        let tripod = tripod(&tcp, &[]);
        let prometheus = Prometheus::start(&program, Path::new("/run"));
        let job = "job=\"kube-proxy\"";
        let community =
            COMMUNITY.map(|(title, query)| (title.to_owned(), query.replace("JOB", job)));
        let all: Vec<(String, String)> = community.into_iter().chain(panels()).collect();
        assert!(all.len() > 20, "{all:?}");
        let mut last = 3;
        for (title, query) in all {
            eventually(&format!("{title} has data"), SOON, || {
                // Something to count.
                last = last % 200 + 1;
                tcp.server.change(|cluster| {
                    cluster.put(service("new", last));
                    cluster.put(slice("new-x", "new", &[last]));
                });
                match prometheus.ask(&query) {
                    Ok(series) if !series.is_empty() => Ok(()),
                    other => Err(format!("{query}: {other:?}\n{}", tripod.log())),
                }
            });
        }
    });
}

#[test]
fn each_alert_fires_on_its_fault_and_none_on_a_healthy_node() {
    let Some(program) = program("promtool") else {
        return;
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alerts");
    fs::create_dir_all(&folder).expect("a folder");
    let object: Value = serde_saphyr::from_str(&monitoring("prometheus-rule.yaml")).expect("YAML");
    // Prometheus reads JSON as the YAML that it is.
    fs::write(folder.join("rules.yaml"), object["spec"].to_string()).expect("rules");
    let cases = include_str!("alerts.yaml").replace("- RULES", "- rules.yaml");
    fs::write(folder.join("alerts.yaml"), &cases).expect("cases");
    for arguments in [
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "alerts.yaml"],
    ] {
        let done = Command::new(&program)
            .args(arguments)
            .current_dir(&folder)
            .output();
        let done = done.expect("running promtool");
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    // No rule is left out of the cases.
    let rules = object["spec"]["groups"][0]["rules"].as_array();
    for rule in rules.expect("rules") {
        let name = rule["alert"].as_str().expect("a name");
        assert!(
            cases.contains(&format!("\"{name}\"")),
            "{name} is not tested"
        );
    }
}
