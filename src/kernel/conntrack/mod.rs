//! Connection tracking: its limits and timeouts (`settings`), and its entries
//! ([`flows`]).

pub mod flows;
mod settings;

pub use settings::{
    Kernel, Options, Reason, Setting, Settings, Unset, apply, cpus, is_tcp_liberal, plan,
};
