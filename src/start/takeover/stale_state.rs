//! The stale state that an earlier proxy may have left.

use std::fmt;

use net::Family;
use xtables::Engine;

use crate::{
    config::ModeName,
    modes::{
        SyncError,
        cleanup::{Cleanup, Running},
        iptables, ipvs, nftables, userspace,
    },
};

/// Stale state that an earlier proxy may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StaleState {
    /// State that this mode installs; for the running mode, only state in the other engine.
    Of(ModeName),
    /// The tables of kube-proxy's nftables mode.
    Nftables,
}

/// Calls a method of the module that owns the stale state.
macro_rules! of {
    ($state:ident.$($call:tt)*) => {
        match $state {
            StaleState::Of(ModeName::Ipvs) => ipvs::Installed.$($call)*,
            StaleState::Of(ModeName::Nftables) => nftables::Installed(nftables::TABLE).$($call)*,
            StaleState::Of(ModeName::Iptables) => iptables::Installed.$($call)*,
            StaleState::Of(ModeName::Userspace) => userspace::Installed.$($call)*,
            StaleState::Nftables => nftables::Installed(nftables::KUBE_PROXY).$($call)*,
        }
    };
}

impl StaleState {
    pub(super) const ALL: [StaleState; 5] = [
        StaleState::Of(ModeName::Ipvs),
        StaleState::Of(ModeName::Nftables),
        StaleState::Of(ModeName::Iptables),
        StaleState::Of(ModeName::Userspace),
        StaleState::Nftables,
    ];

    /// Returns true if kube-proxy neither takes it over nor removes it.
    pub(super) fn is_only_of_tripod(self) -> bool {
        let modes = [ModeName::Nftables, ModeName::Userspace];
        modes.map(StaleState::Of).contains(&self)
    }

    /// Makes it take no new connections; see [`Cleanup::retire`].
    pub(super) async fn retire(self, running: &Running) -> Result<usize, SyncError> {
        of!(self.retire(running).await)
    }

    /// Returns true if it exists, apart from what `running` also uses, or if that is not known.
    /// Cheap.
    pub(super) async fn may_be_there(self, running: &Running) -> bool {
        let found = of!(self.is_there(running).await);
        found.unwrap_or_else(|error| {
            tracing::debug!("cannot find out whether there is anything of {self}: {error}");
            true
        })
    }

    /// Removes it, except what `running` also uses; see [`Cleanup::cleanup`].
    pub(super) async fn cleanup(self, running: &Running) -> Result<(), SyncError> {
        of!(self.cleanup(running).await)
    }

    fn may_need_programs(self) -> bool {
        of!(self.may_need_programs())
    }
}

impl fmt::Display for StaleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StaleState::Of(mode) => write!(f, "{mode} mode"),
            StaleState::Nftables => f.write_str("kube-proxy's nftables mode"),
        }
    }
}

/// Returns whether there may be rules, of any mode or of a trace, that only programs can remove.
/// Lists chains by netlink only.
pub(in crate::start) fn rules_of_programs_may_be_there() -> bool {
    let mut families = Family::ALL.into_iter();
    StaleState::ALL.into_iter().any(StaleState::may_need_programs)
        // A trace marks packets in this table.
        || families.any(|family| Engine::Legacy.has_table(family, "raw"))
}
