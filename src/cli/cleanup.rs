//! `tripod cleanup`: removes rules, sets and virtual servers from this kernel.

use clap::Args;

/// The extent of a cleanup: everything that Tripod and kube-proxy ever install, or only objects that
/// Tripod alone installs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct Cleanup {
    // A kube-proxy takes these objects over, or removes them when it starts in another mode
    // (`platformCleanup` of its `cmd/kube-proxy/app`).
    /// Keep what kube-proxy uses or removes by itself
    #[arg(long)]
    #[arg(
        long_help = "Keep what kube-proxy uses or removes by itself, and remove only what it does \
                       not know: the table of nftables mode, and the rules and routes of userspace \
                       mode"
    )]
    pub keep_kube_proxy: bool,
}
