//! `tripod cleanup`: removes rules, sets and virtual servers from this kernel.

use clap::Args;

/// The extent of a cleanup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleanup {
    /// Everything that Tripod and kube-proxy ever install.
    Everything,
    /// Only objects that Tripod alone installs. A kube-proxy takes over the rest, or removes it
    /// when it starts in another mode (`platformCleanup` of its `cmd/kube-proxy/app`).
    OnlyOfTripod,
}

#[derive(Debug, Args)]
pub(super) struct Flags {
    /// Keep what kube-proxy uses or removes by itself
    #[arg(long)]
    #[arg(
        long_help = "Keep what kube-proxy uses or removes by itself, and remove only what it does \
                       not know: the table of nftables mode, and the rules and routes of userspace \
                       mode"
    )]
    pub(super) keep_kube_proxy: bool,
}
