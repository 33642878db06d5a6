//! Changes for a long time under traffic: no call fails, and the resources of the process and the
//! kernel do not grow.
//!
//! `make test-all` runs this for some seconds in each mode, `make soak` for an hour.
//!
//! - [`run`]: the changes, the callers, and the invariants.
//! - [`sample`]: the measurements meanwhile.
//! - [`report`]: the samples as a plot and a table, in docs/reliability.md.

pub mod report;
mod run;
mod sample;

use super::fault::Mode;
use crate::lab::{
    self,
    guest::{Profile, in_guest},
};

in_each_mode! {
    "faults::soak::inside::",
    host_nftables: Nftables,
    host_iptables: Iptables,
    host_userspace_redirect: Redirect,
    host_userspace_local: Local,
}

fn on_host(mode: Mode) {
    lab::run(|| run::soak(mode));
}
