//! Effects of other programs, an administrator and the machine on a node while Tripod serves: the
//! losses, and their duration.
//!
//! - [`event`]: the events.
//! - [`expected`]: the losses. Begin there.
//! - [`run`]: how events are caused and observed.
//! - [`table`]: the presentation in docs/reliability.md.

mod event;
mod expected;
mod run;
pub mod table;

use self::event::Place;
use super::fault::Mode;
use crate::lab::{
    self,
    guest::{Profile, in_guest},
};

in_each_mode! {
    "faults::node::inside::",
    host_nftables: Nftables,
    host_iptables: Iptables,
    host_userspace_redirect: Redirect,
    host_userspace_local: Local,
}

/// Events that affect a whole kernel are tested in a guest. That kernel has no nf_tables.
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

/// In the guest ipvs mode calls this; all events of that mode are tested there.
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
