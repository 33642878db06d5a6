//! When to sync: pure arithmetic on instants, so that every rule is tested
//! without waiting.

use std::time::Duration;

use net::{Family, PerFamily};
use tokio::time::Instant;

use crate::backoff::Backoff;

/// How often syncs may, and must, happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Shortest time from the end of one sync to the start of the next, once a
    /// burst is used up: `minSyncPeriod` of the mode. What changes meanwhile is
    /// one batch.
    pub min_interval: Duration,
    /// Syncs that may follow each other at once after a quiet time; at least 1.
    pub burst: u32,
    /// Longest time from one full sync to the next: `syncPeriod` of the mode. It is also the
    /// longest pause before what failed is tried again.
    pub sync_period: Duration,
    /// Pause after a first failure; it doubles with each further one.
    pub retry: Duration,
}

impl Default for Options {
    /// The same for all modes, as each writes only what changed: at most about a hundred syncs a
    /// second, a full one every 30 s (kube-proxy's default). kube-proxy's own minimum is 1 s. A
    /// program that takes longer than the interval sets the pace itself.
    ///
    /// Measured (`cargo bench --bench cluster -- intervals`): in a storm of 20,000 changes among
    /// 5,000 Services, 1 ms, 10 ms, 100 ms and 1 s all take 11,000 to 13,000 changes a second of
    /// one core. A longer interval saves nothing, so it is as short as possible while it still
    /// joins what a controller writes in one go.
    fn default() -> Self {
        Options {
            min_interval: Duration::from_millis(10),
            burst: 2,
            sync_period: Duration::from_secs(30),
            retry: Duration::from_secs(1),
        }
    }
}

/// How a sync of one family ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is in force.
    Done,
    /// Some of it is not in force, and is to be tried again; the rest need not wait.
    Partly {
        /// Whether something fails that did not before.
        new_failures: bool,
    },
    /// Nothing took effect.
    Failed,
}

/// How a sync of a family that begins is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether the sync period is over, so that everything is compared.
    pub full: bool,
    /// Whether what failed is tried again.
    pub retry: bool,
}

/// Decides when the next sync is due, and of which families.
#[derive(Debug)]
pub struct SyncScheduler {
    options: Options,
    /// Number of syncs that may start now.
    tokens: u32,
    /// Start of the interval after which there is one more token.
    growing: Instant,
    full_at: Instant,
    families: PerFamily<FamilySchedule>,
}

#[derive(Debug)]
struct FamilySchedule {
    /// Whether a sync was requested.
    requested: bool,
    /// No request is due before this: what has just failed as a whole would
    /// most likely fail again.
    not_before: Option<Instant>,
    backoff: Backoff,
    sync_by: Option<Instant>,
}

impl FamilySchedule {
    fn due(&self, now: Instant) -> Option<Instant> {
        let requested = self.requested.then(|| self.not_before.unwrap_or(now));
        let all = [requested, self.backoff.due(), self.sync_by];
        all.into_iter().flatten().min()
    }
}

impl SyncScheduler {
    /// Returns a scheduler for which nothing is due before the sync period is
    /// over, unless it is requested.
    pub fn new(options: Options, now: Instant) -> SyncScheduler {
        SyncScheduler {
            tokens: options.burst.max(1),
            growing: now,
            full_at: now + options.sync_period,
            families: PerFamily::each(|_| FamilySchedule {
                requested: false,
                not_before: None,
                backoff: Backoff::new(options.retry, options.sync_period),
                sync_by: None,
            }),
            options,
        }
    }

    /// Requests a sync of `family`. Requests until it starts are one.
    pub fn request(&mut self, family: Family) {
        self.families.get_mut(family).requested = true;
    }

    /// Requests a sync of `family` no later than `at`.
    pub fn sync_by(&mut self, family: Family, at: Instant) {
        let sync_by = &mut self.families.get_mut(family).sync_by;
        *sync_by = Some(sync_by.map_or(at, |earlier| earlier.min(at)));
    }

    /// Returns when the next sync is due; now, if that is past.
    pub fn due(&self, now: Instant) -> Instant {
        let free = match self.tokens_at(now) {
            0 => self.growing + self.options.min_interval,
            _ => now,
        };
        let families = self.families.iter();
        families
            .filter_map(|(_, family)| family.due(now))
            .fold(self.full_at, Instant::min)
            .max(free)
    }

    /// Starts a sync and returns the families that are due. When the sync
    /// period is over both are, whatever one has to wait for.
    pub fn begin(&mut self, now: Instant) -> PerFamily<Option<Turn>> {
        self.tokens = self.tokens_at(now).saturating_sub(1);
        let full = now >= self.full_at;
        PerFamily::each(|family| {
            let family = self.families.get_mut(family);
            if !full && family.due(now).is_none_or(|due| due > now) {
                return None;
            }
            family.requested = false;
            family.sync_by = None;
            let retry = full || family.backoff.due().is_some_and(|due| due <= now);
            Some(Turn { full, retry })
        })
    }

    /// Records that the sync that began has ended, for `family` with `outcome`.
    pub fn end(&mut self, family: Family, now: Instant, outcome: Outcome) {
        self.growing = now;
        let family = self.families.get_mut(family);
        family.not_before = None;
        match outcome {
            Outcome::Done => family.backoff.succeeded(),
            Outcome::Partly { new_failures: true } => family.backoff.failed_anew(now),
            Outcome::Partly {
                new_failures: false,
            } => family.backoff.failed(now),
            Outcome::Failed => {
                family.backoff.failed(now);
                family.not_before = Some(now + self.options.retry);
            }
        }
    }

    /// Records that the sync that ended was a full one of both families. One
    /// that failed counts, too: its retry is a full sync.
    pub fn was_full(&mut self, now: Instant) {
        self.full_at = now + self.options.sync_period;
    }

    fn tokens_at(&self, now: Instant) -> u32 {
        let burst = self.options.burst.max(1);
        let quiet = now.saturating_duration_since(self.growing).as_nanos();
        let grown = match self.options.min_interval.as_nanos() {
            0 => u128::from(burst),
            interval => quiet / interval,
        };
        let grown = u32::try_from(grown).unwrap_or(burst);
        self.tokens.saturating_add(grown).min(burst)
    }
}

#[cfg(test)]
mod tests;
