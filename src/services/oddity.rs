//! Objects that are valid but hardly what their author meant.

use std::fmt;

use super::{ServiceName, ServicePortName, SliceName};

/// An oddity of the objects; its text says what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Oddity {
    /// A Service without cluster IP.
    NoClusterIp(ServiceName),
    /// A Service without ports.
    NoPorts(ServiceName),
    /// A Service none of whose ports has an endpoint.
    NoEndpoints(ServiceName),
    /// One port has no endpoint while another port of its Service has.
    NoEndpointsForPort(ServicePortName),
    /// A slice whose Service is not known: Services for another proxy are not
    /// listed.
    NoService(SliceName, ServiceName),
    /// A slice that names no Service.
    NoServiceLabel(SliceName),
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
            Oddity::NoEndpoints(service) => write!(
                f,
                "Service {service} has no endpoints: connections to it are refused until an \
                 EndpointSlice with the label {}={} brings some",
                super::slice::SERVICE_LABEL,
                service.name
            ),
            Oddity::NoEndpointsForPort(port) => write!(
                f,
                "Service {port} ({}, {}) has no endpoints: no EndpointSlice of the Service has \
                 addresses of that family and a port with that name and protocol; connections \
                 to it are refused",
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
