//! `tripod cleanup`: what of this kernel is removed.

use clap::{Arg, ArgAction, ArgMatches, Command};

const KEEP: &str = "keep-kube-proxy";

/// What is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// All that Tripod and kube-proxy ever install.
    Everything,
    /// What only Tripod installs. A kube-proxy takes the rest over, or removes it at its
    /// start where it runs another mode (`platformCleanup` of its `cmd/kube-proxy/app`).
    OnlyOfTripod,
}

/// Returns the subcommand, without the flags of the proxy.
pub(super) fn command() -> Command {
    Command::new("cleanup")
        .about(
            "Remove what Tripod or kube-proxy put into this kernel, but for its settings, and exit",
        )
        .arg(Arg::new(KEEP).long(KEEP).action(ArgAction::SetTrue).help(
            "Leave what a kube-proxy uses or removes by itself, and remove only what it \
                     does not know: the table of nftables mode, rules and routes of userspace mode",
        ))
}

/// Returns what is to be removed.
pub(super) fn read(matches: &ArgMatches) -> Cleanup {
    if matches.get_flag(KEEP) {
        Cleanup::OnlyOfTripod
    } else {
        Cleanup::Everything
    }
}
