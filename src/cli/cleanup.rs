//! `tripod cleanup`: what is removed from this kernel.

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::{flags, help};

/// Name of the subcommand.
pub(super) const NAME: &str = "cleanup";

/// Heading of the proxy's flags in the help.
const HEADING: &str = "Flags of the proxy that count here";

const KEEP: &str = "keep-kube-proxy";

/// Flags of the proxy that it uses: which virtual servers belong to other programs, which
/// sockets the proxy was given, and how it logs.
const USED: [&str; 6] = [
    "config",
    "ipvs-exclude-cidrs",
    "status-socket",
    "userspace-holder-socket",
    "v",
    "logging-format",
];

/// What is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// All that Tripod and kube-proxy ever install.
    Everything,
    /// Only what Tripod alone installs. A kube-proxy takes over the rest, or removes it
    /// when it starts in another mode (`platformCleanup` of its `cmd/kube-proxy/app`).
    OnlyOfTripod,
}

/// Returns the subcommand, with the flags of the proxy that it uses.
pub(super) fn command() -> Command {
    let used = flags::all().filter(|flag| USED.contains(&flag.name));
    // They are few, so neither form of the help leaves one out.
    let used = used.map(|flag| flag.arg(HEADING).hide_short_help(false));
    Command::new(NAME)
        .after_help(help::VALUES)
        .args(used)
        .about(
            "Remove what Tripod or kube-proxy put into this kernel, except its settings, and exit",
        )
        .arg(help::explained(
            Arg::new(KEEP).long(KEEP).action(ArgAction::SetTrue),
            "Leave what a kube-proxy uses or removes by itself",
            "Leave what a kube-proxy uses or removes by itself, and remove only what it does not \
             know: the table of nftables mode, rules and routes of userspace mode",
        ))
}

/// Has `cleanup`, the subcommand, accept all other flags of the proxy as well, without
/// showing them: scripts call both with the same flags.
pub(super) fn accepting_all(cleanup: Command) -> Command {
    let others = flags::all().filter(|flag| !USED.contains(&flag.name));
    cleanup.args(others.map(|flag| flag.arg(HEADING).hide(true)))
}

/// Returns what is to be removed.
pub(super) fn read(matches: &ArgMatches) -> Cleanup {
    if matches.get_flag(KEEP) {
        Cleanup::OnlyOfTripod
    } else {
        Cleanup::Everything
    }
}
