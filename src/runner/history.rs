//! The most recent syncs, up to a maximum number.

use std::{
    collections::VecDeque,
    time::{Duration, SystemTime},
};

use net::{Family, PerFamily};

/// Maximum number of syncs of each family that are kept.
const MOST: usize = 100;

/// A sync that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PastSync {
    /// The time at which it ended.
    pub ended: SystemTime,
    /// Duration of the sync.
    pub took: Duration,
    /// Whether everything was compared with the kernel.
    pub full: bool,
    /// Extent of the sync, or why it had no effect.
    pub result: Result<Extent, String>,
}

/// Size of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Number of ServicePorts that it examined.
    pub service_ports: usize,
    /// Number of those that are not applied after it.
    pub failed: usize,
}

/// The most recent syncs of each family. A family that syncs often does not displace the other's.
#[derive(Debug, Default)]
pub(super) struct History(PerFamily<VecDeque<PastSync>>);

impl History {
    pub(super) fn push(&mut self, family: Family, sync: PastSync) {
        let syncs = self.0.get_mut(family);
        if syncs.len() >= MOST {
            syncs.pop_front();
        }
        syncs.push_back(sync);
    }

    /// All syncs, oldest first.
    pub(super) fn all(&self) -> Vec<(Family, PastSync)> {
        let families = self.0.iter();
        let all = families.flat_map(|(family, syncs)| {
            let syncs = syncs.iter().cloned();
            syncs.map(move |sync| (family, sync))
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(_, sync)| sync.ended);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> PastSync {
        PastSync {
            ended: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
            took: Duration::from_millis(second),
            full: false,
            result: Err("no memory".to_owned()),
        }
    }

    #[test]
    fn the_last_syncs_of_each_family_are_kept_in_order() {
        let mut history = History::default();
        history.push(Family::V6, at(50));
        for second in 0..MOST as u64 + 20 {
            history.push(Family::V4, at(second));
        }
        let all = history.all();
        assert_eq!(all.len(), MOST + 1);
        assert_eq!(all[0], (Family::V4, at(20)));
        assert!(all.iter().any(|sync| *sync == (Family::V6, at(50))));
        assert!(all.is_sorted_by_key(|(_, sync)| sync.ended));
    }
}
