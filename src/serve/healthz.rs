//! `/healthz` and `/livez`, as kube-proxy 1.36 answers them (`pkg/proxy/healthcheck`): `/healthz`
//! tells whether load balancers should send traffic to this node, `/livez` whether the proxy works.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use hyper::StatusCode;
use jiff::Timestamp;
use prometheus::{IntCounterVec, Opts, Registry};
use serde::Serialize;

use super::http::{Answer, Answers, Asked};
use crate::runner::health::{Health, Snapshot};

/// Go's text for a time that was never set.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Answers both paths and counts the answers.
#[derive(Clone, Debug)]
pub(super) struct Probes {
    health: Arc<Health>,
    healthz: IntCounterVec,
    livez: IntCounterVec,
}

impl Probes {
    /// Registers the counters with `registry`.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub(super) fn register(health: Arc<Health>, registry: &Registry) -> prometheus::Result<Probes> {
        let counter = |path: &str| {
            let name = format!("kubeproxy_proxy_{path}_total");
            let opts = Opts::new(name, format!("Answers to requests for /{path}, by status."));
            let counter = IntCounterVec::new(opts, &["code"])?;
            for code in ["200", "503"] {
                counter.with_label_values(&[code]);
            }
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        Ok(Probes {
            healthz: counter("healthz")?,
            livez: counter("livez")?,
            health,
        })
    }

    pub(super) fn page(&self, asked: Asked<'_>) -> Answer {
        let snapshot = self.health.snapshot();
        let eligible = snapshot.node_eligible;
        match asked.path {
            "/healthz" => {
                let fine = snapshot.healthy && eligible;
                counted(&self.healthz, fine, body(&snapshot, fine, Some(eligible)))
            }
            "/livez" => {
                let fine = snapshot.healthy;
                counted(&self.livez, fine, body(&snapshot, fine, None))
            }
            _ => Answer::not_found(),
        }
    }
}

impl Answers for Probes {
    async fn answer(&self, asked: Asked<'_>) -> Answer {
        self.page(asked)
    }
}

fn counted(counter: &IntCounterVec, fine: bool, body: String) -> Answer {
    let status = if fine {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    counter.with_label_values(&[status.as_str()]).inc();
    Answer::json(body).with_status(status)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyStatus>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

fn body(snapshot: &Snapshot, fine: bool, node_eligible: Option<bool>) -> String {
    let now = SystemTime::now();
    let families = snapshot.families.iter().map(|(family, health)| {
        let status = FamilyStatus {
            last_updated: time(health.last_updated),
            healthy: health.healthy,
        };
        (family.to_string(), status)
    });
    let body = Body {
        // Old kube-proxies updated this time at every request, and some load balancers require it
        // to be recent.
        last_updated: time(if fine {
            Some(now)
        } else {
            snapshot.last_updated
        }),
        current_time: time(Some(now)),
        node_eligible,
        healthy: snapshot.healthy,
        status: families.collect(),
    };
    serde_json::to_string(&body).unwrap_or_default()
}

/// Returns the time in RFC 3339 with as many digits as needed, as Go writes it.
fn time(at: Option<SystemTime>) -> String {
    match at.map(Timestamp::try_from) {
        Some(Ok(at)) => at.to_string(),
        _ => NEVER.to_owned(),
    }
}
