//! Metrics that have a value for each IP family.

use net::Family;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
    core::{Collector, Desc, Describer},
    proto::MetricFamily,
};

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

/// A counter whose values are read when it is shown.
struct ReadCounter<R> {
    metric: Opts,
    desc: Desc,
    read: R,
}

/// Values of a counter, by the values of its labels.
pub(crate) type Values = Vec<(Vec<&'static str>, u64)>;

/// Registers a counter with `registry` whose values `read` returns; none where they cannot be read,
/// as 0 would be taken for a reset of the counter.
///
/// # Errors
/// When `registry` has a metric of its name already.
pub(crate) fn read_counter<R: Fn() -> Values + Send + Sync + 'static>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    read: R,
) -> prometheus::Result<()> {
    let labels = labels.iter().map(ToString::to_string).collect();
    let metric = Opts::new(name, help).variable_labels(labels);
    let desc = metric.describe()?;
    registry.register(Box::new(ReadCounter { metric, desc, read }))
}

impl<R: Fn() -> Values + Send + Sync> Collector for ReadCounter<R> {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    /// The metric is a new one, as several clients may ask at once.
    fn collect(&self) -> Vec<MetricFamily> {
        let labels: Vec<&str> = self
            .metric
            .variable_labels
            .iter()
            .map(|name| &**name)
            .collect();
        let values = (self.read)();
        match IntCounterVec::new(self.metric.clone(), &labels) {
            Ok(counter) if !values.is_empty() => {
                for (labels, value) in values {
                    counter.with_label_values(&labels).inc_by(value);
                }
                counter.collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, thread};

    use super::*;

    thread_local! {
        static PACKETS: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn clients_that_ask_at_once_each_get_what_was_read_for_them() {
        let registry = &Registry::new();
        let read = || vec![(Vec::new(), PACKETS.get())];
        read_counter(registry, "packets_total", "Packets.", &[], read).unwrap();
        thread::scope(|scope| {
            for packets in 1..=4u32 {
                scope.spawn(move || {
                    PACKETS.set(packets.into());
                    for _ in 0..10_000 {
                        let shown = registry.gather();
                        let value = shown[0].get_metric()[0].get_counter().get_value();
                        assert_eq!(value, f64::from(packets));
                    }
                });
            }
        });
    }
}
