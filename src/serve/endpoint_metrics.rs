//! `tripod_endpoint_…` and `tripod_service_limited_total`: the traffic of each endpoint, and the
//! connections rejected by limits, for Services in the namespaces that the operator names.
//! Collected at each scrape.

use std::{net::SocketAddr, sync::Arc};

use hashbrown::HashSet;
use prometheus::{
    GaugeVec, IntCounterVec, Opts, Registry,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::TrafficSource;
use crate::{
    runner::status::Status,
    services::{Namespaces, ServiceName, ServicePort},
    status_api::{Limited, Traffic},
};

const LABELS: [&str; 6] = [
    "namespace",
    "service",
    "port",
    "protocol",
    "ip_family",
    "endpoint",
];

/// Registers the metrics with `registry`, unless there are no such namespaces.
///
/// # Errors
/// When it has metrics of these names already.
pub fn register(
    registry: &Registry,
    namespaces: Namespaces,
    runner: Arc<Status>,
    traffic: Arc<dyn TrafficSource>,
) -> prometheus::Result<()> {
    if namespaces.is_empty() {
        return Ok(());
    }
    let descriptions = Series::new()?.desc();
    registry.register(Box::new(EndpointMetrics {
        namespaces,
        runner,
        traffic,
        descriptions,
    }))
}

struct EndpointMetrics {
    namespaces: Namespaces,
    runner: Arc<Status>,
    traffic: Arc<dyn TrafficSource>,
    descriptions: Vec<Desc>,
}

impl Collector for EndpointMetrics {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Ok(series) = Series::new() else {
            return Vec::new();
        };
        let ports = self.runner.ports().unwrap_or_default();
        let ports = ports.values();
        let ports: Vec<_> = ports
            .filter(|port| self.namespaces.contain(&port.name.service.namespace))
            .collect();
        let mut services = HashSet::new();
        for (port, traffic) in ports.iter().zip(self.traffic.of(&ports)) {
            let service = &port.name.service;
            // The ports of a Service share one count.
            if let Some(limited) = traffic.limited
                && services.insert(service)
            {
                series.add_limited(service, limited);
            }
            for (endpoint, traffic) in &traffic.endpoints {
                series.add(port, *endpoint, *traffic);
            }
        }
        series.collect()
    }
}

/// The metrics of one scrape.
struct Series {
    active: GaugeVec,
    connections: IntCounterVec,
    received: IntCounterVec,
    sent: IntCounterVec,
    limited: IntCounterVec,
}

impl Series {
    fn new() -> prometheus::Result<Series> {
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &LABELS);
        Ok(Series {
            active: GaugeVec::new(
                Opts::new(
                    "tripod_endpoint_active_connections",
                    "Open connections and known UDP clients of each endpoint of the Services that \
                     --service-metrics names.",
                ),
                &LABELS,
            )?,
            connections: counter(
                "tripod_endpoint_connections_total",
                "Connections and UDP flows to each endpoint of these Services.",
            )?,
            received: counter(
                "tripod_endpoint_client_bytes_total",
                "Bytes that clients sent to each endpoint of these Services.",
            )?,
            sent: counter(
                "tripod_endpoint_answer_bytes_total",
                "Bytes that each endpoint of these Services sent to clients.",
            )?,
            limited: IntCounterVec::new(
                Opts::new(
                    "tripod_service_limited_total",
                    "Times that each of these Services, or one of its clients, reached its \
                     connection limit; tripod_userspace_service_limited_total and \
                     tripod_userspace_client_limited_total describe the effect.",
                ),
                &["namespace", "service", "limit"],
            )?,
        })
    }

    fn desc(&self) -> Vec<Desc> {
        let counters = self.counters().into_iter().flat_map(Collector::desc);
        self.active
            .desc()
            .into_iter()
            .chain(counters)
            .cloned()
            .collect()
    }

    fn counters(&self) -> [&IntCounterVec; 4] {
        [&self.connections, &self.received, &self.sent, &self.limited]
    }

    fn add_limited(&self, service: &ServiceName, limited: Limited) {
        for (limit, times) in [("service", limited.service), ("client", limited.client)] {
            let labels = [&*service.namespace, &*service.name, limit];
            self.limited.with_label_values(&labels).inc_by(times);
        }
    }

    fn add(&self, port: &ServicePort, endpoint: SocketAddr, traffic: Traffic) {
        let (name, endpoint) = (&port.name, endpoint.to_string());
        let labels: [&str; 6] = [
            &name.service.namespace,
            &name.service.name,
            &name.port,
            name.protocol.name(),
            name.family.name(),
            &endpoint,
        ];
        if let Some(active) = traffic.active {
            self.active.with_label_values(&labels).set(active as f64);
        }
        let counters = [
            (&self.connections, traffic.connections),
            (&self.received, traffic.bytes_in),
            (&self.sent, traffic.bytes_out),
        ];
        for (counter, value) in counters {
            if let Some(value) = value {
                counter.with_label_values(&labels).inc_by(value);
            }
        }
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let counters = self.counters().into_iter().flat_map(Collector::collect);
        let all = self.active.collect().into_iter().chain(counters);
        // A family without series is not written.
        all.filter(|family| !family.get_metric().is_empty())
            .collect()
    }
}
