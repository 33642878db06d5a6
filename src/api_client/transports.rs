//! Metrics of the transports to the API server, each a client with its connections and
//! credentials, and of client certificates from a credential plugin. They have the names,
//! labels and buckets of client-go (`k8s.io/component-base/metrics/prometheus/restclient`).

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use super::validity::Validity;
use crate::{
    family_metrics::{at_scrape, registered},
    native_histograms,
};

/// Upper bounds of the buckets of a certificate's age, in seconds: from 10 minutes to 4 years.
const AGES: [f64; 11] = [
    600.0,
    1800.0,
    3600.0,
    14400.0,
    86400.0,
    604800.0,
    2592000.0,
    7776000.0,
    15552000.0,
    31104000.0,
    124416000.0,
];

/// Counts transports, and measures how long the certificate of a plugin is valid. Clones
/// share the figures.
#[derive(Clone)]
pub(super) struct TransportMetrics {
    open: IntGauge,
    asked_for: IntCounterVec,
    age: Histogram,
    certificate: Arc<Mutex<Option<Certificate>>>,
}

struct Certificate {
    pem: String,
    /// When it is valid; `None` if it cannot be read.
    validity: Option<Validity>,
}

impl TransportMetrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<TransportMetrics> {
        let open = IntGauge::new(
            "rest_client_transport_cache_entries",
            "Transports to the API server that are kept; all requests share one.",
        )?;
        let open = registered(registry, open)?;
        let asked_for = Opts::new(
            "rest_client_transport_create_calls_total",
            "Transports to the API server that were requested: created, also because credentials \
             changed (miss), or reused (hit).",
        );
        let asked_for = registered(registry, IntCounterVec::new(asked_for, &["result"])?)?;
        // client-go has a goroutine for each transport with a client certificate from files.
        registry.register(Box::new(IntCounter::new(
            "rest_client_transport_cert_rotation_gc_calls_total",
            "Goroutines of client-go that ended with their transport; 0, Tripod has none.",
        )?))?;
        let age = HistogramOpts::new(
            "rest_client_exec_plugin_certificate_rotation_age",
            "Age of a credential plugin's client certificate when another one replaced it, in \
             seconds.",
        );
        let age = registered(registry, Histogram::with_opts(age.buckets(AGES.to_vec()))?)?;
        let certificate: Arc<Mutex<Option<Certificate>>> = Arc::default();
        let given = Arc::clone(&certificate);
        at_scrape(registry, move || {
            let validity = given.lock().as_ref().and_then(|given| given.validity);
            let left = validity.map(|validity| seconds_until(validity.until));
            let gauge = Gauge::new(
                "rest_client_exec_plugin_ttl_seconds",
                "Time until the client certificate that a credential plugin gave expires, in \
                 seconds; +Inf if none gave one.",
            )?;
            gauge.set(left.unwrap_or(f64::INFINITY));
            Ok(vec![Box::new(gauge)])
        })?;
        Ok(TransportMetrics {
            open,
            asked_for,
            age,
            certificate,
        })
    }

    /// Records that a transport was made. The returned value counts it as open until it is dropped.
    pub(super) fn made(&self) -> OpenTransport {
        self.asked_for.with_label_values(&["miss"]).inc();
        self.open.inc();
        OpenTransport(self.open.clone())
    }

    /// Records that another part of Tripod shares a transport.
    pub(super) fn shared(&self) {
        self.asked_for.with_label_values(&["hit"]).inc();
    }

    /// Records the client certificate `pem` that a plugin provided for a new transport;
    /// `None` if it provided none, or there is no plugin.
    pub(super) fn given(&self, pem: Option<String>) {
        let mut certificate = self.certificate.lock();
        if certificate.as_ref().map(|before| &before.pem) == pem.as_ref() {
            return;
        }
        let before = certificate.as_ref().and_then(|before| before.validity);
        if let Some(before) = before.filter(|_| pem.is_some()) {
            let age = -seconds_until(before.from);
            self.age.observe(age);
            native_histograms::record(&self.age, &[], age);
        }
        *certificate = pem.map(|pem| Certificate {
            validity: Validity::of_pem(&pem),
            pem,
        });
    }
}

/// Counts a transport as open until it is dropped.
pub(super) struct OpenTransport(IntGauge);

impl Drop for OpenTransport {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Returns the time until `time`, in seconds; negative if it is past.
fn seconds_until(time: Timestamp) -> f64 {
    Timestamp::now().duration_until(time).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// Returns a certificate that is valid from the beginning of one year to the
    /// beginning of the other.
    fn certificate(from: i32, until: i32) -> String {
        let mut params = CertificateParams::new(vec!["node".to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    fn value(registry: &Registry, name: &str) -> f64 {
        let families = registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        family.unwrap().get_metric()[0].get_gauge().get_value()
    }

    #[test]
    fn the_certificate_of_a_plugin_is_measured_until_it_gives_none() {
        let registry = Registry::new();
        let metrics = TransportMetrics::register(&registry).unwrap();
        let left = || value(&registry, "rest_client_exec_plugin_ttl_seconds");
        assert_eq!(left(), f64::INFINITY);
        let day = 86400.0;
        let first = certificate(2020, 2120);
        metrics.given(Some(first.clone()));
        let until_2120 = seconds_until("2120-01-01T00:00:00Z".parse().unwrap());
        assert!((left() - until_2120).abs() < day, "{}", left());
        metrics.given(Some(first));
        assert_eq!(metrics.age.get_sample_count(), 0);
        metrics.given(Some(certificate(2010, 2011)));
        assert!(left() < 0.0, "{}", left());
        let since_2020 = -seconds_until("2020-01-01T00:00:00Z".parse().unwrap());
        let age = metrics.age.get_sample_sum();
        assert_eq!(metrics.age.get_sample_count(), 1);
        assert!((age - since_2020).abs() < day, "{age}");
        metrics.given(None);
        metrics.given(Some("no certificate".to_owned()));
        assert_eq!(left(), f64::INFINITY);
        assert_eq!(metrics.age.get_sample_count(), 1);
    }

    #[test]
    fn transports_count_while_they_are_kept() {
        let registry = Registry::new();
        let metrics = TransportMetrics::register(&registry).unwrap();
        let kept = || value(&registry, "rest_client_transport_cache_entries");
        let (first, second) = (metrics.made(), metrics.made());
        assert_eq!(kept(), 2.0);
        drop(first);
        metrics.shared();
        assert_eq!(kept(), 1.0);
        drop(second);
        assert_eq!(kept(), 0.0);
        for (result, times) in [("miss", 2), ("hit", 1)] {
            let counted = metrics.asked_for.with_label_values(&[result]).get();
            assert_eq!(counted, times, "{result}");
        }
    }
}
