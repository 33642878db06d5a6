//! The kinds that a service proxy reads, their objects as the API defines them, and the identity of
//! objects.

use std::{fmt, sync::Arc};

use k8s_openapi::{
    Resource,
    api::{
        core::v1::{Node, Service},
        discovery::v1::EndpointSlice,
        networking::v1::ServiceCIDR,
    },
};
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer},
};

use crate::services::{self, Event, Invalid, Names, Reduced, ServiceName, SliceName, wire};

/// An object as a file has it.
#[derive(Debug)]
pub(super) enum ApiObject {
    Service(Box<wire::Service>),
    EndpointSlice(wire::EndpointSlice),
    Node(wire::Node),
    ServiceCidr(wire::ServiceCidr),
}

/// Kinds that a service proxy reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Service,
    EndpointSlice,
    Node,
    ServiceCidr,
}

impl Kind {
    /// All of them, each with its version and its name.
    pub(super) const ALL: [(Kind, &str, &str); 4] = [
        (Kind::Service, Service::API_VERSION, Service::KIND),
        (
            Kind::EndpointSlice,
            EndpointSlice::API_VERSION,
            EndpointSlice::KIND,
        ),
        (Kind::Node, Node::API_VERSION, Node::KIND),
        (
            Kind::ServiceCidr,
            ServiceCIDR::API_VERSION,
            ServiceCIDR::KIND,
        ),
    ];

    /// Finds the kind of that name, if a service proxy reads it.
    pub(super) fn of(api_version: &str, kind: &str) -> Option<Kind> {
        let mut all = Kind::ALL.into_iter();
        let found = all.find(|(_, version, name)| (*version, *name) == (api_version, kind));
        found.map(|(found, ..)| found)
    }
}

/// Identity of an object: two of the same key are two versions of one object.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    Node(Arc<str>),
    ServiceCidr(Arc<str>),
    Service(ServiceName),
    EndpointSlice(SliceName),
}

impl Key {
    /// The key of an object with these metadata; `None` without a name.
    pub(super) fn new(kind: Kind, namespace: Option<&str>, name: Option<&str>) -> Option<Key> {
        let name: Arc<str> = name.filter(|name| !name.is_empty())?.into();
        let namespace = || services::namespace(namespace).into();
        Some(match kind {
            Kind::Node => Key::Node(name),
            Kind::ServiceCidr => Key::ServiceCidr(name),
            Kind::Service => Key::Service(ServiceName {
                namespace: namespace(),
                name,
            }),
            Kind::EndpointSlice => Key::EndpointSlice(SliceName {
                namespace: namespace(),
                name,
            }),
        })
    }

    /// Returns the event that the object is gone.
    pub(super) fn gone(self) -> Event {
        match self {
            Key::Node(name) => Event::NodeGone(name),
            Key::ServiceCidr(name) => Event::ServiceCidrGone(name),
            Key::Service(name) => Event::ServiceGone(name),
            Key::EndpointSlice(name) => Event::EndpointSliceGone(name),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Node(name) => write!(f, "Node {name}"),
            Key::ServiceCidr(name) => write!(f, "ServiceCIDR {name}"),
            Key::Service(name) => write!(f, "Service {name}"),
            Key::EndpointSlice(name) => write!(f, "EndpointSlice {name}"),
        }
    }
}

impl ApiObject {
    /// Identifies the object; `None` without a name.
    pub(super) fn key(&self) -> Option<Key> {
        let (kind, metadata) = match self {
            ApiObject::Service(object) => (Kind::Service, &object.metadata),
            ApiObject::EndpointSlice(object) => (Kind::EndpointSlice, &object.metadata),
            ApiObject::Node(object) => (Kind::Node, &object.metadata),
            ApiObject::ServiceCidr(object) => (Kind::ServiceCidr, &object.metadata),
        };
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        Key::new(kind, namespace, name)
    }

    /// Reduces the object to the event that it was added or changed, with its key.
    ///
    /// # Errors
    /// Names the first field without which it cannot be used.
    pub(super) fn reduce(&self, names: &mut Names) -> Result<Reduced<(Key, Event)>, Invalid> {
        Ok(match self {
            ApiObject::Service(service) => {
                let reduced = services::Service::reduce(service, names)?;
                reduced.map(|object| (Key::Service(object.name.clone()), Event::Service(object)))
            }
            ApiObject::EndpointSlice(slice) => {
                let reduced = services::EndpointSlice::reduce_of_file(slice, names)?;
                reduced.map(|object| {
                    let key = Key::EndpointSlice(object.name.clone());
                    (key, Event::EndpointSlice(object))
                })
            }
            ApiObject::Node(node) => {
                let reduced = services::Node::reduce(node, names)?;
                reduced.map(|object| (Key::Node(Arc::clone(&object.name)), Event::Node(object)))
            }
            ApiObject::ServiceCidr(cidr) => {
                let reduced = services::ServiceCidr::reduce(cidr, names)?;
                reduced.map(|object| {
                    let key = Key::ServiceCidr(Arc::clone(&object.name));
                    (key, Event::ServiceCidr(object))
                })
            }
        })
    }
}

/// Reads an object of that kind.
pub(super) struct ObjectSeed(pub(super) Kind);

impl<'de> DeserializeSeed<'de> for ObjectSeed {
    type Value = ApiObject;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ApiObject, D::Error> {
        Ok(match self.0 {
            Kind::Service => ApiObject::Service(Box::deserialize(deserializer)?),
            Kind::EndpointSlice => {
                ApiObject::EndpointSlice(Deserialize::deserialize(deserializer)?)
            }
            Kind::Node => ApiObject::Node(Deserialize::deserialize(deserializer)?),
            Kind::ServiceCidr => ApiObject::ServiceCidr(Deserialize::deserialize(deserializer)?),
        })
    }
}
