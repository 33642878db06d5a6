//! Services by number.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use tripod::{
    net::{Family, Protocol},
    services::{
        Endpoint, Endpoints, ServiceName, ServicePort, ServicePortName, SessionAffinity,
        TrafficPolicy,
    },
};

pub const ENDPOINTS: u32 = 5;
pub const PORT: u16 = 80;

pub fn address(number: u32) -> Ipv4Addr {
    (u32::from(Ipv4Addr::new(10, 96, 0, 1)) + number).into()
}

/// With its endpoints; `version` says where one of them is.
pub fn service(number: u32, version: u32) -> ServicePort {
    let first = u32::from(Ipv4Addr::new(10, 244, 0, 1));
    let moved = u32::from(Ipv4Addr::new(10, 245, 0, 1)) + version;
    let endpoint = |at: u32| -> SocketAddr {
        let moves = at == 0 && version > 0;
        let ip = if moves {
            moved
        } else {
            first + number * ENDPOINTS + at
        };
        (Ipv4Addr::from(ip), 8080).into()
    };
    with(number, (0..ENDPOINTS).map(endpoint).collect())
}

/// With one endpoint.
pub fn single(number: u32, endpoint: SocketAddr) -> ServicePort {
    with(number, vec![endpoint])
}

fn with(number: u32, mut endpoints: Vec<SocketAddr>) -> ServicePort {
    endpoints.sort_unstable();
    let all: Vec<Endpoint> = endpoints
        .into_iter()
        .map(|address| Endpoint {
            address,
            local: false,
            ready: true,
            serving: true,
            terminating: false,
            node_name: None,
            weight: 1,
        })
        .collect();
    let cluster: Box<[u32]> = (0..).zip(&all).map(|(at, _)| at).collect();
    ServicePort {
        name: ServicePortName {
            service: ServiceName {
                namespace: "default".into(),
                name: format!("service-{number}").into(),
            },
            port: "".into(),
            protocol: Protocol::Tcp,
            family: Family::V4,
        },
        cluster_ip: Some(address(number).into()),
        port: PORT,
        node_port: None,
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        load_balancer_source_ranges: Box::default(),
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        external_traffic_policy: TrafficPolicy::Cluster,
        health_check_node_port: None,
        preferences: None,
        conflicts: Box::default(),
        endpoints: Arc::new(Endpoints {
            local: Box::default(),
            all_reachable: cluster.clone(),
            has_any: !all.is_empty(),
            cluster,
            all: all.into(),
        }),
    }
}
