//! Changes of the objects of the cluster.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{EndpointSlice, Node, Service, ServiceCidr, ServiceName, SliceName};

/// One object came, changed or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A Service came or changed.
    Service(Arc<Service>),
    /// A Service went.
    ServiceGone(ServiceName),
    /// An EndpointSlice came or changed.
    EndpointSlice(Arc<EndpointSlice>),
    /// An EndpointSlice went.
    EndpointSliceGone(SliceName),
    /// A Node came or changed.
    Node(Arc<Node>),
    /// A Node went.
    NodeGone(Arc<str>),
    /// A ServiceCIDR came or changed.
    ServiceCidr(Arc<ServiceCidr>),
    /// A ServiceCIDR went.
    ServiceCidrGone(Arc<str>),
    /// Endpoints of a Service stopped answering, or are to be tried again.
    Ejected(Ejected),
}

/// The endpoints of a Service that get no new connections for now, because those to
/// them are not answered. Where that would leave none, they are used all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ejected {
    /// Name of the Service to which the endpoints belong.
    pub service: ServiceName,
    /// All of its endpoints that are ejected now.
    pub endpoints: BTreeSet<SocketAddr>,
}

/// Events that are folded together, so that no mode sees the map between two of
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The events in the order in which they happened.
    pub events: Vec<Event>,
}
