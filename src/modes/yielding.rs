//! A mode of the kernel writes nothing while another process has taken over.
//!
//! The rules of this process stay applied until the other process has written its own. Two
//! processes that write would each take the rules of the other for damage, and repair it without
//! end.

use std::borrow::Cow;

use net::PerFamily;

use super::{Asked, handover::Handover};
use crate::services::{Changes, ServiceMap};

/// Which of its syncs a mode makes, as there are other processes.
pub struct Yielding {
    handover: Handover,
    /// Whether the objects in the kernel may be another process's.
    yields: bool,
    /// Flows that became stale since then: the other process may end before it deletes
    /// them.
    stale: PerFamily<Changes>,
}

/// Returns whether a sync compares all of both families.
fn is_whole(asked: Asked<'_>) -> bool {
    let mut families = asked.iter();
    families.all(|(_, changes)| changes.is_some_and(|changes| changes.full))
}

/// Returns only the stale flows of `changes`.
fn only_stale(changes: &Changes) -> Changes {
    Changes {
        stale: changes.stale.clone(),
        ..Changes::default()
    }
}

impl Yielding {
    /// A mode that writes nothing while `handover` knows of a process that takes over.
    pub fn new(handover: Handover) -> Yielding {
        Yielding {
            handover,
            yields: false,
            stale: PerFamily::default(),
        }
    }

    /// Returns whether another process writes, and knows the desired state.
    pub fn yields(&self) -> bool {
        self.yields
    }

    /// Returns the changes that a sync must apply now; `None`: none, because another process
    /// writes, or because all must be compared first. `writes`: no process has taken over.
    pub fn due<'a>(
        &mut self,
        writes: bool,
        map: &ServiceMap,
        asked: Asked<'a>,
    ) -> Option<PerFamily<Option<Cow<'a, Changes>>>> {
        // After another process everything must be compared, which is requested at once.
        let yielded = self.yields;
        self.yields = !writes || yielded && !is_whole(asked);
        if self.yields {
            for (family, stale) in self.stale.iter_mut() {
                stale.merge(asked.get(family).map_or_else(Changes::default, only_stale));
                stale.bound(map);
            }
            return None;
        }
        let stale = std::mem::take(&mut self.stale);
        if !yielded && stale.iter().all(|(_, stale)| stale.is_empty()) {
            return Some(asked.map(|_, changes| changes.map(Cow::Borrowed)));
        }
        Some(stale.map(|family, mut changes| {
            changes.merge(Changes::clone((*asked.get(family))?));
            changes.taken_back |= yielded;
            Some(Cow::Owned(changes))
        }))
    }

    /// Waits until a sync is due: another process came or went, or what this one installed was
    /// `modified`.
    pub async fn until_due(&self, modified: impl Future<Output = ()>) {
        if self.yields {
            return self.handover.until_not_yielding().await;
        }
        // Before it serves, the process that gave way may have taken everything back.
        let reacts = !self.handover.is_on_trial();
        tokio::select! {
            () = modified, if reacts => {}
            () = self.handover.until_yielding() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, time::Duration};

    use net::Family;
    use tokio::time::timeout;

    use super::*;
    use crate::services::{Former, service_ports::port_name};

    /// The number of stale flows of a sync, and in how many families it takes back the kernel;
    /// `None`: it writes nothing.
    async fn sync(
        yielding: &mut Yielding,
        handover: &Handover,
        asked: Asked<'_>,
    ) -> Option<(usize, usize)> {
        let writing = handover.capturing().await;
        let due = yielding.due(writing.is_some(), &ServiceMap::default(), asked)?;
        let changes = || due.iter().filter_map(|(_, changes)| changes.as_deref());
        let stale = changes().map(|changes| changes.stale.ports.len());
        let taken_back = changes().filter(|changes| changes.taken_back);
        Some((stale.sum(), taken_back.count()))
    }

    /// Returns whether a sync is due if everything counts as modified.
    async fn is_due(yielding: &Yielding) -> bool {
        let due = yielding.until_due(ready(()));
        timeout(Duration::from_millis(50), due).await.is_ok()
    }

    #[tokio::test]
    async fn who_gave_way_writes_again_with_a_full_sync_when_the_other_is_gone() {
        let handover = &Handover::default();
        let yielding = &mut Yielding::new(handover.clone());
        let [changes, later] = ["dns:udp", "quic:udp"].map(|stale| {
            let mut changes = Changes::default();
            let former = Former::default();
            changes.stale.ports.insert(port_name(stale), former);
            changes
        });
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        let [some, later, all]: [Asked<'_>; 3] =
            [&changes, &later, &full].map(|changes| PerFamily::each(|_| Some(changes)));
        let families = Family::ALL.len();
        assert_eq!(sync(yielding, handover, some).await, Some((families, 0)));
        assert!(is_due(yielding).await, "what others change counts");

        let successor = handover.give_way().await;
        assert!(is_due(yielding).await, "a sync is due");
        for asked in [some, all] {
            assert_eq!(sync(yielding, handover, asked).await, None);
        }
        assert!(!is_due(yielding).await, "the changes are the other's");

        drop(successor);
        assert!(is_due(yielding).await, "a sync is due");
        let done = sync(yielding, handover, later).await;
        assert_eq!(done, None, "all should be compared first");
        // With what became stale meanwhile; what the other process wrote is no damage.
        let done = sync(yielding, handover, all).await;
        assert_eq!(done, Some((2 * families, families)));
        assert_eq!(sync(yielding, handover, some).await, Some((families, 0)));
    }

    #[tokio::test]
    async fn who_has_not_served_leaves_it_to_the_other_to_repair() {
        let handover = Handover::default();
        let yielding = Yielding::new(handover.clone());
        let _predecessor = handover.follows();
        assert!(!is_due(&yielding).await);
        handover.serves();
        assert!(is_due(&yielding).await);
    }
}
