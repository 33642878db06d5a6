//! What other programs, an administrator and the machine do to a node while Tripod
//! serves: what is lost, and for how long.
//!
//! - [`event`]: what happens.
//! - [`expected`]: what is lost. Begin there.
//! - [`run`]: how it is brought about and seen.
//! - [`table`]: how it is shown, in docs/reliability.md.

mod event;
mod expected;
mod run;
pub mod table;

use super::fault::Mode;
use crate::lab::{
    self, Share,
    uml::{Profile, in_guest},
};

in_each_mode! {
    "faults::node::inside::",
    host_nftables: Nftables,
    host_iptables: Iptables,
    host_userspace_redirect: Redirect,
    host_userspace_local: Local,
}

fn on_host(mode: Mode) {
    lab::run(Share::Beside, || {
        let wrong = run::all(mode);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
