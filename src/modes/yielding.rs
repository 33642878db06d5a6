//! A mode of the kernel that writes nothing while another process has taken over.
//!
//! The rules of this process stay applied until the other process has written its own. Two
//! processes that write would each take the rules of the other for damage, and repair it without
//! end.

use net::{Family, PerFamily};
use xtables::Engine;

use super::{
    Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncReport, handover::Handover,
    progress::SyncProgress,
};
use crate::{
    config::ModeName,
    services::{Changes, ServiceMap},
};

/// A mode that gives way to other processes.
pub struct Yielding<M> {
    mode: M,
    handover: Handover,
    /// Whether the objects in the kernel may be another process's.
    yields: bool,
    /// UDP flows that became stale since then: the other process may end before it deletes
    /// them.
    stale: PerFamily<Changes>,
}

impl<M: Mode> Yielding<M> {
    /// Wraps `mode`, which writes nothing while `handover` knows of a process that takes over.
    pub fn new(mode: M, handover: Handover) -> Yielding<M> {
        Yielding {
            mode,
            handover,
            yields: false,
            stale: PerFamily::default(),
        }
    }

    /// Returns the mode itself.
    pub fn mode(&self) -> &M {
        &self.mode
    }

    /// The handover, for the code that talks to processes that take over.
    pub fn handover(&self) -> Handover {
        self.handover.clone()
    }
}

/// Returns whether a sync compares all of both families.
fn is_whole(asked: Asked<'_>) -> bool {
    let mut families = asked.iter();
    families.all(|(_, changes)| changes.is_some_and(|changes| changes.full))
}

/// Returns only the stale flows of `changes`.
fn only_stale(changes: &Changes) -> Changes {
    Changes {
        stale_udp: changes.stale_udp.clone(),
        begun: changes.begun.clone(),
        ..Changes::default()
    }
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
        // After another process everything must be compared, which is requested at once.
        let yielded = self.yields;
        self.yields = writing.is_none() || yielded && !is_whole(asked);
        if self.yields {
            for (family, stale) in self.stale.iter_mut() {
                stale.merge(asked.get(family).map_or_else(Changes::default, only_stale));
                stale.bound(map);
            }
            return asked.map(|_, changes| changes.map(|_| Ok(SyncReport::default())));
        }
        let stale = std::mem::take(&mut self.stale);
        if !yielded && stale.iter().all(|(_, stale)| stale.is_empty()) {
            return self.mode.sync(map, asked).await;
        }
        let asked = stale.map(|family, mut changes| {
            changes.merge(Changes::clone((*asked.get(family))?));
            changes.taken_back |= yielded;
            Some(changes)
        });
        let asked = asked.as_ref().map(|_, changes| changes.as_ref());
        self.mode.sync(map, asked).await
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        if self.yields {
            // The other process writes, and knows the desired state.
            return Compared::default();
        }
        self.mode.compare(map).await
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        self.mode.explain(map, packet).await
    }

    async fn externally_modified(&mut self) {
        if self.yields {
            return self.handover.until_not_yielding().await;
        }
        // Before it serves, the process that gave way may have taken everything back.
        let reacts = !self.handover.is_on_trial();
        tokio::select! {
            () = self.mode.externally_modified(), if reacts => {}
            () = self.handover.until_yielding() => {}
        }
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.mode.engines()
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        self.mode.progress()
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use parking_lot::Mutex;
    use tokio::time::timeout;

    use super::*;
    use crate::{modes::SyncError, services::service_ports::port_name};

    /// Counts its syncs and their stale flows, and takes everything for damage, except the rules
    /// that a successor wrote.
    struct Counting(Arc<Mutex<(usize, usize)>>, usize);

    impl Mode for Counting {
        fn name(&self) -> ModeName {
            ModeName::Nftables
        }

        async fn sync(&mut self, _: &ServiceMap, asked: Asked<'_>) -> Outcomes {
            let changes = || asked.iter().filter_map(|(_, changes)| *changes);
            self.1 += changes().filter(|changes| changes.taken_back).count();
            let stale = changes();
            let stale = stale.map(|changes| changes.stale_udp.revived.len());
            let mut counts = self.0.lock();
            *counts = (counts.0 + 1, counts.1 + stale.sum::<usize>());
            asked.map(|_, changes| changes.map(|_| Ok(SyncReport::default())))
        }

        async fn compare(&mut self, _: &ServiceMap) -> Compared {
            Compared::default()
        }

        async fn explain(&mut self, _: &ServiceMap, _: &Packet) -> ExplainResult {
            Err(SyncError::Runtime(std::io::Error::other("no test asks")))
        }

        async fn externally_modified(&mut self) {}

        fn engines(&self) -> Vec<(Family, Engine)> {
            Vec::new()
        }

        fn progress(&self) -> PerFamily<SyncProgress> {
            PerFamily::default()
        }
    }

    async fn is_modified(mode: &mut Yielding<Counting>) -> bool {
        let modified = timeout(Duration::from_millis(50), mode.externally_modified());
        modified.await.is_ok()
    }

    #[tokio::test]
    async fn who_gave_way_writes_again_with_a_full_sync_when_the_other_is_gone() {
        let (handover, syncs) = (Handover::of_rules(), Arc::default());
        let mut mode = Yielding::new(Counting(Arc::clone(&syncs), 0), handover.clone());
        let map = ServiceMap::default();
        let mut changes = Changes::default();
        changes.stale_udp.revived.push(port_name("dns:udp"));
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        let (some, all): (Asked<'_>, Asked<'_>) = (
            PerFamily::each(|_| Some(&changes)),
            PerFamily::each(|_| Some(&full)),
        );
        let families = Family::ALL.len();
        mode.sync(&map, some).await;
        assert_eq!(*syncs.lock(), (1, families));
        assert!(is_modified(&mut mode).await, "what others change counts");

        let successor = handover.give_way().await;
        assert!(is_modified(&mut mode).await, "a sync is due");
        for asked in [some, all] {
            let outcomes = mode.sync(&map, asked).await;
            assert!(outcomes.iter().all(|(_, done)| matches!(done, Some(Ok(_)))));
        }
        assert_eq!(syncs.lock().0, 1, "it writes nothing");
        assert!(!is_modified(&mut mode).await, "the changes are the other's");

        drop(successor);
        assert!(is_modified(&mut mode).await, "a sync is due");
        mode.sync(&map, some).await;
        assert_eq!(syncs.lock().0, 1, "all is to be compared first");
        mode.sync(&map, all).await;
        let stale = 3 * families;
        assert_eq!(*syncs.lock(), (2, stale), "and what became stale before it");
        mode.sync(&map, some).await;
        assert_eq!(*syncs.lock(), (3, stale + families));
        let taken_back = mode.mode().1;
        assert_eq!(taken_back, families, "what the other wrote is no damage");
    }

    #[tokio::test]
    async fn who_has_not_served_leaves_it_to_the_other_to_repair() {
        let handover = Handover::of_rules();
        let mut mode = Yielding::new(Counting(Arc::default(), 0), handover.clone());
        let _predecessor = handover.follows();
        assert!(!is_modified(&mut mode).await);
        handover.serves();
        assert!(is_modified(&mut mode).await);
    }
}
