//! Reasons why a ServicePort has no endpoints.

use std::{fmt, sync::Arc};

use net::{Family, Protocol};

use super::{EndpointSlice, Port, SlicePort};

/// Maximum number of ports of EndpointSlices in a message.
const MOST_PORTS: usize = 10;

/// Why a ServicePort has no endpoint, usable or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Whether the Service has a selector, so that the control plane writes its EndpointSlices.
    pub selector: bool,
    /// The missing object or field.
    pub missing: Missing,
}

/// The first thing that is missing for a ServicePort to have an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No EndpointSlice names the Service.
    Slice,
    /// Its EndpointSlices have no endpoint.
    Endpoint,
    /// None of its endpoints is of this family; all of them, this many, are of the other one.
    Family(Family, usize),
    /// None of its EndpointSlices with endpoints of the family has this port; they have `other`
    /// ones.
    Port {
        /// Name of the Service's port.
        name: Arc<str>,
        /// Protocol of the Service's port.
        protocol: Protocol,
        /// The first ports of the EndpointSlices, without duplicates.
        other: Box<[SlicePort]>,
    },
}

impl Absence {
    /// Explains why `slices`, those of a Service, have no endpoint of `family` for `port`.
    pub(super) fn of<'a>(
        port: &Port,
        family: Family,
        slices: impl Iterator<Item = &'a EndpointSlice> + Clone,
        selector: bool,
    ) -> Absence {
        let endpoints = slices.clone().map(|slice| slice.endpoints.len()).sum();
        let of_family = slices.clone().filter(|slice| {
            let mut endpoints = slice.endpoints.iter();
            endpoints.any(|endpoint| Family::of(&endpoint.address) == family)
        });
        let missing = if slices.clone().next().is_none() {
            Missing::Slice
        } else if endpoints == 0 {
            Missing::Endpoint
        } else if of_family.clone().next().is_none() {
            Missing::Family(family, endpoints)
        } else {
            let mut other: Vec<SlicePort> = Vec::new();
            for found in of_family.flat_map(|slice| &slice.ports) {
                if other.len() < MOST_PORTS && !other.contains(found) {
                    other.push(found.clone());
                }
            }
            Missing::Port {
                name: Arc::clone(&port.name),
                protocol: port.protocol,
                other: other.into(),
            }
        };
        Absence { selector, missing }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.missing, self.selector) {
            (Missing::Slice, true) => f.write_str(
                "no EndpointSlice names the Service, although it has a selector: \
                 kube-controller-manager writes one for it even if no pod matches",
            ),
            (Missing::Slice, false) => f.write_str(
                "no EndpointSlice names the Service, and it has no selector for which one would be \
                 written",
            ),
            (Missing::Endpoint, true) => f.write_str(
                "its EndpointSlices have no endpoints (perhaps its selector matches no pod)",
            ),
            (Missing::Endpoint, false) => f.write_str(
                "its EndpointSlices have no endpoints, and it has no selector by which pods \
                 would be found",
            ),
            (Missing::Family(family, count), _) => {
                let other = match family {
                    Family::V4 => Family::V6,
                    Family::V6 => Family::V4,
                };
                write!(f, "no endpoint is {family}: ")?;
                match count {
                    1 => write!(f, "its only one is {other}"),
                    count => write!(f, "all {count} are {other}"),
                }
            }
            (
                Missing::Port {
                    name,
                    protocol,
                    other,
                },
                _,
            ) => {
                let port = port_words(name, *protocol);
                write!(f, "none of its EndpointSlices has {port}")?;
                if other.is_empty() {
                    return f.write_str(
                        ", nor any other (perhaps targetPort names no port of the pods)",
                    );
                }
                let other = other.iter();
                let other = other.map(|port| port_words(&port.name, port.protocol));
                write!(f, "; they have {}", other.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

fn port_words(name: &str, protocol: Protocol) -> String {
    match name {
        "" => format!("an unnamed {protocol} port"),
        name => format!("{protocol} port {name:?}"),
    }
}
