//! Metrics of the runner, under kube-proxy's names (`pkg/proxy/metrics`), so that its dashboards
//! and alerts keep working, and a few under `tripod_`.
//!
//! A sync counts for each family that it concerned, as in kube-proxy, which syncs each family
//! separately.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use net::Family;
use prometheus::{
    Gauge, GaugeVec, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

use super::unwritten::UnwrittenRules;
use crate::{
    family_metrics::{FAMILY, counter, histogram, observe, registered},
    modes::{self, Unwritten, UnwrittenCounter},
    services::Counts,
};

/// Label of the policy: `internal` or `external`.
const POLICY: &str = "traffic_policy";

/// Metrics about syncs.
#[derive(Clone, Debug)]
pub struct Metrics {
    sync: HistogramVec,
    sync_full: HistogramVec,
    sync_partial: HistogramVec,
    network_programming: HistogramVec,
    last_queued: GaugeVec,
    last_synced: GaugeVec,
    no_local_endpoints: IntGaugeVec,
    conntrack_duration: HistogramVec,
    conntrack_deleted: IntCounterVec,
    /// Counts of changes of Services.
    pub(super) services: Changes,
    /// Counts of changes of EndpointSlices.
    pub(super) endpoints: Changes,
    /// Number of ServicePorts that this node serves.
    pub(super) service_ports: IntGauge,
    /// ServicePorts that are not applied.
    pub(super) service_ports_failed: IntGauge,
    /// ServicePorts that lack an address which another one owns.
    pub(super) service_ports_conflicting: IntGauge,
    /// ServicePorts whose endpoints are in use although none is ready.
    pub(super) service_ports_none_ready: IntGauge,
    /// Syncs of a family that had no effect.
    failures: IntCounterVec,
    unwritten: UnwrittenRules,
}

/// Events about one kind of object.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    pending: Gauge,
    total: IntCounter,
}

fn no_local_endpoints(registry: &Registry) -> prometheus::Result<IntGaugeVec> {
    let help =
        "ServicePorts with a traffic policy of Local that have endpoints, but none on this node.";
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let gauge = IntGaugeVec::new(Opts::new(name, help), &[FAMILY, POLICY])?;
    registered(registry, gauge)
}

impl Metrics {
    /// Registers all metrics with `registry`, at zero.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Metrics> {
        let sync = |name: &str, help: &str| histogram(registry, name, help, sync_buckets());
        let by_family = |name: &str, help: &str| {
            let gauge = GaugeVec::new(Opts::new(name, help), &[FAMILY])?;
            registered(registry, gauge)
        };
        let gauge = |name: &str, help: &str| registered(registry, IntGauge::new(name, help)?);
        let metrics = Metrics {
            sync: sync(
                "kubeproxy_sync_proxy_rules_duration_seconds",
                "Duration of syncs, full and partial.",
            )?,
            sync_full: sync(
                "kubeproxy_sync_full_proxy_rules_duration_seconds",
                "Duration of syncs that compared everything with the kernel.",
            )?,
            sync_partial: sync(
                "kubeproxy_sync_partial_proxy_rules_duration_seconds",
                "Duration of syncs that wrote only what had changed.",
            )?,
            network_programming: histogram(
                registry,
                "kubeproxy_network_programming_duration_seconds",
                "Time from a change of a pod or Service until it is applied on this node.",
                network_programming_buckets(),
            )?,
            last_queued: by_family(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
                "When a sync was last requested, in seconds since 1970.",
            )?,
            last_synced: by_family(
                "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
                "When a sync last succeeded, in seconds since 1970.",
            )?,
            no_local_endpoints: no_local_endpoints(registry)?,
            conntrack_duration: histogram(
                registry,
                "kubeproxy_conntrack_reconciler_sync_duration_seconds",
                "Duration of deleting stale connection-tracking entries.",
                sync_buckets(),
            )?,
            conntrack_deleted: counter(
                registry,
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
                "Stale connection-tracking entries that were deleted.",
            )?,
            services: Changes::register(registry, "service", "Services")?,
            endpoints: Changes::register(registry, "endpoint", "EndpointSlices")?,
            service_ports: gauge(
                "tripod_service_ports",
                "ServicePorts that this node serves.",
            )?,
            service_ports_failed: gauge(
                "tripod_service_ports_failed",
                "ServicePorts that are not applied; the log names them.",
            )?,
            service_ports_conflicting: gauge(
                "tripod_service_ports_conflicting",
                "ServicePorts that are not served at an address that another one owns; Events name \
                 both.",
            )?,
            service_ports_none_ready: gauge(
                "tripod_service_ports_none_ready",
                "ServicePorts whose last ready endpoints are in use although none is ready; Events \
                 name the Services.",
            )?,
            failures: counter(
                registry,
                "tripod_sync_failures_total",
                "Syncs of an IP family that had no effect.",
            )?,
            unwritten: UnwrittenRules::default(),
        };
        for family in Family::ALL {
            metrics.set_no_local_endpoints(family, &Counts::default());
        }
        Ok(metrics)
    }

    /// The same metrics with the additional `counters` of one mode.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub(crate) fn of_mode(
        &self,
        registry: &Registry,
        counters: &[UnwrittenCounter],
    ) -> prometheus::Result<Arc<Metrics>> {
        Ok(Arc::new(Metrics {
            unwritten: UnwrittenRules::register(registry, counters)?,
            ..self.clone()
        }))
    }

    /// Records that a sync of `family` was requested.
    pub(crate) fn queued(&self, family: Family) {
        set_to_now(&self.last_queued, family);
    }

    /// Records the duration of a sync that concerned `family`, whether it
    /// succeeded or not; `full` if it compared everything with the kernel.
    pub(crate) fn took(&self, family: Family, took: Duration, full: bool) {
        let kind = match full {
            true => &self.sync_full,
            false => &self.sync_partial,
        };
        for histogram in [&self.sync, kind] {
            observe(histogram, family, took.as_secs_f64());
        }
    }

    /// Records that a sync that concerned `family` succeeded.
    pub(crate) fn synced(&self, family: Family) {
        set_to_now(&self.last_synced, family);
    }

    /// Records that a sync of `family` failed as a whole.
    pub(super) fn failed(&self, family: Family) {
        self.failures.with_label_values(&[family.name()]).inc();
    }

    /// Records that a change of an endpoint of `family` was applied after `took`.
    pub(super) fn programmed(&self, family: Family, took: Duration) {
        observe(&self.network_programming, family, took.as_secs_f64());
    }

    /// Sets the numbers of ServicePorts without a local endpoint.
    pub(super) fn set_no_local_endpoints(&self, family: Family, counts: &Counts) {
        for (policy, count) in [
            ("internal", counts.internal_elsewhere),
            ("external", counts.external_elsewhere),
        ] {
            let gauge = &self.no_local_endpoints;
            let gauge = gauge.with_label_values(&[family.name(), policy]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
}

impl modes::Metrics for Metrics {
    fn conntrack_cleared(&self, family: Family, took: Duration, deleted: u64) {
        observe(&self.conntrack_duration, family, took.as_secs_f64());
        self.conntrack_deleted
            .with_label_values(&[family.name()])
            .inc_by(deleted);
    }

    fn unwritten(&self, family: Family, what: Unwritten, count: u64) {
        self.unwritten.count(family, what, count);
    }
}

impl Changes {
    fn register(registry: &Registry, word: &str, objects: &str) -> prometheus::Result<Changes> {
        let name = |what: &str| format!("kubeproxy_sync_proxy_rules_{word}_changes_{what}");
        let pending = format!("Changes of {objects} that are not applied yet.");
        let total = format!("Changes of {objects} that were received.");
        Ok(Changes {
            pending: registered(registry, Gauge::new(name("pending"), pending)?)?,
            total: registered(registry, IntCounter::new(name("total"), total)?)?,
        })
    }

    /// Counts received `events`.
    pub(super) fn seen(&self, events: u32) {
        self.total.inc_by(events.into());
    }

    /// Sets the number of events whose changes are not applied yet.
    pub(super) fn set_pending(&self, events: u32) {
        self.pending.set(events.into());
    }
}

/// Buckets from 1 ms to 16 s, each twice the previous one.
fn sync_buckets() -> Vec<f64> {
    (0..15)
        .map(|power| f64::from(1 << power) / 1000.0)
        .collect()
}

/// Buckets for the service-level objective of network programming: up to 5 minutes, in growing
/// steps.
fn network_programming_buckets() -> Vec<f64> {
    let mut buckets = vec![0.0, 0.25, 0.5];
    buckets.extend((1..60).map(f64::from));
    buckets.extend((60..120).step_by(5).map(f64::from));
    buckets.extend((120..=300).step_by(30).map(f64::from));
    buckets
}

fn set_to_now(gauge: &GaugeVec, family: Family) {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since.unwrap_or_default().as_secs_f64();
    gauge.with_label_values(&[family.name()]).set(now);
}
