//! `tripod_endpoint_…` and `tripod_service_limited_total`: the traffic of each endpoint, and the
//! connections rejected by limits, for Services in the namespaces that the operator names.
//! Collected at each scrape.

use std::{net::SocketAddr, sync::Arc};

use hashbrown::HashSet;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

use super::TrafficSource;
use crate::{
    family_metrics::{FAMILY, Scrape, at_scrape},
    runner::status::Status,
    services::{Namespaces, ServiceName, ServicePort},
    status_api::{Limited, Traffic},
};

const LABELS: [&str; 6] = [
    "namespace",
    "service",
    "port",
    "protocol",
    FAMILY,
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
    at_scrape(registry, move || read(&namespaces, &runner, &*traffic))
}

fn read(namespaces: &Namespaces, runner: &Status, traffic: &dyn TrafficSource) -> Scrape {
    let series = Series::new()?;
    let ports = runner.ports().unwrap_or_default();
    let ports = ports.values();
    let ports: Vec<_> = ports
        .filter(|port| namespaces.contain(&port.name.service.namespace))
        .collect();
    let mut services = HashSet::new();
    for (port, traffic) in ports.iter().zip(traffic.of(&ports)) {
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
    Ok(vec![
        Box::new(series.active),
        Box::new(series.connections),
        Box::new(series.received),
        Box::new(series.sent),
        Box::new(series.limited),
    ])
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
                     connection limit: refused connections in nftables mode; for userspace mode, \
                     tripod_userspace_service_limited_total and \
                     tripod_userspace_client_limited_total describe the effect.",
                ),
                &["namespace", "service", "limit"],
            )?,
        })
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
}
