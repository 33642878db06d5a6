//! `tripod_objects_followed` and `tripod_sync_waiting_seconds`: conditions that can keep changes
//! from taking effect for long, even if there never was a sync. Collected at each scrape, from the
//! same data as the answers of `/v1/status` and of probes.

use std::sync::Arc;

use prometheus::{
    GaugeVec, IntGaugeVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use crate::{runner::health::Health, watch::SourceHealth};

/// Registers the metrics with `registry`.
///
/// # Errors
/// When it has metrics of these names already.
pub fn register(
    registry: &Registry,
    objects: Arc<SourceHealth>,
    health: Arc<Health>,
) -> prometheus::Result<()> {
    let descriptions = Gauges::new()?.desc();
    registry.register(Box::new(StateMetrics {
        objects,
        health,
        descriptions,
    }))
}

struct StateMetrics {
    objects: Arc<SourceHealth>,
    health: Arc<Health>,
    descriptions: Vec<Desc>,
}

impl Collector for StateMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(gauges) = Gauges::new() else {
            return Vec::new();
        };
        for (kind, health) in self.objects.kinds() {
            let required = if health.required { "true" } else { "false" };
            let is_followed = health.complete && health.trouble.is_none();
            let gauge = gauges.followed.with_label_values(&[kind, required]);
            gauge.set(is_followed.into());
        }
        for (family, waiting) in self.health.waiting().iter() {
            let gauge = gauges.waiting.with_label_values(&[family.name()]);
            gauge.set(waiting.as_secs_f64());
        }
        gauges.collect()
    }
}

/// The metrics of one scrape.
struct Gauges {
    followed: IntGaugeVec,
    waiting: GaugeVec,
}

impl Gauges {
    fn new() -> prometheus::Result<Gauges> {
        Ok(Gauges {
            followed: IntGaugeVec::new(
                Opts::new(
                    "tripod_objects_followed",
                    "1 if all objects of the kind are known and their changes are followed, else \
                     0; nothing is served before those of required kinds are known.",
                ),
                &["kind", "required"],
            )?,
            waiting: GaugeVec::new(
                Opts::new(
                    "tripod_sync_waiting_seconds",
                    "How long changes, or a sync that is due, have waited for a successful sync, \
                     in seconds; 0 if nothing waits.",
                ),
                &["ip_family"],
            )?,
        })
    }

    fn desc(&self) -> Vec<Desc> {
        let all = self.followed.desc().into_iter().chain(self.waiting.desc());
        all.cloned().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all = self.followed.collect().into_iter();
        let all = all.chain(self.waiting.collect());
        // A family without series is not written.
        all.filter(|family| !family.get_metric().is_empty())
            .collect()
    }
}
