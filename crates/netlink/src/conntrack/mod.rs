//! Connection tracking: its limits and timeouts (`settings`), its entries ([`flows`]), changes of
//! them ([`events`]), entries that Tripod adds ([`entries`]) and those of connections that were not
//! answered ([`unanswered`]).

pub mod entries;
pub mod events;
pub mod flows;
mod settings;
mod state;
pub mod unanswered;

pub use settings::{Options, Unset, apply, cpus, is_tcp_liberal, plan};
