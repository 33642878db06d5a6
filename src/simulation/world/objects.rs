//! The cluster as objects, and the events that remove them.

use std::{net::IpAddr, num::NonZeroU32, sync::Arc, time::Duration};

use ipnet::IpNet;
use net::Family;

use super::{
    AFFINITY, Is, NODE, PORT, Spec, TARGET, endpoint, family, ip, is_local, node_address,
    node_port, protocol, ranges,
};
use crate::services::{
    Created, EndpointSlice, Event, Identity, Node, Object, ObjectName, Owner, Port, Preferences,
    Service, ServiceCidr, ServiceName, Serving, SessionAffinity, SliceEndpoint, SliceName,
    SlicePort, TrafficPolicy,
};

fn name(number: usize) -> ServiceName {
    ServiceName {
        namespace: "default".into(),
        name: format!("web-{number}").into(),
    }
}

impl Spec {
    /// Returns the Service and its EndpointSlice.
    pub(in crate::simulation) fn events(&self) -> [Event; 2] {
        let family = family(self.number);
        let number = self.number as u16 + 1;
        let policy = |local| {
            if local {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            }
        };
        let some = |is: bool, network| -> Box<[IpAddr]> {
            is.then(|| ip(family, network, number))
                .into_iter()
                .collect()
        };
        let serving = Serving {
            cluster_ips: [ip(family, 96, number)].into(),
            ports: [Port {
                name: "p".into(),
                protocol: protocol(self.number),
                port: PORT,
                node_port: self.node_port.then(|| node_port(self.number)),
            }]
            .into(),
            external_ips: some(self.external_ip, 51),
            load_balancer_ips: some(self.load_balancer, 113),
            load_balancer_source_ranges: self.ranges.iter().map(|at| ranges(family)[*at]).collect(),
            session_affinity: if self.affinity {
                SessionAffinity::ClientIp { timeout: AFFINITY }
            } else {
                SessionAffinity::None
            },
            internal_traffic_policy: policy(self.internal_local),
            external_traffic_policy: policy(self.external_local),
            health_check_node_port: None,
        };
        let has_some = self.scheduler.is_some() || self.slow_start || self.limits;
        let preferences = has_some.then(|| {
            Arc::new(Preferences {
                scheduler: self.scheduler.map(Into::into),
                hash_table_size: self.scheduler.and(NonZeroU32::new(7)),
                // So long that no share grows meanwhile.
                slow_start: self
                    .slow_start
                    .then_some(Duration::from_secs(1_000_000_000)),
                // So many that no limit is reached.
                max_connections: NonZeroU32::new(10_000).filter(|_| self.limits),
                max_connections_per_client: NonZeroU32::new(1_000).filter(|_| self.limits),
                ..Preferences::default()
            })
        });
        let service = Service {
            name: name(self.number),
            created: Created::at(self.number as i64),
            serving: Ok(serving),
            selector: true,
            preferences,
        };
        let endpoints = self.endpoints.iter().map(|one| SliceEndpoint {
            address: endpoint(family, one.last).ip(),
            identity: Identity::of(None, endpoint(family, one.last).ip()),
            node_name: Some(if is_local(one.last) { NODE } else { "other" }.into()),
            ready: one.state == Is::Ready,
            serving: one.state != Is::NotReady,
            terminating: one.state == Is::Terminating,
            hints: None,
        });
        let slice = EndpointSlice {
            name: slice_name(self.number),
            owner: Owner::Service(name(self.number)),
            for_another_proxy: false,
            ports: [SlicePort {
                name: "p".into(),
                protocol: protocol(self.number),
                port: TARGET,
            }]
            .into(),
            endpoints: endpoints.collect(),
            forbidden: Box::default(),
            weight: None,
            trigger: Default::default(),
        };
        [
            Event::Changed(Object::Service(Arc::new(service))),
            Event::Changed(Object::EndpointSlice(Arc::new(slice))),
        ]
    }
}

fn slice_name(number: usize) -> SliceName {
    SliceName {
        namespace: "default".into(),
        name: format!("web-{number}-1").into(),
    }
}

/// Returns the events that remove a Service.
pub(in crate::simulation) fn gone(number: usize) -> [Event; 2] {
    [
        Event::Gone(ObjectName::Service(name(number))),
        Event::Gone(ObjectName::EndpointSlice(slice_name(number))),
    ]
}

/// Returns this node's object.
pub(in crate::simulation) fn node() -> Event {
    Event::Changed(Object::Node(Arc::new(Node {
        name: NODE.into(),
        zone: None,
        pod_cidrs: Box::default(),
        addresses: Family::ALL.map(node_address).into(),
        deleting: false,
        to_be_deleted: false,
        weight: None,
    })))
}

/// Returns the event that says which networks cluster IPs are from; `known` false: the
/// event that removes that knowledge.
pub(in crate::simulation) fn service_networks(known: bool) -> Event {
    let name = "kubernetes".into();
    if !known {
        return Event::Gone(ObjectName::ServiceCidr(name));
    }
    let networks = [(Family::V4, 16), (Family::V6, 32)];
    let networks = networks.map(|(family, prefix)| IpNet::new_assert(ip(family, 96, 0), prefix));
    Event::Changed(Object::ServiceCidr(Arc::new(ServiceCidr {
        name,
        networks: networks.into(),
    })))
}
