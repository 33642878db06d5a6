//! Native histograms of Prometheus, in addition to classic ones, if the feature gate
//! `NativeHistograms` of kube-proxy is enabled: buckets of a constant ratio, so that no bounds have
//! to be chosen. Factor and number of buckets are those of kube-proxy 1.37
//! (`k8s.io/component-base/metrics`); buckets are as in `prometheus/histogram.go` of client_golang.

use std::{collections::BTreeMap, sync::OnceLock};

use parking_lot::Mutex;
use prometheus::core::Collector;

/// Buckets per power of two, as a power of two: the largest ratio of two bounds that is not above
/// the factor of 1.1 is 2^(1/8).
const SCHEMA: i32 = 3;

/// Lowest schema: a ratio of 2^16.
const COARSEST: i32 = -4;

/// Maximum number of buckets; above it, pairs of buckets are merged.
const MOST: usize = 160;

/// Values up to this one are in the zero bucket: 2^-128.
pub const ZERO_THRESHOLD: f64 = 2.938_735_877_055_719e-39;

/// Name of the metric, and the values of its labels, sorted by the labels' names.
type Series = (String, Vec<String>);

/// The histograms of this process; unset if they are not enabled.
static ALL: OnceLock<Mutex<BTreeMap<Series, NativeHistogram>>> = OnceLock::new();

/// Records values from now on.
pub fn enable() {
    ALL.get_or_init(Mutex::default);
}

/// Returns whether values are recorded.
pub fn is_enabled() -> bool {
    ALL.get().is_some()
}

/// Records a value of the series of `metric` that has these values of labels, sorted by the labels'
/// names.
pub fn record(metric: &impl Collector, labels: &[&str], value: f64) {
    let Some(all) = ALL.get() else {
        return;
    };
    let Some(name) = metric.desc().first().map(|desc| desc.fq_name.clone()) else {
        return;
    };
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    all.lock().entry((name, labels)).or_default().observe(value);
}

/// Reads the histogram of that series; `None` if nothing was recorded.
pub fn get(name: &str, labels: Vec<String>) -> Option<NativeHistogram> {
    let all = ALL.get()?.lock();
    all.get(&(name.to_owned(), labels)).cloned()
}

/// A native histogram.
#[derive(Clone, Debug, PartialEq)]
pub struct NativeHistogram {
    /// Buckets per power of two, as a power of two.
    pub schema: i32,
    /// Number of values.
    pub count: u64,
    /// Sum of all values.
    pub sum: f64,
    /// Number of values up to [`ZERO_THRESHOLD`].
    pub zero: u64,
    /// Number of values in each bucket: the one of index `i` ends at `2^(i / 2^schema)`.
    pub buckets: BTreeMap<i32, u64>,
}

impl Default for NativeHistogram {
    fn default() -> NativeHistogram {
        NativeHistogram {
            schema: SCHEMA,
            count: 0,
            sum: 0.0,
            zero: 0,
            buckets: BTreeMap::new(),
        }
    }
}

impl NativeHistogram {
    /// Adds a value. Measured values are neither negative nor infinite; others are dropped.
    pub fn observe(&mut self, value: f64) {
        if !value.is_finite() || value < 0.0 {
            return;
        }
        self.count += 1;
        self.sum += value;
        if value <= ZERO_THRESHOLD {
            self.zero += 1;
            return;
        }
        let index = (value.log2() * f64::from(self.schema).exp2()).ceil();
        // It is between -1024 and 8192, because exponents are between -128 and 1024.
        *self.buckets.entry(index as i32).or_default() += 1;
        while self.buckets.len() > MOST && self.schema > COARSEST {
            self.schema -= 1;
            let mut merged = BTreeMap::new();
            for (index, count) in std::mem::take(&mut self.buckets) {
                *merged.entry((index + 1).div_euclid(2)).or_default() += count;
            }
            self.buckets = merged;
        }
    }

    /// Returns the buckets as spans without gaps: the distance to the end of the span before, or for
    /// the first one the index of its first bucket; and the counts.
    pub fn spans(&self) -> Vec<(i32, Vec<u64>)> {
        let mut spans: Vec<(i32, Vec<u64>)> = Vec::new();
        let mut next = 0;
        for (index, count) in &self.buckets {
            match spans.last_mut() {
                Some((_, counts)) if *index == next => counts.push(*count),
                _ => spans.push((index - next, vec![*count])),
            }
            next = index + 1;
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_the_bucket_whose_bounds_contain_them() {
        let mut histogram = NativeHistogram::default();
        for value in [0.0, 1.0, 1.09, 1.1, 2.0, 0.5, f64::NAN, -1.0] {
            histogram.observe(value);
        }
        assert_eq!((histogram.count, histogram.zero), (6, 1));
        // 2^(1/8) is 1.0905.
        let expected = BTreeMap::from([(-8, 1), (0, 1), (1, 1), (2, 1), (8, 1)]);
        assert_eq!(histogram.buckets, expected);
        let spans = [(-8, vec![1]), (7, vec![1, 1, 1]), (5, vec![1])];
        assert_eq!(histogram.spans(), spans);
        assert!((histogram.sum - 5.69).abs() < 1e-9, "{}", histogram.sum);
    }

    #[test]
    fn there_are_never_more_buckets_than_allowed() {
        let mut histogram = NativeHistogram::default();
        for index in -800..800 {
            histogram.observe((f64::from(index) / 8.0).exp2());
        }
        assert_eq!(histogram.count, 1_600);
        assert_eq!(histogram.buckets.values().sum::<u64>(), 1_600);
        assert!(
            histogram.buckets.len() <= MOST,
            "{}",
            histogram.buckets.len()
        );
        assert_eq!(histogram.schema, -1);
        // Buckets then end at powers of four.
        let mut other = NativeHistogram {
            schema: -1,
            ..NativeHistogram::default()
        };
        for index in -800..800 {
            other.observe((f64::from(index) / 8.0).exp2());
        }
        assert_eq!(histogram.buckets, other.buckets);
    }

    #[test]
    fn a_series_is_recorded_once_that_is_enabled() {
        let options = prometheus::HistogramOpts::new("native_test_seconds", "A test.");
        let metric = prometheus::HistogramVec::new(options, &["host", "verb"]).expect("a metric");
        enable();
        record(&metric, &["h", "GET"], 1.0);
        let labels = || vec!["h".to_owned(), "GET".to_owned()];
        let found = get("native_test_seconds", labels()).expect("it is recorded");
        assert_eq!(found.count, 1);
        assert_eq!(get("native_test_seconds", Vec::new()), None);
    }
}
