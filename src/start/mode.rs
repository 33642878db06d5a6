//! The mode of this process, in the order in which it takes over, syncs and gives way.

use std::{future::pending, sync::Arc};

use net::{Family, PerFamily};
use tokio::sync::Mutex;
use xtables::Engine;

use super::{
    chosen::{self, Chosen},
    takeover::TakeOver,
};
use crate::{
    config::ModeName,
    modes::{
        Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError, SyncReport,
        handover::Handover,
        iptables::Iptables,
        ipvs::Ipvs,
        localhost,
        nftables::Nftables,
        offloaded,
        progress::SyncProgress,
        userspace::{NodePortRelay, Userspace},
        yielding::Yielding,
    },
    services::{Changes, ServiceMap},
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

    /// Must be called `before` and after userspace mode in this process writes rules for some
    /// Services: they are no changes by another process.
    fn expect_changes(&mut self, before: bool) {
        match self {
            AnyMode::Iptables(mode) => mode.expect_changes(before),
            AnyMode::Ipvs(mode) => mode.expect_changes(before),
            AnyMode::Nftables(_) | AnyMode::Userspace(_) => {}
        }
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

/// A mode with all that happens around its syncs.
///
/// Before the first sync it looks for the state of other modes. While another process has taken
/// over, nothing is written. Node ports on loopback addresses follow the kernel's, and when all is
/// applied, the state of other modes goes.
pub(super) struct ServingMode {
    name: ModeName,
    progress: PerFamily<SyncProgress>,
    /// Shared with the thread of a long sync.
    mode: Arc<Mutex<AnyMode>>,
    /// Whether the mode's long calls need a thread of their own.
    blocks: bool,
    handover: Handover,
    /// `None`: the mode itself gives way to other processes.
    yielding: Option<Yielding>,
    /// Node ports on loopback addresses in modes of the kernel; `None`: none are served.
    relay: Option<NodePortRelay>,
    /// Services that choose userspace mode in modes of the kernel; `None`: it is the mode.
    chosen: Option<Chosen>,
    takeover: TakeOver,
}

impl ServingMode {
    /// Has `mode` sync, with `relay` for node ports on loopback addresses, and next to it the mode of
    /// Services that have `chosen` userspace mode. When it serves, `takeover` removes the state of
    /// other modes.
    pub(super) fn new(
        mode: AnyMode,
        relay: Option<NodePortRelay>,
        chosen: Option<Chosen>,
        handover: Handover,
        takeover: TakeOver,
    ) -> ServingMode {
        let yields_itself = matches!(mode, AnyMode::Userspace(_));
        ServingMode {
            name: mode.name(),
            progress: mode.progress(),
            blocks: mode.blocks(),
            mode: Arc::new(Mutex::new(mode)),
            yielding: (!yields_itself).then(|| Yielding::new(handover.clone())),
            handover,
            relay,
            chosen,
            takeover,
        }
    }

    /// Syncs the mode, unless another process has taken over.
    async fn sync_mode(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let Some(yielding) = &mut self.yielding else {
            return self.mode.lock().await.sync(map, asked).await;
        };
        let writing = self.handover.capturing().await;
        let Some(due) = yielding.due(writing.is_some(), map, asked) else {
            return asked.map(|_, changes| changes.map(|_| Ok(SyncReport::default())));
        };
        let due = due.as_ref().map(|_, changes| changes.as_deref());
        if self.blocks {
            offloaded::sync(&self.mode, map, due).await
        } else {
            self.mode.lock().await.sync(map, due).await
        }
    }

    /// Syncs the mode, and before or after it what is relayed next to it.
    async fn sync_both(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let Some(chosen) = &mut self.chosen else {
            return self.sync_mode(map, asked).await;
        };
        let (is_there, comes_second) = (chosen.is_there(), chosen.comes_second());
        if comes_second {
            chosen.expect(map, asked);
        } else {
            self.begin_chosen(map, asked).await;
        }
        let (mut outcomes, mut wrote) = self.sync_others(map, asked).await;
        if !is_there && asked.v4.is_some() && asked.v6.is_some() {
            self.handover.refuse(self.relay.is_some());
        }
        if comes_second && self.begin_chosen(map, asked).await {
            let none = Changes::default();
            let due = asked.map(|_, asked| asked.map(|_| &none));
            let more;
            (more, wrote) = self.sync_others(map, due).await;
            chosen::add(&mut outcomes, more);
        }
        if let Some(chosen) = &mut self.chosen {
            chosen.end(map, asked, &mut outcomes, wrote).await;
        }
        outcomes
    }

    /// Has what is chosen relayed. Returns whether the mode must serve at once what cannot be.
    async fn begin_chosen(&mut self, map: &ServiceMap, asked: Asked<'_>) -> bool {
        let chosen = self.chosen.as_mut().filter(|chosen| chosen.is_there());
        let Some(chosen) = chosen else {
            return false;
        };
        let mut mode = self.mode.lock().await;
        mode.expect_changes(true);
        chosen.begin(map, asked).await;
        mode.expect_changes(false);
        chosen.leaves_unserved()
    }

    /// Syncs the mode with the ServicePorts that are not relayed. Returns whether it wrote, as no
    /// other process has taken over.
    async fn sync_others(&mut self, map: &ServiceMap, asked: Asked<'_>) -> (Outcomes, bool) {
        let Some(chosen) = &mut self.chosen else {
            return (self.sync_mode(map, asked).await, true);
        };
        let (others, changes) = (chosen.others(map), chosen.changes(map, asked));
        let due = changes.as_ref().map(|_, changes| changes.as_deref());
        let outcomes = self.sync_mode(&others, due).await;
        let wrote = !self.yielding.as_ref().is_some_and(Yielding::yields);
        if let Some(chosen) = &mut self.chosen {
            chosen.applied(&outcomes, wrote);
        }
        (outcomes, wrote)
    }

    /// The ServicePorts of `map` that the mode itself serves.
    fn others(&self, map: &ServiceMap) -> ServiceMap {
        let chosen = self.chosen.as_ref();
        chosen.map_or_else(|| map.clone(), |chosen| chosen.others(map))
    }

    /// Compares the kernel with the state that the mode wants.
    async fn compare_mode(&mut self, map: &ServiceMap) -> Compared {
        if self.yielding.as_ref().is_some_and(Yielding::yields) {
            return Compared::default();
        }
        if self.blocks {
            offloaded::compare(&self.mode, map).await
        } else {
            self.mode.lock().await.compare(map).await
        }
    }
}

impl Mode for ServingMode {
    fn name(&self) -> ModeName {
        self.name
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        if let Some(chosen) = &mut self.chosen {
            chosen.prepare(map, asked).await;
        }
        self.takeover.begin_sync().await;
        // First: what other processes give is taken by the first that can use it.
        let on_loopback = self.relay.as_mut().map(|relay| relay.sync(map, asked));
        let mut outcomes = self.sync_both(map, asked).await;
        if let Some(on_loopback) = on_loopback {
            localhost::report(on_loopback, map, asked, &mut outcomes);
        }
        self.takeover.end_sync(asked, &outcomes).await;
        outcomes
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        let mut compared = self.compare_mode(&self.others(map)).await;
        if let Some(chosen) = &mut self.chosen {
            compared = chosen.compare(map, compared).await;
        }
        match &self.relay {
            Some(relay) => localhost::compare(relay, compared),
            None => compared,
        }
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        let relayed = match &mut self.chosen {
            Some(chosen) => chosen.explain(map, packet).await?,
            None => None,
        };
        let mut explanation = match relayed {
            Some(explanation) => explanation,
            None => {
                let others = self.others(map);
                self.mode.lock().await.explain(&others, packet).await?
            }
        };
        if let Some(relay) = &self.relay {
            localhost::explain(relay, packet, &mut explanation);
        }
        Ok(explanation)
    }

    async fn externally_modified(&mut self) {
        let modified = async { self.mode.lock().await.externally_modified().await };
        let due = async {
            match &self.yielding {
                Some(yielding) => yielding.until_due(modified).await,
                None => modified.await,
            }
        };
        let relay_due = async {
            match &mut self.relay {
                Some(relay) => relay.other_processes_changed().await,
                None => pending().await,
            }
        };
        let chosen_due = async {
            match &mut self.chosen {
                Some(chosen) => chosen.externally_modified().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = relay_due => {}
            () = chosen_due => {}
            () = self.takeover.returned() => {}
        }
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        self.progress.clone()
    }
}
