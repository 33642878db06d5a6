//! A fault stops only the functions that depend on it: in each mode, each access to the kernel or
//! the API server fails in turn, while the tests observe which functions continue.
//!
//! - [`fault`], [`questions`]: the faults, and the observations.
//! - [`expected`]: the functions that may stop, and why. Begin there.
//! - [`run`], [`cluster`]: how faults are caused and observed.
//! - [`table`]: the presentation in docs/reliability.md.
//! - [`measured`]: other contents of that document, measured by tests of userspace mode.

/// Makes a test for each of the modes that the host can run, by `on_host`, and one for
/// ipvs mode in a guest kernel, which runs the module `inside`.
macro_rules! in_each_mode {
    ($inside:literal, $($name:ident: $mode:ident,)*) => {
        $(
            #[test]
            fn $name() {
                on_host(Mode::$mode);
            }
        )*

        #[test]
        fn guest_full_ipvs() {
            in_guest(Profile::Full, &[$inside], &[]);
        }

        mod inside {
            use super::{Mode, on_host};

            #[test]
            #[ignore = "for a guest kernel with IPVS"]
            fn ipvs() {
                on_host(Mode::Ipvs);
            }
        }
    };
}

mod cluster;
mod expected;
mod fault;
pub mod measured;
mod node;
mod questions;
mod run;
mod soak;
mod table;

use self::fault::Mode;
use crate::lab::{
    self,
    guest::{Profile, in_guest},
};

in_each_mode! {
    "faults::inside::",
    host_nftables: Nftables,
    host_iptables: Iptables,
    host_userspace_redirect: Redirect,
    host_userspace_local: Local,
}

fn on_host(mode: Mode) {
    lab::run(|| {
        let mut wrong = Vec::new();
        for seen in run::all(mode) {
            println!("SEEN {seen:?}");
            wrong.extend(seen.differences(mode));
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}
