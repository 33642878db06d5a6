//! The cluster's objects of all kinds, and their changes.

use std::{collections::BTreeSet, fmt, net::SocketAddr, sync::Arc};

use super::{EndpointSlice, Node, Service, ServiceCidr, ServiceName, SliceName};

/// A kind of objects that a service proxy reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nodes.
    Node,
    /// ServiceCIDRs.
    ServiceCidr,
    /// Services.
    Service,
    /// EndpointSlices.
    EndpointSlice,
}

/// Kind and name of an object: two of the same name are two versions of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectName {
    /// A Node.
    Node(Arc<str>),
    /// A ServiceCIDR.
    ServiceCidr(Arc<str>),
    /// A Service.
    Service(ServiceName),
    /// An EndpointSlice.
    EndpointSlice(SliceName),
}

impl ObjectName {
    /// Names the object of that kind whose metadata have this namespace and name; `None` without a
    /// name.
    pub fn new(kind: Kind, namespace: Option<&str>, name: Option<&str>) -> Option<ObjectName> {
        let name: Arc<str> = name.filter(|name| !name.is_empty())?.into();
        let namespace = || super::namespace(namespace).into();
        Some(match kind {
            Kind::Node => ObjectName::Node(name),
            Kind::ServiceCidr => ObjectName::ServiceCidr(name),
            Kind::Service => ObjectName::Service(ServiceName {
                namespace: namespace(),
                name,
            }),
            Kind::EndpointSlice => ObjectName::EndpointSlice(SliceName {
                namespace: namespace(),
                name,
            }),
        })
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectName::Node(name) => write!(f, "Node {name}"),
            ObjectName::ServiceCidr(name) => write!(f, "ServiceCIDR {name}"),
            ObjectName::Service(name) => write!(f, "Service {name}"),
            ObjectName::EndpointSlice(name) => write!(f, "EndpointSlice {name}"),
        }
    }
}

/// An object in its reduced form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Node.
    Node(Arc<Node>),
    /// A ServiceCIDR.
    ServiceCidr(Arc<ServiceCidr>),
    /// A Service.
    Service(Arc<Service>),
    /// An EndpointSlice.
    EndpointSlice(Arc<EndpointSlice>),
}

impl Object {
    /// Returns its kind and name.
    pub fn name(&self) -> ObjectName {
        match self {
            Object::Node(node) => ObjectName::Node(Arc::clone(&node.name)),
            Object::ServiceCidr(cidr) => ObjectName::ServiceCidr(Arc::clone(&cidr.name)),
            Object::Service(service) => ObjectName::Service(service.name.clone()),
            Object::EndpointSlice(slice) => ObjectName::EndpointSlice(slice.name.clone()),
        }
    }
}

/// A change of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An object was added or changed.
    Changed(Object),
    /// An object was deleted.
    Gone(ObjectName),
    /// Endpoints of a Service stopped answering, or will be tried again.
    Ejected(Ejected),
}

/// The endpoints of a Service that get no new connections for now, because connections to them are
/// not answered. If that would leave none, they are used anyway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejected {
    /// Name of the Service to which the endpoints belong.
    pub service: ServiceName,
    /// All of its endpoints that are ejected now.
    pub endpoints: BTreeSet<SocketAddr>,
}

/// Events that are applied together, so that no mode sees the map between two of them, in the order
/// in which they happened.
pub type Batch = Vec<Event>;
