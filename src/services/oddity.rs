//! Objects that are valid but hardly what their author meant.

use std::{collections::BTreeSet, fmt};

use super::{ServiceName, ServicePortName, SliceName};

/// An oddity of the objects; its text says what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

/// Maximum number of objects that a message names.
const NAMED: usize = 5;

impl Oddity {
    /// Returns the Service of an oddity that mostly is over within seconds, because objects that
    /// belong together arrive one after the other; `None`: it is of another kind.
    pub(super) fn passes(&self) -> Option<&ServiceName> {
        match self {
            Oddity::NoEndpoints(service) | Oddity::NoService(_, service) => Some(service),
            Oddity::NoEndpointsForPort(port) => Some(&port.service),
            Oddity::NoClusterIp(_) | Oddity::NoPorts(_) | Oddity::NoServiceLabel(_) => None,
        }
    }

    /// Returns the object that is odd.
    fn name(&self) -> String {
        match self {
            Oddity::NoClusterIp(service)
            | Oddity::NoPorts(service)
            | Oddity::NoEndpoints(service) => service.to_string(),
            Oddity::NoEndpointsForPort(port) => {
                format!("{port} ({}, {})", port.protocol, port.family)
            }
            Oddity::NoService(slice, _) | Oddity::NoServiceLabel(slice) => slice.to_string(),
        }
    }

    /// Returns what is said of several: those of one kind in one sentence.
    pub(super) fn sentences(all: &BTreeSet<Oddity>) -> Vec<String> {
        let (mut services, mut ports, mut slices) = (Vec::new(), Vec::new(), Vec::new());
        let mut others = Vec::new();
        for oddity in all {
            match oddity {
                Oddity::NoEndpoints(_) => services.push(oddity),
                Oddity::NoEndpointsForPort(_) => ports.push(oddity),
                Oddity::NoService(..) => slices.push(oddity),
                other => others.push(other.to_string()),
            }
        }
        for same in [services, ports, slices] {
            others.extend(match &same[..] {
                [] => None,
                [one] => Some(one.to_string()),
                several => Some(sentence(several)),
            });
        }
        others
    }
}

/// Returns what is said of several oddities of one kind.
fn sentence(several: &[&Oddity]) -> String {
    let count = several.len();
    let mut names: Vec<String> = several.iter().take(NAMED).map(|one| one.name()).collect();
    if count > NAMED {
        names.push(format!("and {} more", count - NAMED));
    }
    let names = names.join(", ");
    let label = super::slice::SERVICE_LABEL;
    match several.first() {
        Some(Oddity::NoEndpoints(_)) => format!(
            "{count} Services have no endpoints: connections to them are refused until \
             EndpointSlices with their names in the label {label} bring some: {names}"
        ),
        Some(Oddity::NoEndpointsForPort(_)) => format!(
            "{count} ports of Services have no endpoints, unlike other ports of the same Services; \
             `tripod services` says why: {names}"
        ),
        _ => format!(
            "{count} EndpointSlices belong to Services which do not exist or are left to another \
             proxy by the label service.kubernetes.io/service-proxy-name: {names}"
        ),
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
                "EndpointSlice {slice} belongs to Service {service}, which does not exist or is \
                 left to another proxy by its label service.kubernetes.io/service-proxy-name: the \
                 slice is not used until the Service comes"
            ),
            Oddity::NoServiceLabel(slice) => write!(
                f,
                "EndpointSlice {slice} has no {} label, so it belongs to no Service and is not used",
                super::slice::SERVICE_LABEL
            ),
        }
    }
}
