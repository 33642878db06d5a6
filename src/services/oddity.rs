//! Objects that are valid but hardly what their author meant.

use std::{fmt, mem::discriminant};

use super::{Absence, ServiceName, ServicePortName, SliceName};

/// An oddity of the objects; its text says what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// A Service without cluster IP.
    NoClusterIp(ServiceName),
    /// A Service without ports.
    NoPorts(ServiceName),
    /// A Service none of whose ports has an endpoint.
    NoEndpoints(ServiceName, Why),
    /// One port has no endpoint while another port of its Service has.
    NoEndpointsForPort(ServicePortName, Why),
    /// A slice whose Service is not known: Services for another proxy are not
    /// listed.
    NoService(SliceName, ServiceName),
    /// A slice that names no Service.
    NoServiceLabel(SliceName),
}

/// Why there are no endpoints; `None`: those that there are cannot be used. Equal to any other of
/// the same kind, so that an oddity whose numbers and names change is logged once.
#[derive(Clone, Debug)]
pub struct Why(pub(super) Option<Box<Absence>>);

impl PartialEq for Why {
    fn eq(&self, other: &Why) -> bool {
        let kind = |why: &Why| why.0.as_ref().map(|why| discriminant(&why.missing));
        kind(self) == kind(other)
    }
}

impl Eq for Why {}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(absence) => absence.fmt(f),
            None => f.write_str("none of the addresses in its EndpointSlices can be used"),
        }
    }
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Oddity::NoClusterIp(service) => write!(
                f,
                "Service {service} has no cluster IP, so it is not served; set spec.clusterIP"
            ),
            Oddity::NoPorts(service) => {
                write!(f, "Service {service} has no ports, so it is not served")
            }
            Oddity::NoEndpoints(service, why) => write!(
                f,
                "Service {service} has no endpoints, so connections to it are refused: {why}"
            ),
            Oddity::NoEndpointsForPort(port, why) => write!(
                f,
                "Service {port} ({}, {}) has no endpoints, so connections to it are refused: {why}",
                port.protocol, port.family
            ),
            Oddity::NoService(slice, service) => write!(
                f,
                "EndpointSlice {slice} is not used: its Service {service} does not exist, cannot be \
                 used (then it has a warning of its own), or is left to another proxy by its label \
                 service.kubernetes.io/service-proxy-name"
            ),
            Oddity::NoServiceLabel(slice) => write!(
                f,
                "EndpointSlice {slice} has no {} label, so it belongs to no Service and is not used",
                super::slice::SERVICE_LABEL
            ),
        }
    }
}
