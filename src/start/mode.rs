//! The modes, as one type.

use net::{Family, PerFamily};
use xtables::Engine;

use crate::{
    config::ModeName,
    modes::{
        Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError, iptables::Iptables,
        ipvs::Ipvs, nftables::Nftables, progress::SyncProgress, userspace::Userspace,
    },
    services::ServiceMap,
};

/// One of the modes.
pub(super) enum AnyMode {
    Ipvs(Box<Ipvs>),
    Nftables(Box<Nftables>),
    Iptables(Box<Iptables>),
    Userspace(Box<Userspace>),
}

/// Calls the same method of any mode.
macro_rules! of_mode {
    ($any:ident, $mode:ident => $call:expr) => {
        match $any {
            AnyMode::Ipvs($mode) => $call,
            AnyMode::Nftables($mode) => $call,
            AnyMode::Iptables($mode) => $call,
            AnyMode::Userspace($mode) => $call,
        }
    };
}

impl AnyMode {
    /// Does the work that needs full privileges, for a process that will run without them
    /// (`--init-only`). Forwards no traffic and breaks none.
    ///
    /// # Errors
    /// When something was refused that the mode cannot do without.
    pub(super) async fn prepare(&mut self) -> Result<(), SyncError> {
        match self {
            AnyMode::Ipvs(mode) => mode.write_settings(),
            AnyMode::Nftables(_) => {}
            AnyMode::Iptables(mode) => mode.prepare().await?,
            AnyMode::Userspace(mode) => mode.write_settings(),
        }
        Ok(())
    }

    /// Returns in which engine of each family it has rules. Does not change.
    pub(super) fn engines(&self) -> Vec<(Family, Engine)> {
        of_mode!(self, mode => mode.engines())
    }

    /// Returns whether its calls block the thread while the kernel works. Such a mode holds nothing
    /// that is bound to the runtime.
    pub(super) fn blocks(&self) -> bool {
        matches!(self, AnyMode::Ipvs(_) | AnyMode::Nftables(_))
    }
}

impl Mode for AnyMode {
    fn name(&self) -> ModeName {
        of_mode!(self, mode => mode.name())
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        of_mode!(self, mode => mode.sync(map, asked).await)
    }

    fn observes(&self, asked: Asked<'_>) -> bool {
        of_mode!(self, mode => mode.observes(asked))
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        of_mode!(self, mode => mode.compare(map).await)
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        of_mode!(self, mode => mode.explain(map, packet).await)
    }

    async fn externally_modified(&mut self) {
        of_mode!(self, mode => mode.externally_modified().await)
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        of_mode!(self, mode => mode.progress())
    }
}
