//! Metrics that have a value for each IP family.

use net::Family;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, core::Collector};

use crate::native_histograms;

/// Label of the IP family, by its [name](Family::name).
pub(crate) const FAMILY: &str = "ip_family";

/// Registers a metric with `registry`.
///
/// # Errors
/// When `registry` has a metric of its name already.
pub(crate) fn registered<C: Collector + Clone + 'static>(
    registry: &Registry,
    c: C,
) -> prometheus::Result<C> {
    registry.register(Box::new(c.clone()))?;
    Ok(c)
}

/// Returns a counter that shows both families from the start, as
/// [histograms](histogram) do.
pub(crate) fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
) -> prometheus::Result<IntCounterVec> {
    let counter = IntCounterVec::new(Opts::new(name, help), &[FAMILY])?;
    for family in Family::ALL {
        counter.with_label_values(&[family.name()]);
    }
    registered(registry, counter)
}

/// Records a value of `family`.
pub(crate) fn observe(histogram: &HistogramVec, family: Family, value: f64) {
    let labels = [family.name()];
    histogram.with_label_values(&labels).observe(value);
    native_histograms::record(histogram, &labels, value);
}

/// Returns a histogram that shows both families from the start, so that a rate
/// over the first event is not lost.
pub(crate) fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: Vec<f64>,
) -> prometheus::Result<HistogramVec> {
    let opts = HistogramOpts::new(name, help).buckets(buckets);
    let histogram = HistogramVec::new(opts, &[FAMILY])?;
    for family in Family::ALL {
        histogram.with_label_values(&[family.name()]);
    }
    registered(registry, histogram)
}
