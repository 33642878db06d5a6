//! An object of a file in its reduced form.

use std::sync::Arc;

use super::kind::{ApiObject, Key};
use crate::services::{EndpointSlice, Event, Invalid, Names, Node, Reduced, Service, ServiceCidr};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Node(Arc<Node>),
    ServiceCidr(Arc<ServiceCidr>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
}

impl Object {
    /// Reduces an object of the API.
    ///
    /// # Errors
    /// Names the first field without which it cannot be used.
    pub(super) fn reduce(
        object: &ApiObject,
        names: &mut Names,
    ) -> Result<Reduced<Object>, Invalid> {
        fn wrap<T>(reduced: Reduced<T>, wrap: fn(Arc<T>) -> Object) -> Reduced<Object> {
            Reduced {
                object: wrap(Arc::new(reduced.object)),
                warnings: reduced.warnings,
            }
        }
        Ok(match object {
            ApiObject::Service(service) => wrap(Service::reduce(service, names)?, Object::Service),
            ApiObject::EndpointSlice(slice) => {
                let reduced = EndpointSlice::reduce_of_file(slice, names)?;
                wrap(reduced, Object::EndpointSlice)
            }
            ApiObject::Node(node) => wrap(Node::reduce(node, names)?, Object::Node),
            ApiObject::ServiceCidr(cidr) => {
                wrap(ServiceCidr::reduce(cidr, names)?, Object::ServiceCidr)
            }
        })
    }

    /// Identifies the object.
    pub(super) fn key(&self) -> Key {
        match self {
            Object::Node(node) => Key::Node(Arc::clone(&node.name)),
            Object::ServiceCidr(cidr) => Key::ServiceCidr(Arc::clone(&cidr.name)),
            Object::Service(service) => Key::Service(service.name.clone()),
            Object::EndpointSlice(slice) => Key::EndpointSlice(slice.name.clone()),
        }
    }

    /// Returns the event that the object was added or changed.
    pub(super) fn event(&self) -> Event {
        match self {
            Object::Node(node) => Event::Node(Arc::clone(node)),
            Object::ServiceCidr(cidr) => Event::ServiceCidr(Arc::clone(cidr)),
            Object::Service(service) => Event::Service(Arc::clone(service)),
            Object::EndpointSlice(slice) => Event::EndpointSlice(Arc::clone(slice)),
        }
    }
}
