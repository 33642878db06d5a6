//! ServicePorts made by hand, for planning tests of the library (which includes this file in
//! `services`) and of the test suite, and for the benches.
//!
//! A test changes only the fields it is about: `ServicePort { node_port: Some(30_000),
//! ..service_port("web", [10, 0, 0, 1]) }`.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use net::{Family, Protocol};
use tripod::services::{
    Endpoint, Endpoints, NameParts, ServiceName, ServicePort, ServicePortName, TrafficPolicy,
};

/// The name that prints as `text`: `namespace/name`, or the name of a Service in `default`.
pub fn service_name(text: &str) -> ServiceName {
    let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
    ServiceName {
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// The name of an IPv4 TCP port that prints as `text`: `namespace/name:port`, where namespace and
/// port may be left out.
pub fn port_name(text: &str) -> ServicePortName {
    let (service, port) = text.split_once(':').unwrap_or((text, ""));
    let parts = NameParts {
        service: service_name(service),
        port: port.into(),
        protocol: Protocol::Tcp,
        family: Family::V4,
    };
    parts.into()
}

/// A ServicePort named by `text` as in [`port_name`], with port 80 on `cluster_ip` and its family,
/// open to all, and without endpoints.
pub fn service_port(text: &str, cluster_ip: impl Into<IpAddr>) -> ServicePort {
    let cluster_ip = cluster_ip.into();
    ServicePort {
        name: port_name(text).in_family(Family::of(&cluster_ip)),
        cluster_ip: Some(cluster_ip),
        port: 80,
        last_port: None,
        node_port: None,
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        load_balancer_source_ranges: Box::default(),
        session_affinity: None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        health_check_node_port: None,
        most_hash_entries: 65_536,
        preferences: None,
        endpoints: Arc::default(),
        conflicts: Box::default(),
    }
}

/// An endpoint on another node that is ready and has the usual weight.
pub fn endpoint(address: impl Into<SocketAddr>) -> Endpoint {
    Endpoint {
        address: address.into(),
        local: false,
        ready: true,
        serving: true,
        terminating: false,
        weight: 1,
        last_ready: false,
        grown: tripod::services::Grown::default(),
        node_name: None,
    }
}

/// Makes `all` the endpoints of a ServicePort: each takes traffic with policy Cluster, and those of
/// this node traffic with policy Local.
pub fn endpoints(all: impl IntoIterator<Item = Endpoint>) -> Arc<Endpoints> {
    let mut all: Vec<Endpoint> = all.into_iter().collect();
    all.sort_by_key(|endpoint| endpoint.address);
    all.dedup_by_key(|endpoint| endpoint.address);
    let indices = |takes: fn(&Endpoint) -> bool| -> Box<[u32]> {
        let taking = (0..).zip(&all).filter(|(_, endpoint)| takes(endpoint));
        taking.map(|(index, _)| index).collect()
    };
    Arc::new(Endpoints {
        weighed: all.iter().any(|endpoint| endpoint.weight > 1),
        ejected: Box::default(),
        forbidden: Box::default(),
        are_too_many: false,
        absence: None,
        cluster: indices(|_| true),
        local: indices(|endpoint| endpoint.local),
        all_reachable: indices(|_| true),
        has_any: !all.is_empty(),
        all: all.into(),
    })
}
