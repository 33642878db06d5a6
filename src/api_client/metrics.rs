//! Metrics of requests to the API server, under the names, labels and buckets of client-go
//! (`staging/src/k8s.io/component-base/metrics/prometheus/restclient/metrics.go`), so
//! that dashboards made for kube-proxy show them.

use std::time::Duration;

use http::{Method, Uri};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

use super::transports::TransportMetrics;
use crate::native_histograms;

/// Upper bounds of the buckets of durations, in seconds.
const DURATIONS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];

/// Upper bounds of the buckets of sizes, in bytes.
const SIZES: [f64; 11] = [
    64.0, 256.0, 512.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0,
    16777216.0,
];

/// client-go's label `code` of a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Counts requests, and measures how long they take and how large they are. Clones share
/// the figures.
#[derive(Clone)]
pub struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
    waited: HistogramVec,
    request_size: HistogramVec,
    response_size: HistogramVec,
    /// Metrics of the transports by which requests are made.
    pub(super) transports: TransportMetrics,
}

impl RequestMetrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<RequestMetrics> {
        let total = Opts::new(
            "rest_client_requests_total",
            "Requests to the API server, by status code, method and host.",
        );
        let total = IntCounterVec::new(total, &["code", "host", "method"])?;
        registry.register(Box::new(total.clone()))?;
        let histogram = |name: &str, help: &str, buckets: &[f64]| {
            let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
            let histogram = HistogramVec::new(options, &["host", "verb"])?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        Ok(RequestMetrics {
            total,
            transports: TransportMetrics::register(registry)?,
            duration: histogram(
                "rest_client_request_duration_seconds",
                "Time from a request to the API server until the header of its answer, in seconds.",
                &DURATIONS,
            )?,
            waited: histogram(
                "rest_client_rate_limiter_duration_seconds",
                "Time that a request to the API server waited for clientConnection.qps, in seconds.",
                &DURATIONS,
            )?,
            request_size: histogram(
                "rest_client_request_size_bytes",
                "Size of the body of a request to the API server, in bytes.",
                &SIZES,
            )?,
            response_size: histogram(
                "rest_client_response_size_bytes",
                "Size of the body of an answer of the API server, in bytes; watches are not counted.",
                &SIZES,
            )?,
        })
    }

    /// Records how long a request waited for the rate limit.
    pub(super) fn waited(&self, to: &Asked, time: Duration) {
        to.observe(&self.waited, time.as_secs_f64());
    }

    /// Records a request with a body of this size, if it is known, and the status of its
    /// answer, or that it got none, after `took`.
    pub(super) fn answered(
        &self,
        asked: &Asked,
        size: Option<u64>,
        code: Option<&str>,
        took: Duration,
    ) {
        let labels = [
            code.unwrap_or(NO_ANSWER),
            &asked.host,
            asked.method.as_str(),
        ];
        self.total.with_label_values(&labels).inc();
        asked.observe(&self.duration, took.as_secs_f64());
        if let Some(size) = size {
            asked.observe(&self.request_size, size as f64);
        }
    }

    /// Records that an answer with a body of this size was read.
    pub(super) fn read(&self, asked: &Asked, size: u64) {
        asked.observe(&self.response_size, size as f64);
    }
}

/// The labels of a request.
#[derive(Clone)]
pub(super) struct Asked {
    method: Method,
    host: String,
}

impl Asked {
    pub(super) fn new(method: &Method, uri: &Uri) -> Asked {
        let host = uri.authority().map(|authority| authority.as_str());
        Asked {
            method: method.clone(),
            host: host.unwrap_or_default().to_owned(),
        }
    }

    fn observe(&self, metric: &HistogramVec, value: f64) {
        let labels = [self.host.as_str(), self.method.as_str()];
        metric.with_label_values(&labels).observe(value);
        native_histograms::record(metric, &labels, value);
    }
}

#[cfg(test)]
impl RequestMetrics {
    /// The number of requests to `host` with this code.
    pub(super) fn requests(&self, code: &str, host: &str) -> u64 {
        self.total.with_label_values(&[code, host, "GET"]).get()
    }

    /// Returns, for GET requests to `host`: how many were measured, how many bytes they
    /// had, how many answers were measured, and how many bytes those had.
    pub(super) fn measured(&self, host: &str) -> [f64; 4] {
        let get = [host, "GET"];
        let sizes = [&self.request_size, &self.response_size];
        let [sent, read] = sizes.map(|metric| metric.with_label_values(&get).get_sample_sum());
        let counts = [&self.duration, &self.response_size];
        let [asked, answered] =
            counts.map(|metric| metric.with_label_values(&get).get_sample_count() as f64);
        [asked, sent, answered, read]
    }
}
