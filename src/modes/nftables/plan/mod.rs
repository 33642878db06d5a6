//! Plans a table of nf_tables for ServicePorts: rules whose number does not grow with
//! Services, and maps and sets that do.
//!
//! Pure: nothing here reads the kernel or remembers anything. The plan of a ServicePort depends on
//! it, its [`Slots`] and the [`Options`] alone, never on other Services.
//!
//! A packet to a service address finds in map `services` the chain that draws among a power of two
//! of slots, and looks the drawn slot up in map `endpoints`; it draws again if the slot is empty.
//! An endpoint has as many slots as its weight. So a change of endpoints changes elements of
//! `endpoints` alone, unless the Service has many more or many fewer than before.

mod affinity;
mod chains;
mod counting;
mod draws;
mod elements;
mod fixed;
mod frontend;
mod limits;
mod matches;
mod names;
mod options;
mod range_chains;
mod ranges;
mod service;
mod sets;
mod slots;
mod unsupported;

pub use self::{
    affinity::ClientMap,
    chains::SharedChain,
    counting::{Counting, counting},
    draws::Scheduler,
    elements::{ServiceElements, SharedElement},
    fixed::{Fixed, REFUSE_ON_LOOPBACK, fixed},
    frontend::Role,
    limits::{Limits, MOST as MOST_CONNECTIONS},
    options::{Features, Options, features, refused_on_loopback},
    service::plan,
    sets::{SetId, Sets},
    slots::{Endpoints, Slots, Taken},
    unsupported::{scheduler, unsupported},
};
