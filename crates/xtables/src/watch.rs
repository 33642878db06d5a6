//! Notices cheaply that another process changed a few chains of ours, if all that is known of a
//! sync is when it ended. A change between a sync and the moment in which it is recorded is not
//! noticed.

use std::time::{Duration, Instant};

use net::Family;

use super::{
    Engine,
    chains::{ChainWatcher, Count, sizes},
    info::Size,
    remove::Owned,
};

/// How long it is not logged again that changes may have been missed; everything is read
/// each time.
const PAUSE: Duration = Duration::from_secs(10);

/// Watches chains of one family.
pub struct Watch {
    family: Family,
    owned: &'static Owned,
    record: Record,
}

/// State of the chains after the last sync.
enum Record {
    Legacy(Option<Vec<Option<Size>>>),
    NfTables(Option<ChainWatcher>, Option<Left>),
}

/// How often chains in nf_tables had been changed when a sync left them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Left {
    /// The count then; `None`: they may have been changed by others at that time.
    pub count: Option<Count>,
    /// When it was logged last that changes may have been missed.
    missed: Option<Instant>,
}

impl Watch {
    /// Watches the chains of `family` that are `owned`, in the network namespace of the calling
    /// thread. Nothing is recorded yet.
    pub fn new(family: Family, engine: Engine, owned: &'static Owned) -> Watch {
        let record = match engine {
            Engine::Legacy => Record::Legacy(None),
            Engine::NfTables => Record::NfTables(ChainWatcher::open(family, owned.interest), None),
        };
        Watch {
            family,
            owned,
            record,
        }
    }

    /// Records that the chains are as they should be now, after a sync.
    pub fn record(&mut self) {
        match &mut self.record {
            Record::Legacy(left) => {
                *left = Some(sizes(self.family, self.owned.tables));
            }
            Record::NfTables(watcher, left) => {
                let count = watcher.as_mut().and_then(ChainWatcher::count);
                *left = count.map(|count| {
                    let mut left = left.unwrap_or_default();
                    left.count = Some(count);
                    left
                });
            }
        }
    }

    /// Returns true if the chains are as they were recorded, as far as that shows
    /// without reading their rules, or if nothing is recorded.
    pub fn is_unmodified(&mut self) -> bool {
        match &mut self.record {
            Record::Legacy(Some(left)) => sizes(self.family, self.owned.tables) == *left,
            Record::NfTables(Some(watcher), Some(left)) => left.is_unmodified(watcher),
            Record::Legacy(None) | Record::NfTables(..) => true,
        }
    }
}

impl Left {
    /// Returns true if the chains were left as `now` says.
    pub fn is(&self, now: Count) -> bool {
        let left = self.count;
        left.is_some_and(|left| (left.changed, left.missed) == (now.changed, now.missed))
    }

    /// Returns true if the chains that `watcher` counts changes of are as they were left, or if the
    /// kernel does not say.
    pub fn is_unmodified(&mut self, watcher: &mut ChainWatcher) -> bool {
        let Some(now) = watcher.check() else {
            return true;
        };
        let Some(left) = self.count else {
            return false;
        };
        if left.missed == now.missed {
            return self.is(now);
        }
        let is_paused = self.missed.is_some_and(|last| last.elapsed() < PAUSE);
        if !is_paused {
            self.missed = Some(Instant::now());
        }
        is_paused
    }
}
