//! The mode that runs, as one type for all modes.

use net::{Family, PerFamily};
use xtables::Engine;

use crate::{
    config::ModeName,
    modes::{
        Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError, handover::Handover,
        iptables::Iptables, ipvs::Ipvs, localhost::LocalhostNodePorts, nftables::Nftables,
        offloaded::Offloaded, progress::SyncProgress, userspace::Userspace, yielding::Yielding,
    },
    services::ServiceMap,
};

/// One of the modes.
pub(super) enum Running {
    Ipvs(LocalhostNodePorts<Yielding<Offloaded<Ipvs>>>),
    Nftables(LocalhostNodePorts<Yielding<Offloaded<Nftables>>>),
    Iptables(Box<Yielding<Iptables>>),
    Userspace(Box<Userspace>),
}

/// Calls the same method of whichever mode runs.
macro_rules! of_mode {
    ($running:ident, $mode:ident => $call:expr) => {
        match $running {
            Running::Ipvs($mode) => $call,
            Running::Nftables($mode) => $call,
            Running::Iptables($mode) => $call,
            Running::Userspace($mode) => $call,
        }
    };
}

impl Running {
    /// The handover to a successor.
    pub(super) fn handover(&self) -> Handover {
        match self {
            Running::Userspace(mode) => mode.handover(),
            Running::Ipvs(mode) => mode.mode().handover(),
            Running::Nftables(mode) => mode.mode().handover(),
            Running::Iptables(mode) => mode.handover(),
        }
    }
}

impl Mode for Running {
    fn name(&self) -> ModeName {
        of_mode!(self, mode => mode.name())
    }

    async fn prepare(&mut self) -> Result<(), SyncError> {
        of_mode!(self, mode => mode.prepare().await)
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        of_mode!(self, mode => mode.sync(map, asked).await)
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

    fn engines(&self) -> Vec<(Family, Engine)> {
        of_mode!(self, mode => mode.engines())
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        of_mode!(self, mode => mode.progress())
    }
}
