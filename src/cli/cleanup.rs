//! `tripod cleanup`: removes rules, sets and virtual servers from this kernel.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{help, used_flags};

const KEEP: &str = "keep-kube-proxy";

/// The extent of a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// Everything that Tripod and kube-proxy ever install.
    Everything,
    /// Only objects that Tripod alone installs. A kube-proxy takes over the rest, or removes it
    /// when it starts in another mode (`platformCleanup` of its `cmd/kube-proxy/app`).
    OnlyOfTripod,
}

/// Returns the subcommand, with the flags of the proxy that it uses.
pub(super) fn command() -> Command {
    let about = "Remove what Tripod and kube-proxy installed in this kernel, except settings";
    used_flags::added(Command::new("cleanup").about(about)).arg(help::explained(
        Arg::new(KEEP).long(KEEP).action(ArgAction::SetTrue),
        "Keep what kube-proxy uses or removes by itself",
        "Keep what kube-proxy uses or removes by itself, and remove only what it does not know: \
         the table of nftables mode, and the rules and routes of userspace mode",
    ))
}

pub(super) fn read(matches: &ArgMatches) -> Cleanup {
    if matches.get_flag(KEEP) {
        Cleanup::OnlyOfTripod
    } else {
        Cleanup::Everything
    }
}
