//! Objects that are valid but hardly intended.

use std::{
    cmp::Ordering,
    collections::BTreeSet,
    fmt,
    hash::{Hash, Hasher},
};

use super::{Absence, Missing, ServiceName, ServicePortName, SliceName};

/// An oddity of the objects; its text names the consequence.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Oddity {
    /// A Service without cluster IP.
    NoClusterIp(ServiceName),
    /// A Service without ports.
    NoPorts(ServiceName),
    /// A Service none of whose ports has an endpoint.
    NoEndpoints(ServiceName, Why),
    /// One port has no endpoint, but another port of its Service has some.
    NoEndpointsForPort(ServicePortName, Why),
    /// A slice whose Service is not known: Services for another proxy are not
    /// listed.
    NoService(SliceName, ServiceName),
    /// A slice that names no Service.
    NoServiceLabel(SliceName),
}

/// Maximum number of objects that a message names.
const NAMED: usize = 5;

impl Oddity {
    /// Returns the Service of an oddity that is usually over within seconds, because objects that
    /// belong together arrive one after the other; `None` if it is of another kind.
    pub(super) fn passes(&self) -> Option<&ServiceName> {
        match self {
            Oddity::NoEndpoints(service, _) | Oddity::NoService(_, service) => Some(service),
            Oddity::NoEndpointsForPort(port, _) => Some(&port.service),
            Oddity::NoClusterIp(_) | Oddity::NoPorts(_) | Oddity::NoServiceLabel(_) => None,
        }
    }

    /// The name of the odd object.
    fn name(&self) -> String {
        match self {
            Oddity::NoClusterIp(service)
            | Oddity::NoPorts(service)
            | Oddity::NoEndpoints(service, _) => service.to_string(),
            Oddity::NoEndpointsForPort(port, _) => {
                format!("{port} ({}, {})", port.protocol, port.family)
            }
            Oddity::NoService(slice, _) | Oddity::NoServiceLabel(slice) => slice.to_string(),
        }
    }

    /// Describes several oddities: those of one kind in one sentence.
    pub(super) fn sentences(all: &BTreeSet<Oddity>) -> Vec<String> {
        let (mut services, mut ports, mut slices) = (Vec::new(), Vec::new(), Vec::new());
        let mut others = Vec::new();
        for oddity in all {
            match oddity {
                Oddity::NoEndpoints(..) => services.push(oddity),
                Oddity::NoEndpointsForPort(..) => ports.push(oddity),
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

/// Describes several oddities of one kind.
fn sentence(several: &[&Oddity]) -> String {
    let count = several.len();
    let mut names: Vec<String> = several.iter().take(NAMED).map(|one| one.name()).collect();
    if count > NAMED {
        names.push(format!("and {} more", count - NAMED));
    }
    let names = names.join(", ");
    let label = super::slice::SERVICE_LABEL;
    match several.first() {
        Some(Oddity::NoEndpoints(..)) => format!(
            "{count} Services have no endpoints: connections to them are refused until there are \
             EndpointSlices with endpoints whose label {label} names them: {names}"
        ),
        Some(Oddity::NoEndpointsForPort(..)) => format!(
            "{count} ports of Services have no endpoints, unlike other ports of the same Services; \
             `tripod services` says why: {names}"
        ),
        _ => format!(
            "{count} EndpointSlices are not used, because their Services do not exist or belong to \
             another proxy (label service.kubernetes.io/service-proxy-name): {names}"
        ),
    }
}

/// Why there are no endpoints; `None` if the existing ones cannot be used. Equal to any other of
/// the same kind, so that an oddity whose numbers and names change is logged only once.
#[derive(Clone, Debug)]
pub struct Why(pub(super) Option<Box<Absence>>);

impl Why {
    fn kind(&self) -> Option<u8> {
        self.0.as_ref().map(|absence| match absence.missing {
            Missing::Slice => 0,
            Missing::Endpoint => 1,
            Missing::Family(..) => 2,
            Missing::Port { .. } => 3,
        })
    }
}

impl PartialEq for Why {
    fn eq(&self, other: &Why) -> bool {
        self.kind() == other.kind()
    }
}

impl Eq for Why {}

impl Hash for Why {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.kind().hash(state);
    }
}

impl PartialOrd for Why {
    fn partial_cmp(&self, other: &Why) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Why {
    fn cmp(&self, other: &Why) -> Ordering {
        self.kind().cmp(&other.kind())
    }
}

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
                "EndpointSlice {slice} is not used: its Service {service} does not exist, is \
                 invalid (then another warning says why), or belongs to another proxy (label \
                 service.kubernetes.io/service-proxy-name)"
            ),
            Oddity::NoServiceLabel(slice) => write!(
                f,
                "EndpointSlice {slice} has no {} label, so it belongs to no Service and is not used",
                super::slice::SERVICE_LABEL
            ),
        }
    }
}
