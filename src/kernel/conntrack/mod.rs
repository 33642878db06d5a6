//! Connection tracking: its limits and timeouts, and the flows that it
//! remembers ([`flows`]).

pub mod flows;
mod settings;

pub use settings::{Kernel, Options, Reason, Setting, Settings, Unset, apply, cpus, plan};
