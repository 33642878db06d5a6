//! Connection tracking: its limits and timeouts (`settings`), its entries ([`flows`]), what
//! becomes of them ([`events`]), and entries that Tripod adds ([`entries`]).

pub mod entries;
pub mod events;
pub mod flows;
mod settings;
mod state;

pub use settings::{Kernel, Options, Reason, Settings, Unset, apply, cpus, is_tcp_liberal, plan};
