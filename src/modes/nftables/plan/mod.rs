//! From ServicePorts to a table of nf_tables: rules whose number does not grow
//! with Services, and maps and sets that do.
//!
//! Pure: nothing here reads the kernel or remembers anything. What a ServicePort
//! needs depends on it, its [`Slots`] and the [`Options`] alone, never on other
//! Services.
//!
//! A packet to a service address finds in map `services` the chain that chooses
//! among as many slots as the Service has; that looks the chosen slot up in map
//! `endpoints`. An endpoint has as many slots as its weight, so a change of
//! endpoints changes elements, and rules only where no ServicePort had that number of
//! slots before.

mod chains;
mod fixed;
mod frontend;
mod options;
mod service;
mod sets;
mod slots;
mod unsupported;

pub use self::{
    chains::SharedChain,
    fixed::{Fixed, fixed},
    options::{Features, Options},
    service::{ServiceElements, service_port},
    sets::{SetId, Sets},
    slots::Slots,
    unsupported::unsupported,
};
