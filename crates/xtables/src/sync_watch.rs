//! Notices cheaply that another process changed our rules, also during a sync, which reports its
//! own changes: no client should have to wait for the next full sync because a firewall was
//! restarted.
//!
//! nf_tables notifies of each change, and counts them. The legacy engine shows the size of
//! each table.

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
pub struct SyncWatch {
    family: Family,
    owned: &'static Owned,
    record: Record,
    /// Another process changed our rules, and a change of ours may have hidden that since.
    is_suspect: bool,
}

/// Result of a family's sync for its rules.
#[derive(Clone, Copy, Debug, Default)]
pub struct Synced {
    /// Transactions of the kernel's that it took.
    pub transactions: u32,
    /// The kernel was read, and so is known to be right.
    pub observed: bool,
}

/// State of the tables when our last sync left them.
enum Record {
    Legacy(Sizes),
    NfTables(Generations),
}

/// Sizes of tables.
#[derive(Default)]
struct Sizes {
    /// How large they were when we left them.
    left: Option<Vec<Option<Size>>>,
    /// Whether they were so before the sync that runs.
    are_unmodified: bool,
}

/// Counts of changes.
struct Generations {
    watcher: Option<ChainWatcher>,
    /// The generation in which all rules were known to be as desired.
    right: Option<u32>,
    /// Our chains as we left them.
    left: Left,
}

/// How often chains in nf_tables had been changed when a sync left them.
#[derive(Clone, Copy, Debug, Default)]
struct Left {
    /// The count then; `None`: they may have been changed by others at that time.
    count: Option<Count>,
    /// When it was logged last that changes may have been missed.
    missed: Option<Instant>,
}

impl SyncWatch {
    /// Watches the chains of `family` that are `owned`, alone or with another program, in the
    /// calling thread's network namespace.
    pub fn new(family: Family, engine: Engine, owned: &'static Owned) -> SyncWatch {
        let record = match engine {
            Engine::Legacy => Record::Legacy(Sizes::default()),
            Engine::NfTables => Record::NfTables(Generations {
                watcher: ChainWatcher::open(family, owned.interest),
                right: None,
                left: Left::default(),
            }),
        };
        SyncWatch {
            family,
            owned,
            record,
            is_suspect: false,
        }
    }

    /// Returns the count before a sync, where the engine counts. To be called before a
    /// sync of any family reads or writes anything.
    pub fn before(&mut self) -> Option<Count> {
        match &mut self.record {
            Record::NfTables(generations) => {
                let now = generations.now();
                let left = generations.left;
                self.is_suspect |= now.is_some_and(|now| left.count.is_some() && !left.is(now));
                now
            }
            Record::Legacy(there) => {
                let now = sizes(self.family, self.owned.tables);
                there.are_unmodified = there.left.as_ref() == Some(&now);
                self.is_suspect |= there.left.is_some() && !there.are_unmodified;
                None
            }
        }
    }

    /// To be called when a sync failed: it is not known which changes by others it undid.
    pub fn suspect(&mut self) {
        self.is_suspect = true;
    }

    /// Returns true if rules of ours may have been missing that are there now, since a sync that
    /// read all of them last asked for this. Must be called by such a sync, after
    /// [`SyncWatch::before`].
    pub fn take_suspect(&mut self) -> bool {
        std::mem::take(&mut self.is_suspect)
    }

    /// Returns true if changes by others while a sync runs may not be noticed before all rules
    /// are read: of legacy tables only the sizes are known, as they are at its end.
    pub fn misses_changes(&self) -> bool {
        matches!(self.record, Record::Legacy(_))
    }

    /// To be called before much is written: until the sync is over, it is only noticed
    /// whether others changed anything at all.
    pub fn pause(&mut self) {
        if let Record::NfTables(Generations {
            watcher: Some(watcher),
            ..
        }) = &mut self.record
        {
            watcher.pause();
        }
    }

    /// Must be called after a sync of this family with the result `done`, while the syncs of all
    /// families together took `all` transactions of the kernel, which counts both families in one
    /// number.
    pub fn after(&mut self, before: Option<Count>, all: u32, done: Synced) {
        match &mut self.record {
            Record::Legacy(there) => {
                // Changes that others made before a sync that read nothing must still be noticed:
                // an empty list equals no sizes.
                let is_right = done.observed || there.are_unmodified;
                let now = is_right.then(|| sizes(self.family, self.owned.tables));
                there.left = Some(now.unwrap_or_default());
            }
            Record::NfTables(generations) => {
                generations.after(before, all, done);
                let is_known = before.is_some();
                self.is_suspect |= is_known && generations.left.count.is_none();
            }
        }
    }

    /// Records that the chains are as they should be now, if all that is known of a sync is when it
    /// ended: a change by others between the sync and this call is not noticed.
    pub fn record(&mut self) {
        match &mut self.record {
            Record::Legacy(there) => there.left = Some(sizes(self.family, self.owned.tables)),
            Record::NfTables(generations) => generations.left.count = generations.now(),
        }
    }

    /// To be called `before` and after others in this process write rules: of legacy tables only the
    /// sizes are known.
    pub fn expect_changes(&mut self, before: bool) {
        if before {
            self.before();
        } else if let Record::Legacy(there) = &mut self.record
            && there.are_unmodified
        {
            there.left = Some(sizes(self.family, self.owned.tables));
        }
    }

    /// Returns true if no process changed any rules since a sync last found all of ours to be
    /// right.
    pub fn is_unchanged(&mut self) -> bool {
        match &mut self.record {
            Record::Legacy(_) => false,
            Record::NfTables(generations) => {
                let now = generations.now().map(|now| now.generation);
                now.is_some() && generations.right == now
            }
        }
    }

    /// Returns true if our rules are as we left them, as far as that shows without
    /// reading them.
    pub fn is_unmodified(&mut self) -> bool {
        let is_unmodified = match &mut self.record {
            Record::Legacy(Sizes { left: None, .. }) => true,
            Record::Legacy(Sizes {
                left: Some(left), ..
            }) => sizes(self.family, self.owned.tables) == *left,
            Record::NfTables(generations) => generations.is_unmodified(),
        };
        self.is_suspect |= !is_unmodified;
        is_unmodified
    }
}

impl Generations {
    fn now(&mut self) -> Option<Count> {
        self.watcher.as_mut()?.count()
    }

    fn after(&mut self, before: Option<Count>, all: u32, done: Synced) {
        if let Some(watcher) = &mut self.watcher {
            watcher.resume();
        }
        let (before, now) = match (before, self.now()) {
            (Some(before), Some(now)) => (before, now),
            _ => {
                (self.right, self.left.count) = (None, None);
                return;
            }
        };
        // No other process changed any rules, or it did and ours are not among them.
        let is_alone = now.generation == before.generation.wrapping_add(all);
        let changed = now.changed.wrapping_sub(before.changed);
        let is_known = before.missed == now.missed && now.is_complete;
        let is_ours_alone = is_known && changed == done.transactions;
        let was_right = done.observed || self.right == Some(before.generation);
        let was_unmodified = was_right || before.is_complete && self.left.is(before);
        self.right = (is_alone && was_right).then_some(now.generation);
        self.left.count = if was_unmodified && (is_alone || is_ours_alone) {
            Some(now)
        } else if changed > done.transactions {
            None
        } else {
            // If some were missed, the check says it when that is due.
            let lefts = [self.left.count, Some(before)].into_iter().flatten();
            lefts.into_iter().find(|left| left.missed != now.missed)
        };
    }

    fn is_unmodified(&mut self) -> bool {
        let watcher = self.watcher.as_mut();
        watcher.is_none_or(|watcher| self.left.is_unmodified(watcher))
    }
}

impl Left {
    /// Returns true if the chains were left as `now` says.
    fn is(&self, now: Count) -> bool {
        let left = self.count;
        left.is_some_and(|left| (left.changed, left.missed) == (now.changed, now.missed))
    }

    /// Returns true if the chains that `watcher` counts changes of are as they were left, or if the
    /// kernel does not say.
    fn is_unmodified(&mut self, watcher: &mut ChainWatcher) -> bool {
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
