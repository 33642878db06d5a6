//! Connection tracking: its limits and timeouts (`settings`), its entries ([`flows`])
//! and what becomes of them ([`events`]).

pub mod events;
pub mod flows;
mod settings;
mod state;

pub use settings::{Kernel, Options, Reason, Settings, Unset, apply, cpus, is_tcp_liberal, plan};
