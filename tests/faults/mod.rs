//! What fails costs only what depends on it: in each mode, each access to the
//! kernel or the API server fails in turn, while it is observed what goes on.
//!
//! - [`fault`], [`questions`]: what fails, and what is observed.
//! - [`expected`]: what may stop, and why. Begin there.
//! - [`run`], [`cluster`]: how it is brought about and seen.
//! - [`table`]: how it is shown, in docs/reliability.md.

mod cluster;
mod expected;
mod fault;
mod node;
mod questions;
mod run;
mod table;

use self::fault::Mode;
use crate::lab::{
    self, Share,
    uml::{Profile, in_guest},
};

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
    in_guest(Profile::Full, &["faults::inside::"], &[]);
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
        let mut wrong = Vec::new();
        for seen in run::all(mode) {
            println!("SEEN {seen:?}");
            wrong.extend(seen.differences(mode));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}
