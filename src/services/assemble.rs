//! Makes the ServicePorts of one Service out of its objects.

use std::{cmp::Reverse, net::SocketAddr, sync::Arc};

use super::{
    Endpoint, EndpointSlice, IpFamily, Service, ServicePort, ServicePortName, TrafficPolicy,
    select::{Candidate, ThisNode, Uses, select},
    service::{Port, Serving},
};

/// The ServicePorts of `service`: one for each port and family.
pub(super) fn service_ports<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
    node: &ThisNode,
) -> Vec<ServicePort> {
    let Ok(serving) = &service.serving else {
        return Vec::new();
    };
    let mut made = Vec::with_capacity(serving.cluster_ips.len() * serving.ports.len());
    for cluster_ip in &serving.cluster_ips {
        let family = IpFamily::of(cluster_ip);
        for port in &serving.ports {
            let mut service_port = without_endpoints(service, serving, port, *cluster_ip);
            let candidates = candidates(port, family, slices.clone(), node);
            service_port.endpoints = Arc::new(select(candidates, uses(&service_port), node));
            made.push(service_port);
        }
    }
    made
}

fn without_endpoints(
    service: &Service,
    serving: &Serving,
    port: &Port,
    cluster_ip: std::net::IpAddr,
) -> ServicePort {
    let family = IpFamily::of(&cluster_ip);
    let of_family = |ips: &[std::net::IpAddr]| {
        let ips = ips.iter().filter(|ip| IpFamily::of(ip) == family);
        ips.copied().collect()
    };
    let ranges = serving.load_balancer_source_ranges.iter();
    ServicePort {
        name: ServicePortName {
            service: service.name.clone(),
            port: Arc::clone(&port.name),
            protocol: port.protocol,
            family,
        },
        cluster_ip,
        port: port.port,
        node_port: port.node_port,
        external_ips: of_family(&serving.external_ips),
        load_balancer_ips: of_family(&serving.load_balancer_ips),
        load_balancer_source_ranges: ranges
            .filter(|range| IpFamily::of(&range.addr()) == family)
            .copied()
            .collect(),
        session_affinity: serving.session_affinity,
        internal_traffic_policy: serving.internal_traffic_policy,
        external_traffic_policy: serving.external_traffic_policy,
        health_check_node_port: serving.health_check_node_port,
        endpoints: Arc::default(),
    }
}

fn uses(port: &ServicePort) -> Uses {
    let accessible = port.node_port.is_some()
        || !port.external_ips.is_empty()
        || !port.load_balancer_ips.is_empty();
    let internal_local = port.internal_traffic_policy == TrafficPolicy::Local;
    let external_local = port.external_traffic_policy == TrafficPolicy::Local;
    Uses {
        cluster: !internal_local || accessible,
        local: internal_local || (external_local && accessible),
    }
}

fn candidates<'a>(
    port: &Port,
    family: IpFamily,
    slices: impl Iterator<Item = &'a EndpointSlice>,
    node: &ThisNode,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for slice in slices {
        let matching = slice
            .ports
            .iter()
            .filter(|other| other.name == port.name && other.protocol == port.protocol);
        for target in matching {
            for endpoint in &slice.endpoints {
                if IpFamily::of(&endpoint.address) != family {
                    continue;
                }
                found.push(Candidate {
                    endpoint: Endpoint {
                        address: SocketAddr::new(endpoint.address, target.port),
                        local: endpoint.node_name.as_ref() == Some(&node.name),
                        ready: endpoint.ready,
                        serving: endpoint.serving,
                        terminating: endpoint.terminating,
                        node_name: endpoint.node_name.clone(),
                    },
                    hints: endpoint.hints.as_deref(),
                });
            }
        }
    }
    // An endpoint that moves from slice to slice is in both for a moment. The
    // copy that says more for it wins, whatever the order of the slices, so
    // that it does not flap meanwhile.
    found.sort_by_key(|Candidate { endpoint, .. }| {
        let merit = (
            endpoint.local,
            endpoint.ready,
            endpoint.serving,
            !endpoint.terminating,
        );
        (endpoint.address, Reverse(merit))
    });
    found.dedup_by_key(|candidate| candidate.endpoint.address);
    found
}
