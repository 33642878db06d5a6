//! What an earlier proxy may have left, and removing it beside the mode that
//! runs.

use std::fmt;

use ipnet::IpNet;

use super::nftables;
use crate::{
    kernel::{
        Family,
        xtables::{Engine, leftovers::Kept},
    },
    modes::{ModeName, SyncError, iptables, ipvs, userspace},
};

/// Something that an earlier proxy may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leftover {
    /// What this mode installs; of the mode that runs, in the other engine.
    Of(ModeName),
    /// The tables of kube-proxy's nftables mode.
    Nftables,
}

impl Leftover {
    pub(super) const ALL: [Leftover; 4] = [
        Leftover::Of(ModeName::Ipvs),
        Leftover::Of(ModeName::Iptables),
        Leftover::Of(ModeName::Userspace),
        Leftover::Nftables,
    ];

    /// Has it take no new connections. Answers how many it still carries that
    /// would break if it went now.
    pub(super) fn retire(self, running: &Running, exclude: &[IpNet]) -> Result<usize, String> {
        match self {
            Leftover::Of(ModeName::Ipvs) if !running.is(ModeName::Ipvs) => ipvs::retire(exclude)
                .map(|open| open as usize)
                .map_err(|error| error.to_string()),
            Leftover::Of(_) => Ok(0),
            Leftover::Nftables => {
                nftables::retire(&running.engines).map_err(|error| error.to_string())
            }
        }
    }

    /// Removes it, but for what `running` uses too.
    ///
    /// # Errors
    /// What could not be removed, in words.
    pub(super) async fn clean(
        self,
        running: Option<&Running>,
        exclude: &[IpNet],
    ) -> Result<(), String> {
        match self {
            Leftover::Of(mode) => {
                let cleaned = clean(mode, running, exclude).await;
                cleaned.map_err(|error| error.to_string())
            }
            Leftover::Nftables => nftables::clean().map_err(|error| error.to_string()),
        }
    }
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Leftover::Of(mode) => write!(f, "{mode} mode"),
            Leftover::Nftables => f.write_str("nftables mode"),
        }
    }
}

/// The mode beside which others' leftovers are removed.
pub(super) struct Running {
    pub(super) mode: ModeName,
    pub(super) engines: Vec<(Family, Engine)>,
}

impl Running {
    fn is(&self, mode: ModeName) -> bool {
        self.mode == mode
    }

    /// Which of the rules that `mode` installs are its own, too.
    fn kept(&self, mode: ModeName) -> Kept {
        let engines = self.engines.clone();
        match (mode, self.mode) {
            (mode, running) if mode == running => Kept::all(engines),
            (ModeName::Iptables, ModeName::Ipvs) | (ModeName::Ipvs, ModeName::Iptables) => {
                Kept::chains(engines, &ipvs::SHARED_CHAINS)
            }
            _ => Kept::nothing(),
        }
    }
}

async fn clean(
    mode: ModeName,
    running: Option<&Running>,
    exclude: &[IpNet],
) -> Result<(), SyncError> {
    let kept = running.map_or_else(Kept::nothing, |running| running.kept(mode));
    let runs = running.is_some_and(|running| running.is(mode));
    match mode {
        ModeName::Userspace if runs => Ok(userspace::cleanup_rules(&kept).await?),
        ModeName::Userspace => Ok(userspace::cleanup().await?),
        ModeName::Iptables => Ok(iptables::cleanup_beside(&kept).await?),
        ModeName::Ipvs if runs => Ok(ipvs::cleanup_rules(&kept).await?),
        ModeName::Ipvs => Ok(ipvs::cleanup_beside(exclude, &kept).await?),
    }
}
