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

#[test]
fn host_nftables() {
    on_host(Mode::Nftables);
}

#[test]
fn host_iptables() {
    on_host(Mode::Iptables);
}

#[test]
fn host_userspace_redirect() {
    on_host(Mode::Redirect);
}

#[test]
fn host_userspace_local() {
    on_host(Mode::Local);
}

#[test]
fn guest_full_ipvs() {
    in_guest(Profile::Full, &["faults::node::inside::"], &[]);
}

mod inside {
    use super::{Mode, on_host};

    #[test]
    #[ignore = "for a guest kernel with IPVS"]
    fn ipvs() {
        on_host(Mode::Ipvs);
    }
}

fn on_host(mode: Mode) {
    lab::run(Share::Beside, || {
        let wrong = run::all(mode);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
