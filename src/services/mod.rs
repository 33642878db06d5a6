//! The service map that all modes share: the cluster's objects, interpreted for this node.
//!
//! `watch` sends [`Event`]s; a batch of them goes through [`Tracker::apply`], which folds them into
//! the [`ServiceMap`] and returns the [`Changes`]. This module depends neither on modes nor on
//! kernels.

use std::sync::Arc;

use ipnet::IpNet;

mod absence;
mod address_limit;
mod assemble;
mod called_at;
mod changes;
mod deadlines;
mod endpoint;
mod extensions;
mod invalid;
mod last_ready;
mod names;
mod namespaces;
mod node;
mod object;
mod oddity;
mod owners;
mod passing;
mod port;
mod port_name;
mod port_ranges;
mod select;
mod service;
mod service_addresses;
mod service_cidr;
mod slice;
mod slow_start;
mod source_ranges;
mod tracker;
pub mod wire;

/// ServicePorts for the tests of all modules.
#[cfg(test)]
#[path = "../../tests/lab/service_ports.rs"]
pub(crate) mod service_ports;

pub use absence::{Absence, Missing};
pub use called_at::CalledAt;
pub use changes::{Changes, Former, MOST_WAITING, Stale};
pub use endpoint::{Endpoint, Endpoints, NotUsed, Reach, endpoint_words};
pub use extensions::{DEFAULT_WEIGHT, Forwarding, Preferences, Retry, SETTLED, WEIGHT};
pub use invalid::{Invalid, Reduced};
pub use names::Names;
pub use namespaces::{Namespaces, namespace};
use net::{Family, PerFamily, Protocol};
pub use node::Node;
pub use object::{Batch, Ejected, Event, Kind, Object, ObjectName};
pub use oddity::Oddity;
pub use owners::{AddressKind, Conflict};
pub use port::{ServiceName, ServicePort, TrafficPolicy};
pub use port_name::{NameParts, ServicePortName};
pub use port_ranges::PortRange;
pub use service::{Created, NotServed, Port, Service, Serving};
pub use service_addresses::{ExternalAddresses, ServiceAddresses};
pub use service_cidr::ServiceCidr;
pub use slice::{
    EndpointSlice, Hints, Loopback, Owner, SERVICE_LABEL, SliceEndpoint, SliceName, SlicePort,
    Trigger,
};
pub use slow_start::{Grown, Identity};
pub use tracker::Tracker;

/// ServicePorts by name.
pub type ServicePorts = hashbrown::HashMap<ServicePortName, Arc<ServicePort>>;

/// Numbers of ServicePorts of one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub all: usize,
    /// Those that have a node port or a health-check node port.
    pub node_ports: usize,
    /// Those whose internal traffic policy is Local, and which have endpoints only elsewhere.
    pub internal_elsewhere: usize,
    /// Those whose external traffic policy is Local, and which have endpoints only elsewhere.
    pub external_elsewhere: usize,
    /// Those that are ranges of ports.
    pub ranges: usize,
}

/// The names of the ServicePorts that are relayed, next to a mode of the kernel.
pub type Relayed = Arc<hashbrown::HashSet<ServicePortName>>;

/// The ServicePorts of a [`ServiceMap`] that one mode serves.
#[derive(Clone, Debug, Default, PartialEq)]
enum Part {
    #[default]
    All,
    Only(Relayed),
    Without(Relayed),
}

impl Part {
    fn has(&self, name: &ServicePortName) -> bool {
        match self {
            Part::All => true,
            Part::Only(names) => names.contains(name),
            Part::Without(names) => !names.contains(name),
        }
    }
}

/// Every ServicePort that this node should serve.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceMap {
    /// Copied on change while there is another reference to it.
    ports: Arc<ServicePorts>,
    part: Part,
    counts: PerFamily<Counts>,
    node: Option<Arc<Node>>,
    service_networks: Vec<IpNet>,
}

impl ServiceMap {
    /// Returns the ServicePort of that name, if the node should serve it.
    pub fn get(&self, name: &ServicePortName) -> Option<&Arc<ServicePort>> {
        self.ports.get(name).filter(|_| self.part.has(name))
    }

    /// Returns the same map with only those ServicePorts that are `relayed`. Copies none.
    pub fn only(&self, relayed: &Relayed) -> ServiceMap {
        ServiceMap {
            part: Part::Only(Arc::clone(relayed)),
            ..self.clone()
        }
    }

    /// Returns the same map without those ServicePorts that are `relayed`. Copies none.
    pub fn without(&self, relayed: &Relayed) -> ServiceMap {
        ServiceMap {
            part: Part::Without(Arc::clone(relayed)),
            ..self.clone()
        }
    }

    /// Returns whether it lacks ServicePorts that are relayed.
    pub fn lacks_relayed(&self) -> bool {
        matches!(&self.part, Part::Without(names) if !names.is_empty())
    }

    /// Returns whether it has only ServicePorts that are relayed next to a mode of the kernel.
    pub fn has_only_relayed(&self) -> bool {
        matches!(self.part, Part::Only(_))
    }

    /// Returns the Node object of this node; `None` until it is known.
    pub fn this_node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Returns the ServicePorts of `family`.
    pub fn of_family(&self, family: Family) -> impl Iterator<Item = &Arc<ServicePort>> {
        self.iter().filter(move |port| port.name.family == family)
    }

    /// Returns the networks from which cluster IPs are allocated, without overlaps, as far as
    /// ServiceCIDRs name them.
    pub fn service_networks(&self) -> &[IpNet] {
        &self.service_networks
    }

    /// Returns all ServicePorts, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ServicePort>> {
        let ports = self.ports.values();
        ports.filter(|port| self.part.has(&port.name))
    }

    /// Returns all ServicePorts, sorted by name.
    pub fn sorted(&self) -> Vec<&Arc<ServicePort>> {
        let mut ports: Vec<_> = self.iter().collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        ports
    }

    /// Returns a snapshot of the current ServicePorts. While it is held, the next change copies the
    /// table; a weak reference avoids that.
    pub fn ports(&self) -> &Arc<ServicePorts> {
        &self.ports
    }

    /// Returns whether a ServicePort has a node port or a health-check node port.
    pub fn has_node_ports(&self) -> bool {
        self.counts.iter().any(|(_, counts)| counts.node_ports > 0)
    }

    /// Returns how many ServicePorts there are.
    pub fn counts(&self) -> &PerFamily<Counts> {
        &self.counts
    }

    /// Adds a ServicePort, or replaces the one of its name.
    fn insert(&mut self, port: Arc<ServicePort>) {
        self.count(&port, |number| *number += 1);
        let before = Arc::make_mut(&mut self.ports).insert(port.name.clone(), port);
        self.subtract(before.as_deref());
    }

    /// Removes the ServicePort of that name.
    fn remove(&mut self, name: &ServicePortName) {
        let before = Arc::make_mut(&mut self.ports).remove(name);
        self.subtract(before.as_deref());
    }

    fn subtract(&mut self, port: Option<&ServicePort>) {
        if let Some(port) = port {
            self.count(port, |number| *number -= 1);
        }
    }

    fn count(&mut self, port: &ServicePort, step: fn(&mut usize)) {
        let counts = self.counts.get_mut(port.name.family);
        step(&mut counts.all);
        if port.has_node_port() {
            step(&mut counts.node_ports);
        }
        if port.is_range() {
            step(&mut counts.ranges);
        }
        if port.endpoints.are_elsewhere(port.internal_traffic_policy) {
            step(&mut counts.internal_elsewhere);
        }
        if port.is_accessible() && port.endpoints.are_elsewhere(port.external_traffic_policy) {
            step(&mut counts.external_elsewhere);
        }
    }

    /// Number of ServicePorts.
    pub fn len(&self) -> usize {
        self.ports.len()
    }

    /// Returns whether there is nothing to serve.
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}

impl FromIterator<ServicePort> for ServiceMap {
    /// Builds a map of the given ServicePorts, for tests of modes.
    fn from_iter<I: IntoIterator<Item = ServicePort>>(ports: I) -> ServiceMap {
        let mut map = ServiceMap::default();
        ports
            .into_iter()
            .for_each(|port| map.insert(Arc::new(port)));
        map
    }
}

#[cfg(test)]
mod reduce_tests;
