//! The cluster as objects, and the events that remove them.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use net::Family;

use super::{
    AFFINITY, Is, NODE, PORT, Spec, TARGET, endpoint, family, ip, is_local, node_address,
    node_port, protocol, ranges,
};
use crate::services::{
    Created, EndpointSlice, Event, Identity, Node, Object, ObjectName, Owner, Port, PortRange,
    Preferences, Service, ServiceCidr, ServiceName, Serving, SliceEndpoint, SliceName, SlicePort,
    TrafficPolicy,
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
            ports: self.ports(),
            external_ips: some(self.external_ip, 51),
            load_balancer_ips: some(self.load_balancer, 113),
            load_balancer_source_ranges: self.ranges.iter().map(|at| ranges(family)[*at]).collect(),
            session_affinity: self.affinity.then_some(AFFINITY),
            internal_traffic_policy: policy(self.internal_local),
            external_traffic_policy: policy(self.external_local),
            health_check_node_port: None,
        };
        let has_some =
            self.scheduler.is_some() || self.slow_start || self.limits || self.port_range;
        let preferences = has_some.then(|| {
            Arc::new(Preferences {
                scheduler: self.scheduler.map(Into::into),
                hash_table_size: NonZeroU32::new(7)
                    .filter(|_| self.scheduler.is_some() || self.port_range),
                // So long that no share grows meanwhile.
                slow_start: self
                    .slow_start
                    .then_some(Duration::from_secs(1_000_000_000)),
                // So many that no limit is reached.
                max_connections: NonZeroU32::new(10_000).filter(|_| self.limits),
                max_connections_per_client: NonZeroU32::new(1_000).filter(|_| self.limits),
                ports: self.port_range().into_iter().collect(),
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

impl Spec {
    fn port_range(&self) -> Option<PortRange> {
        let (first, last) = (NonZeroU16::new(50)?, NonZeroU16::new(40_000)?);
        let protocol = protocol(self.number);
        self.port_range.then_some(PortRange {
            first,
            last,
            protocol,
        })
    }

    fn ports(&self) -> Box<[Port]> {
        let port = Port {
            name: "p".into(),
            protocol: protocol(self.number),
            port: PORT,
            last_port: None,
            node_port: self.node_port.then(|| node_port(self.number)),
        };
        let range = self.port_range().map(|range| Port {
            name: range.to_string().into(),
            port: range.first.get(),
            last_port: Some(range.last),
            node_port: None,
            ..port.clone()
        });
        [port].into_iter().chain(range).collect()
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
