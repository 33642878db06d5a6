//! A mode of the kernel that writes nothing while another process has taken over.
//!
//! What was written stays in force until the other process has written its own. Two that
//! write would each take the rules of the other for damage, and repair it without end.

use super::{
    Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncReport, userspace::Handover,
};
use crate::{
    kernel::xtables::Engine,
    net::{Family, ModeName},
    services::ServiceMap,
};

/// A mode that gives way to other processes.
pub struct Yielding<M> {
    mode: M,
    handover: Handover,
    /// Whether what is in the kernel may be another process's.
    yields: bool,
}

impl<M: Mode> Yielding<M> {
    /// Has `mode` write nothing while `handover` knows of a process that takes over.
    pub fn new(mode: M, handover: Handover) -> Yielding<M> {
        Yielding {
            mode,
            handover,
            yields: false,
        }
    }

    /// Returns the mode itself.
    pub fn mode(&self) -> &M {
        &self.mode
    }

    /// Returns what talks to processes that take over.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }
}

/// Returns whether a sync compares all of both families.
fn is_whole(asked: Asked<'_>) -> bool {
    let mut families = asked.iter();
    families.all(|(_, changes)| changes.is_some_and(|changes| changes.full))
}

impl<M: Mode> Mode for Yielding<M> {
    fn name(&self) -> ModeName {
        self.mode.name()
    }

    async fn prepare(&mut self) -> Result<(), super::SyncError> {
        self.mode.prepare().await
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let handover = self.handover.clone();
        let writing = handover.capturing().await;
        // After another process everything is to be compared, which is asked for at once.
        self.yields = writing.is_none() || self.yields && !is_whole(asked);
        if self.yields {
            return asked.map(|_, changes| changes.map(|_| Ok(SyncReport::default())));
        }
        self.mode.sync(map, asked).await
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        if self.yields {
            // The other process writes, and knows what is to be there.
            return Compared::default();
        }
        self.mode.compare(map).await
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        self.mode.explain(map, packet).await
    }

    async fn externally_modified(&mut self) {
        if self.yields {
            return self.handover.until_yielding(false).await;
        }
        // Before it serves, the process that gave way may have taken everything back.
        let reacts = !self.handover.is_on_trial();
        tokio::select! {
            () = self.mode.externally_modified(), if reacts => {}
            () = self.handover.until_yielding(true) => {}
        }
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.mode.engines()
    }
}
