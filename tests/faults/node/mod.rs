//! What other programs, an administrator and the machine do to a node while Tripod
//! serves: what is lost, and for how long.
//!
//! - [`event`]: what happens.
//! - [`expected`]: what is lost. Begin there.
//! - [`run`]: how events are caused and observed.
//! - [`table`]: how it is shown, in docs/reliability.md.

mod event;
mod expected;
mod run;
pub mod table;

use self::event::Place;
use super::fault::Mode;
use crate::lab::{
    self,
    uml::{Profile, in_guest},
};

in_each_mode! {
    "faults::node::inside::",
    host_nftables: Nftables,
    host_iptables: Iptables,
    host_userspace_redirect: Redirect,
    host_userspace_local: Local,
}

/// What affects a whole kernel is tried in a guest. That kernel has no nf_tables.
#[test]
fn guest_full_other_modes() {
    in_guest(Profile::Full, &["faults::node::in_guest_modes::"], &[]);
}

mod in_guest_modes {
    use super::{Mode, Place, tried};

    #[test]
    #[ignore = "for a guest kernel"]
    fn iptables() {
        tried(Mode::Iptables, Place::Guest);
    }

    #[test]
    #[ignore = "for a guest kernel"]
    fn redirect() {
        tried(Mode::Redirect, Place::Guest);
    }

    #[test]
    #[ignore = "for a guest kernel"]
    fn local() {
        tried(Mode::Local, Place::Guest);
    }
}

/// In the guest ipvs mode calls this, where everything of that mode is tried.
fn on_host(mode: Mode) {
    let place = match mode {
        Mode::Ipvs => Place::Guest,
        _ => Place::Host,
    };
    tried(mode, place);
}

fn tried(mode: Mode, place: Place) {
    lab::run(|| {
        let wrong = run::all(mode, place);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
