//! Metrics that have a value for each IP family, and metrics that are read when they are asked for.

use net::Family;
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry,
    core::{Collector, Desc},
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

/// Metrics with their values at one scrape. One that has no value at the moment is a vector without
/// series, so that it has a description; the registry leaves it out.
pub(crate) type Scrape = prometheus::Result<Vec<Box<dyn Collector>>>;

/// Registers metrics that `read` makes at each scrape, and once now. They are new ones each time, as
/// several clients may ask at once.
///
/// # Errors
/// When `registry` has metrics of these names already.
pub(crate) fn at_scrape(
    registry: &Registry,
    read: impl Fn() -> Scrape + Send + Sync + 'static,
) -> prometheus::Result<()> {
    let made = read()?;
    let descriptions = made.iter().flat_map(|metric| metric.desc());
    registry.register(Box::new(AtScrape {
        descriptions: descriptions.cloned().collect(),
        read,
    }))
}

struct AtScrape<R> {
    descriptions: Vec<Desc>,
    read: R,
}

impl<R: Fn() -> Scrape + Send + Sync> Collector for AtScrape<R> {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let made = (self.read)().unwrap_or_default();
        made.iter().flat_map(|metric| metric.collect()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicU64, Ordering},
    };

    use prometheus::IntCounter;

    use super::*;

    #[test]
    fn clients_that_ask_at_once_each_get_what_was_read_for_them() {
        let registry = Registry::new();
        let reads = AtomicU64::new(0);
        let read = move || -> Scrape {
            let counter = IntCounter::new("reads_total", "Reads.")?;
            counter.inc_by(reads.fetch_add(1, Ordering::Relaxed));
            Ok(vec![Box::new(counter)])
        };
        at_scrape(&registry, read).expect("a metric");
        let value = || {
            registry.gather()[0].get_metric()[0]
                .get_counter()
                .get_value() as u64
        };
        let ask = || (0..10_000).map(|_| value()).collect::<Vec<_>>();
        let values = std::thread::scope(|scope| {
            let clients = [(); 4].map(|()| scope.spawn(ask));
            clients
                .map(|client| client.join().expect("values"))
                .concat()
        });
        assert_eq!(values.iter().collect::<BTreeSet<_>>().len(), 40_000);
        assert_eq!(values.iter().max(), Some(&40_000));
    }
}
