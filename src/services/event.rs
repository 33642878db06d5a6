//! Changes of the cluster's objects.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{EndpointSlice, Node, Service, ServiceCidr, ServiceName, SliceName};

/// A change of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A Service was added or changed.
    Service(Arc<Service>),
    /// A Service was deleted.
    ServiceGone(ServiceName),
    /// An EndpointSlice was added or changed.
    EndpointSlice(Arc<EndpointSlice>),
    /// An EndpointSlice was deleted.
    EndpointSliceGone(SliceName),
    /// A Node was added or changed.
    Node(Arc<Node>),
    /// A Node was deleted.
    NodeGone(Arc<str>),
    /// A ServiceCIDR was added or changed.
    ServiceCidr(Arc<ServiceCidr>),
    /// A ServiceCIDR was deleted.
    ServiceCidrGone(Arc<str>),
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

/// Events that are applied together, so that no mode sees the map between two of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The events in the order in which they happened.
    pub events: Vec<Event>,
}
