//! `tripod_objects_followed` and `tripod_sync_waiting_seconds`: conditions that can keep changes
//! from taking effect for long, even if there never was a sync. Collected at each scrape, from the
//! same data as the answers of `/v1/status` and of probes.

use std::sync::Arc;

use prometheus::{GaugeVec, IntGaugeVec, Opts, Registry};

use crate::{
    family_metrics::{FAMILY, Scrape, at_scrape},
    runner::health::Health,
    watch::SourceHealth,
};

/// Registers the metrics with `registry`.
///
/// # Errors
/// When it has metrics of these names already.
pub fn register(
    registry: &Registry,
    objects: Arc<SourceHealth>,
    health: Arc<Health>,
) -> prometheus::Result<()> {
    at_scrape(registry, move || read(&objects, &health))
}

fn read(objects: &SourceHealth, health: &Health) -> Scrape {
    let followed = IntGaugeVec::new(
        Opts::new(
            "tripod_objects_followed",
            "1 if all objects of the kind are known and their changes are followed, else 0; \
             nothing is served before those of required kinds are known.",
        ),
        &["kind", "required"],
    )?;
    for (kind, health) in objects.kinds() {
        let required = if health.required { "true" } else { "false" };
        let is_followed = health.complete && health.trouble.is_none();
        let gauge = followed.with_label_values(&[kind, required]);
        gauge.set(is_followed.into());
    }
    let waiting = GaugeVec::new(
        Opts::new(
            "tripod_sync_waiting_seconds",
            "How long changes, or a sync that is due, have waited for a successful sync, in \
             seconds; 0 if nothing waits.",
        ),
        &[FAMILY],
    )?;
    for (family, time) in health.waiting().iter() {
        let gauge = waiting.with_label_values(&[family.name()]);
        gauge.set(time.as_secs_f64());
    }
    Ok(vec![Box::new(followed), Box::new(waiting)])
}
