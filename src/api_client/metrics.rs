//! Metrics of requests to the API server, under the names and labels of client-go
//! (`staging/src/k8s.io/component-base/metrics/prometheus/restclient/metrics.go`), so
//! that dashboards made for kube-proxy show them.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use http::{Method, Request, Response, Uri};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};
use tower::Service;

/// In seconds, as client-go has them.
const BUCKETS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
];

/// What client-go has for the code of a request without an answer.
const NO_ANSWER: &str = "<error>";

/// Counts requests, and measures how long they take. Clones share the figures.
#[derive(Clone)]
pub struct RequestMetrics {
    total: IntCounterVec,
    duration: HistogramVec,
}

impl RequestMetrics {
    /// Returns metrics that are among those of `registry`.
    ///
    /// # Errors
    /// When it has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<RequestMetrics> {
        let total = Opts::new(
            "rest_client_requests_total",
            "Requests to the API server, by status code, method and host.",
        );
        let duration = HistogramOpts::new(
            "rest_client_request_duration_seconds",
            "Time from a request to the API server to the head of its answer, in seconds.",
        );
        let duration = duration.buckets(BUCKETS.into());
        let metrics = RequestMetrics {
            total: IntCounterVec::new(total, &["code", "host", "method"])?,
            duration: HistogramVec::new(duration, &["host", "verb"])?,
        };
        registry.register(Box::new(metrics.total.clone()))?;
        registry.register(Box::new(metrics.duration.clone()))?;
        Ok(metrics)
    }

    fn answered(&self, asked: &Asked, code: &str, took: Duration) {
        let (host, method) = (asked.host.as_str(), asked.method.as_str());
        self.total.with_label_values(&[code, host, method]).inc();
        let duration = self.duration.with_label_values(&[host, method]);
        duration.observe(took.as_secs_f64());
    }
}

/// What of a request the labels say.
struct Asked {
    method: Method,
    host: String,
}

impl Asked {
    fn of(method: &Method, uri: &Uri) -> Asked {
        let host = uri.authority().map(|authority| authority.as_str());
        Asked {
            method: method.clone(),
            host: host.unwrap_or_default().to_owned(),
        }
    }
}

/// A client whose requests are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    inner: S,
    metrics: RequestMetrics,
}

impl<S> Counted<S> {
    /// Counts the requests that `inner` makes.
    pub(super) fn new(inner: S, metrics: RequestMetrics) -> Counted<S> {
        Counted { inner, metrics }
    }
}

impl<S, B, R> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let asked = Asked::of(request.method(), request.uri());
        let metrics = self.metrics.clone();
        let begun = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map(|answer| answer.status());
            let code = code.as_ref().map_or(NO_ANSWER, |code| code.as_str());
            metrics.answered(&asked, code, begun.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::StatusCode;

    #[tokio::test]
    async fn requests_are_counted_by_code_and_measured() {
        let metrics = RequestMetrics::register(&Registry::new()).unwrap();
        let answers = tower::service_fn(|request: Request<()>| async move {
            match request.uri().path() {
                "/broken" => Err("no answer"),
                path => {
                    let mut answer = Response::new(());
                    let missing = path == "/missing";
                    *answer.status_mut() = if missing {
                        StatusCode::NOT_FOUND
                    } else {
                        StatusCode::OK
                    };
                    Ok(answer)
                }
            }
        });
        let mut client = Counted::new(answers, metrics.clone());
        for path in ["/list", "/list?watch=true", "/missing", "/broken"] {
            let uri = format!("https://192.0.2.1:6443{path}");
            let request = Request::get(uri).body(()).unwrap();
            let _ = client.call(request).await;
        }
        for (code, times) in [("200", 2), ("404", 1), (NO_ANSWER, 1)] {
            let counter = metrics
                .total
                .with_label_values(&[code, "192.0.2.1:6443", "GET"]);
            assert_eq!(counter.get(), times, "{code}");
        }
        let measured = metrics
            .duration
            .with_label_values(&["192.0.2.1:6443", "GET"]);
        assert_eq!(measured.get_sample_count(), 4);
    }
}
