//! A real Prometheus scrapes the real program: every panel of the dashboards has data,
//! and no alert fires.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use jiff::Timestamp;
use serde_json::{Value, json};

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

/// The queries of the dashboard "Kubernetes / Proxy" of the kubernetes-mixin, panel by panel
/// (`dashboards/proxy.libsonnet`).
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

/// Returns a program of Prometheus, from the folder into which `make test-tools` unpacks them.
pub fn program(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    let program = target.map(|target| target.join("tools/usr/bin").join(name));
    let program = program.filter(|program| program.exists());
    if program.is_none() {
        skip(format!(
            "there is no {name}; make test-all INSTALL=yes unpacks it"
        ));
    }
    program
}

fn monitoring(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring");
    fs::read_to_string(folder.join(file)).expect(file)
}

/// The rules for alerts, in the form of Prometheus' rule files.
pub fn rules() -> Value {
    let object: Value = serde_saphyr::from_str(&monitoring("prometheus-rule.yaml")).expect("YAML");
    object["spec"].clone()
}

/// A Prometheus that scrapes this program; ends when dropped.
struct Prometheus(Child);

impl Prometheus {
    fn start(program: &Path, folder: &Path) -> Prometheus {
        let config = folder.join("prometheus.yaml");
        // Prometheus reads JSON, because it is YAML.
        fs::write(folder.join("rules.yaml"), rules().to_string()).expect("rules");
        let text = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n\
             rule_files: [rules.yaml]\n\
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

    fn get(&self, path: &str) -> Result<Value, String> {
        let body = fetch(PROMETHEUS, path).map_err(|error| error.to_string())?;
        serde_json::from_str(&body).map_err(|_| body)
    }

    /// Evaluates a query, and returns the values of the series.
    fn ask(&self, query: &str) -> Result<Vec<f64>, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={encoded}"))?;
        let series = answer["data"]["result"].as_array();
        let series = series.ok_or_else(|| answer.to_string())?.iter();
        let values = series.map(|one| one["value"][1].as_str()?.parse().ok());
        let values: Option<Vec<f64>> = values.collect();
        values.ok_or_else(|| answer.to_string())
    }

    /// Checks that it could evaluate each rule, and that the state of each is one of `states`.
    fn rules_are(&self, states: &[&str]) -> Result<(), String> {
        let answer = self.get("/api/v1/rules")?;
        let evaluated = answer["data"]["groups"][0]["rules"].as_array();
        let evaluated = evaluated.ok_or_else(|| answer.to_string())?;
        let known = rules()["groups"][0]["rules"].as_array().map(Vec::len);
        let is_well = |rule: &Value| {
            let state = rule["state"].as_str().unwrap_or_default();
            rule["health"] == "ok" && states.contains(&state)
        };
        if known == Some(evaluated.len()) && evaluated.iter().all(is_well) {
            Ok(())
        } else {
            Err(format!("{answer:#}"))
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

/// Gives the program something to count: changed endpoints, and an address that another Service
/// owns, about which it posts an Event.
fn change(tcp: &TcpServer, last: u8) {
    tcp.server.change(|cluster| {
        cluster.put(service("new", last));
        let mut changed = slice("new-x", "new", &[last]);
        changed["metadata"]["annotations"] = json!({
            "endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string(),
        });
        cluster.put(changed);
        // Only a limited number of Events are posted about one object.
        let mut rival = service(&format!("rival-{last}"), last);
        rival["spec"]["clusterIP"] = json!(format!("10.96.1.{last}"));
        rival["spec"]["clusterIPs"] = json!([format!("10.96.1.{last}")]);
        rival["spec"]["externalIPs"] = json!(["10.96.0.1"]);
        cluster.put(rival);
    });
    // Each watch is a GET. If they ended more often, the program would only wait before the next
    // one.
    if last.is_multiple_of(50) {
        tcp.server.end_watches();
    }
}

#[test]
fn every_panel_has_data_and_no_alert_fires() {
    let Some(program) = program("prometheus") else {
        return;
    };
    in_sandbox(async || {
        let tcp = TcpServer::open(shop(), "monitoring", &Authority::new(), false).await;
        let tripod = tripod(&tcp, &[]);
        let prometheus = Prometheus::start(&program, Path::new("/run"));
        eventually("no alert is raised on a healthy node", SOON, || {
            let state = prometheus.rules_are(&["inactive"]);
            state.map_err(|why| format!("{why}\n{}", tripod.log()))
        });
        // In OpenMetrics, which it requests, a counter has this name.
        let metadata = prometheus.get("/api/v1/metadata?metric=rest_client_requests");
        let metadata = metadata.expect("metadata");
        let kind = &metadata["data"]["rest_client_requests"][0]["type"];
        assert_eq!(kind, "counter", "{metadata}");
        let job = "job=\"kube-proxy\"";
        let community =
            COMMUNITY.map(|(title, query)| (title.to_owned(), query.replace("JOB", job)));
        let all: Vec<(String, String)> = community.into_iter().chain(panels()).collect();
        assert!(all.len() > 20, "{all:?}");
        let mut last = 3;
        for (title, query) in all {
            eventually(&format!("{title} has data"), SOON, || {
                last = last % 200 + 1;
                change(&tcp, last);
                // A quantile of nothing is not a number.
                match prometheus.ask(&query) {
                    Ok(values) if values.iter().any(|value| value.is_finite()) => Ok(()),
                    other => Err(format!("{query}: {other:?}\n{}", tripod.log())),
                }
            });
        }
        // That alert may be pending because of addresses that two Services name.
        assert_eq!(prometheus.rules_are(&["inactive", "pending"]), Ok(()));
    });
}
