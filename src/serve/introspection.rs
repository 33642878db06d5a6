//! The pages at the metrics address: `/metrics`, `/proxyMode`, `/configz`, `/statusz`, `/flagz`,
//! `/healthz` in its short form, and the number of requests to that (`/metrics/slis`, KEP-3466).
//! Processes of this node, and clients that the API server allows, also get the API of the running
//! proxy, and the page for people at `/`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use hyper::StatusCode;
use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};
use serde_json::{Value, json};

use super::{
    StatusApi,
    http::{Answer, Answers, Asked},
    openmetrics, page, process, status_api,
    zpages::Pages,
};
use crate::{
    config::ModeName,
    status_api::{DIFF_PATH, EXPLAIN_PATH, HEALTH_PATH, SERVICES_PATH, STATUS_PATH, SYNCS_PATH},
};

/// Name under which `/configz` shows the configuration: its API group.
const CONFIG_GROUP: &str = "kubeproxy.config.k8s.io";

/// The version of kube-proxy, major and minor, that this program replaces.
const KUBERNETES: (&str, &str) = ("1", "36");

/// Path of the metrics.
const METRICS: &str = "/metrics";

/// The paths, sorted.
const PATHS: [&str; 8] = [
    "/configz",
    "/flagz",
    "/healthz",
    "/healthz/ping",
    METRICS,
    "/metrics/slis",
    "/proxyMode",
    "/statusz",
];

/// The mode that runs, and why no better one does.
#[derive(Clone, Debug)]
pub struct Running {
    /// The current mode.
    pub mode: ModeName,
    /// Whether the settings name a mode; if not, no running mode is a fallback.
    pub named: bool,
    /// Why each better mode was passed over.
    pub passed_over: Vec<String>,
    /// The missing abilities of those modes, one word for each.
    pub wanting: Vec<String>,
    /// The feature gates of kube-proxy that Tripod honours.
    pub gates: Vec<Gate>,
}

/// A feature gate.
#[derive(Clone, Debug)]
pub struct Gate {
    /// Name of the gate.
    pub name: &'static str,
    /// Its stage, such as `ALPHA`.
    pub stage: &'static str,
    /// Whether it is enabled.
    pub enabled: bool,
}

/// This machine's architecture under Go's name.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The data for the pages about this process.
#[derive(Debug)]
pub struct Introspection {
    registry: Registry,
    /// Number of requests to `/healthz`. The one check behind it, `ping`,
    /// passes whenever the process can answer.
    checks: AtomicU64,
    running: Running,
    configuration: Value,
    pages: Pages,
    api: Option<Arc<StatusApi>>,
}

impl Introspection {
    /// `configuration` is the one that is applied, without secrets; `flags` are all flags with
    /// their values.
    pub fn new(
        registry: Registry,
        running: Running,
        configuration: Value,
        flags: BTreeMap<String, String>,
    ) -> Introspection {
        Introspection {
            registry,
            checks: AtomicU64::new(0),
            pages: Pages {
                started: SystemTime::now(),
                paths: PATHS.to_vec(),
                flags,
                remarks: std::iter::once(format!("Proxy mode: {}", running.mode))
                    .chain(running.passed_over.iter().cloned())
                    .collect(),
            },
            running,
            configuration,
            api: None,
        }
    }

    /// Adds the API of the running proxy, for clients that may use it.
    pub fn with_api(mut self, api: Arc<StatusApi>) -> Introspection {
        self.pages.paths.extend([
            DIFF_PATH,
            EXPLAIN_PATH,
            HEALTH_PATH,
            SERVICES_PATH,
            STATUS_PATH,
            SYNCS_PATH,
        ]);
        self.api = Some(api);
        self
    }

    /// Registers the metrics that describe the process: `process_…`, its version, its mode.
    ///
    /// # Errors
    /// When the registry has metrics of these names already.
    pub fn register(&self) -> prometheus::Result<()> {
        process::register(&self.registry)?;
        let mode = self.running.mode.to_string();
        let info = [
            (
                "tripod_mode",
                "The mode of this node, in the label; the value is always 1.",
                "mode",
                mode.as_str(),
            ),
            (
                "tripod_build_info",
                "The version of Tripod, in the label; the value is always 1.",
                "version",
                env!("CARGO_PKG_VERSION"),
            ),
        ];
        self.register_kubernetes()?;
        let wanting = self.running.wanting.join(",");
        let fallback = Opts::new(
            "tripod_mode_fallback",
            "1 if another mode runs than the settings name, else 0; the label says what better \
             modes lack, also if the settings name no mode.",
        );
        // An alert uses it, for operators who configured a mode and did not get it.
        let has_fallen_back = self.running.named && !wanting.is_empty();
        let fallback = fallback.const_label("reason", &wanting);
        self.register_constant(fallback, has_fallen_back.into())?;
        for (name, help, label, value) in info {
            self.register_constant(Opts::new(name, help).const_label(label, value), 1)?;
        }
        Ok(())
    }

    fn register_constant(&self, metric: Opts, value: i64) -> prometheus::Result<()> {
        let gauge = IntGauge::with_opts(metric)?;
        gauge.set(value);
        self.registry.register(Box::new(gauge))
    }

    /// Registers the metrics that every component of Kubernetes has, which dashboards join on: the
    /// version of kube-proxy that this program replaces, and the feature gates that it honours.
    fn register_kubernetes(&self) -> prometheus::Result<()> {
        let info = Opts::new(
            "kubernetes_build_info",
            "The version of kube-proxy that this program replaces, in the labels; its own version \
             is in tripod_build_info.",
        );
        let (major, minor) = KUBERNETES;
        let version = env!("CARGO_PKG_VERSION");
        let platform = format!("{}/{}", std::env::consts::OS, architecture());
        let labels = [
            ("major", major.to_owned()),
            ("minor", minor.to_owned()),
            (
                "git_version",
                format!("v{major}.{minor}.0+tripod-{version}"),
            ),
            ("git_commit", String::new()),
            ("git_tree_state", String::new()),
            ("build_date", String::new()),
            ("go_version", String::new()),
            ("compiler", "rustc".to_owned()),
            ("platform", platform),
        ];
        let labels = labels.into_iter();
        let info = labels.fold(info, |info, (name, value)| info.const_label(name, value));
        self.register_constant(info, 1)?;
        let gates = Opts::new(
            "kubernetes_feature_enabled",
            "1 if the feature gate of kube-proxy is enabled, else 0; only the gates that Tripod \
             honours.",
        );
        let gates = IntGaugeVec::new(gates, &["name", "stage"])?;
        for gate in &self.running.gates {
            let gauge = gates.with_label_values(&[gate.name, gate.stage]);
            gauge.set(gate.enabled.into());
        }
        self.registry.register(Box::new(gates))
    }

    pub(super) fn page(&self, asked: Asked<'_>) -> Answer {
        match asked.path {
            METRICS => openmetrics::answer(&self.registry, asked.accept),
            "/metrics/slis" => self.slis(),
            "/proxyMode" => Answer::text(self.running.mode.to_string()),
            "/healthz" => {
                self.checks.fetch_add(1, Ordering::Relaxed);
                Answer::text("ok")
            }
            "/healthz/ping" => Answer::text("ok"),
            "/configz" => Answer::json(json!({ CONFIG_GROUP: self.configuration }).to_string()),
            "/statusz" => self.pages.statusz(asked),
            "/flagz" => self.pages.flagz(asked),
            "/" if self.api.is_some() => {
                status_api::refusal(asked.peer).unwrap_or_else(page::answer)
            }
            path if path.starts_with("/debug/") => {
                Answer::text("there are no Go profiles; perf(1) works on this process\n")
                    .with_status(StatusCode::NOT_FOUND)
            }
            _ => Answer::not_found(),
        }
    }

    /// The metrics of health checks; like kube-proxy's, they are empty until the first one.
    fn slis(&self) -> Answer {
        let text = match self.checks.load(Ordering::Relaxed) {
            0 => String::new(),
            checks => format!(
                "# HELP kubernetes_healthcheck Whether the last health check passed.\n\
                 # TYPE kubernetes_healthcheck gauge\n\
                 kubernetes_healthcheck{{name=\"ping\",type=\"healthz\"}} 1\n\
                 # HELP kubernetes_healthchecks_total Health checks, by result.\n\
                 # TYPE kubernetes_healthchecks_total counter\n\
                 kubernetes_healthchecks_total{{name=\"ping\",status=\"success\",type=\"healthz\"}} {checks}\n"
            ),
        };
        Answer::metrics(text)
    }
}

impl Answers for Introspection {
    async fn answer(&self, asked: Asked<'_>) -> Answer {
        if let Some(api) = &self.api {
            if asked.path.starts_with("/v1/") {
                return api.answer(asked).await;
            }
            if asked.path == METRICS
                && let Some(refreshed) = api.traffic.refresh()
            {
                refreshed.await;
            }
        }
        self.page(asked)
    }
}
