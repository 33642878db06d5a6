//! The mode that runs, as one type for all modes.

use crate::{
    kernel::xtables::Engine,
    modes::{
        Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError,
        iptables::Iptables,
        ipvs::Ipvs,
        localhost::LocalhostNodePorts,
        nftables::Nftables,
        offloaded::Offloaded,
        userspace::{Handover, Userspace},
    },
    net::{Family, ModeName},
    services::ServiceMap,
};

/// One of the modes.
pub(super) enum Running {
    Ipvs(LocalhostNodePorts<Offloaded<Ipvs>>),
    Nftables(LocalhostNodePorts<Offloaded<Nftables>>),
    Iptables(Box<Iptables>),
    Userspace(Box<Userspace>),
}

impl Running {
    /// Returns the hand-over for a mode that carries connections itself; `None`
    /// for others.
    pub(super) fn handover(&self) -> Option<Handover> {
        match self {
            Running::Userspace(mode) => Some(mode.handover()),
            Running::Ipvs(mode) => mode.handover(),
            Running::Nftables(mode) => mode.handover(),
            Running::Iptables(_) => None,
        }
    }
}

impl Mode for Running {
    fn name(&self) -> ModeName {
        match self {
            Running::Ipvs(mode) => mode.name(),
            Running::Nftables(mode) => mode.name(),
            Running::Iptables(mode) => mode.name(),
            Running::Userspace(mode) => mode.name(),
        }
    }

    async fn prepare(&mut self) -> Result<(), SyncError> {
        match self {
            Running::Ipvs(mode) => mode.prepare().await,
            Running::Nftables(mode) => mode.prepare().await,
            Running::Iptables(mode) => mode.prepare().await,
            Running::Userspace(mode) => mode.prepare().await,
        }
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        match self {
            Running::Ipvs(mode) => mode.sync(map, asked).await,
            Running::Nftables(mode) => mode.sync(map, asked).await,
            Running::Iptables(mode) => mode.sync(map, asked).await,
            Running::Userspace(mode) => mode.sync(map, asked).await,
        }
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        match self {
            Running::Ipvs(mode) => mode.compare(map).await,
            Running::Nftables(mode) => mode.compare(map).await,
            Running::Iptables(mode) => mode.compare(map).await,
            Running::Userspace(mode) => mode.compare(map).await,
        }
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        match self {
            Running::Ipvs(mode) => mode.explain(map, packet).await,
            Running::Nftables(mode) => mode.explain(map, packet).await,
            Running::Iptables(mode) => mode.explain(map, packet).await,
            Running::Userspace(mode) => mode.explain(map, packet).await,
        }
    }

    async fn externally_modified(&mut self) {
        match self {
            Running::Ipvs(mode) => mode.externally_modified().await,
            Running::Nftables(mode) => mode.externally_modified().await,
            Running::Iptables(mode) => mode.externally_modified().await,
            Running::Userspace(mode) => mode.externally_modified().await,
        }
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        match self {
            Running::Ipvs(mode) => mode.engines(),
            Running::Nftables(mode) => mode.engines(),
            Running::Iptables(mode) => mode.engines(),
            Running::Userspace(mode) => mode.engines(),
        }
    }
}
