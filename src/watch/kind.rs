//! The kinds that a service proxy reads, and their objects as the API defines them.

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

use crate::services::{self, Invalid, Kind, Loopback, Names, Object, ObjectName, Reduced, wire};

/// All kinds, each with its version and its name.
pub(super) const KINDS: [(Kind, &str, &str); 4] = [
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
pub(super) fn kind_of(api_version: &str, kind: &str) -> Option<Kind> {
    let mut all = KINDS.into_iter();
    let found = all.find(|(_, version, name)| (*version, *name) == (api_version, kind));
    found.map(|(found, ..)| found)
}

/// An object as a server sends it, or a file has it.
#[derive(Debug)]
pub(super) enum ApiObject {
    Service(Box<wire::Service>),
    EndpointSlice(wire::EndpointSlice),
    Node(wire::Node),
    ServiceCidr(wire::ServiceCidr),
}

impl ApiObject {
    fn identity(&self) -> (Kind, &wire::Meta) {
        match self {
            ApiObject::Service(object) => (Kind::Service, &object.metadata),
            ApiObject::EndpointSlice(object) => (Kind::EndpointSlice, &object.metadata),
            ApiObject::Node(object) => (Kind::Node, &object.metadata),
            ApiObject::ServiceCidr(object) => (Kind::ServiceCidr, &object.metadata),
        }
    }

    /// Version of the object; `None` if it names none.
    pub(super) fn version(&self) -> Option<&str> {
        self.identity().1.resource_version.as_deref()
    }

    /// Names the object; `None` if it has no name.
    pub(super) fn name(&self) -> Option<ObjectName> {
        let (kind, metadata) = self.identity();
        ObjectName::new(
            kind,
            metadata.namespace.as_deref(),
            metadata.name.as_deref(),
        )
    }

    /// Reduces the object.
    ///
    /// # Errors
    /// Names the first field without which it cannot be used.
    pub(super) fn reduce(
        &self,
        loopback: Loopback,
        names: &mut Names,
    ) -> Result<Reduced<Object>, Invalid> {
        Ok(match self {
            ApiObject::Service(object) => {
                services::Service::reduce(object, names)?.map(Object::Service)
            }
            ApiObject::EndpointSlice(object) => {
                services::EndpointSlice::reduce(object, loopback, names)?.map(Object::EndpointSlice)
            }
            ApiObject::Node(object) => services::Node::reduce(object, names)?.map(Object::Node),
            ApiObject::ServiceCidr(object) => {
                services::ServiceCidr::reduce(object, names)?.map(Object::ServiceCidr)
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
