//! When to sync: pure arithmetic on instants, so that every rule is tested
//! without waiting.

use std::time::Duration;

use net::{Family, PerFamily};
use tokio::time::Instant;

use crate::backoff::Backoff;

/// How often syncs may, and must, happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Shortest time from the end of one sync to the start of the next, once a burst is used up:
    /// `minSyncPeriod` of the mode. Changes during that time form one batch.
    pub min_interval: Duration,
    /// Number of syncs that may follow each other immediately after a quiet time; at least 1.
    pub burst: u32,
    /// Longest time from one full sync to the next: `syncPeriod` of the mode. It is also the
    /// longest pause before a failed sync is retried.
    pub sync_period: Duration,
    /// Pause after the first failure; it doubles with each further failure.
    pub retry: Duration,
}

impl Default for Options {
    /// The same for all modes, because each writes only what changed: at most about a hundred syncs
    /// a second, and a full one every 30 s (kube-proxy's default). kube-proxy's own minimum is 1 s.
    /// A program that takes longer than the interval sets the pace itself.
    ///
    /// Measured (`cargo bench --bench cluster -- intervals`): in a storm of 20,000 changes among
    /// 5,000 Services, 1 ms, 10 ms, 100 ms and 1 s all handle 11,000 to 13,000 changes a second on
    /// one core. A longer interval saves nothing, so it is as short as possible while it still
    /// joins the writes that a controller makes in one go.
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
    /// Everything was applied.
    Done,
    /// Something was not applied and will be retried; the rest need not wait.
    Partly {
        /// Whether there is a failure that did not exist before.
        new_failures: bool,
    },
    /// Nothing took effect.
    Failed,
}

/// How a sync of a family is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Whether the sync period has expired, so that everything is compared.
    pub full: bool,
    /// Whether failed ServicePorts are retried.
    pub retry: bool,
}

/// Decides when the next sync is due, and for which families.
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
    /// No request is due before this time: after a sync that failed completely, an immediate retry
    /// would most likely fail again.
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
    /// A scheduler with nothing due before the end of the sync period, unless a sync is requested.
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

    /// Requests a sync of `family`. Requests are merged until the sync starts.
    pub fn request(&mut self, family: Family) {
        self.families.get_mut(family).requested = true;
    }

    /// Requests a sync of `family` no later than `at`.
    pub fn sync_by(&mut self, family: Family, at: Instant) {
        let sync_by = &mut self.families.get_mut(family).sync_by;
        *sync_by = Some(sync_by.map_or(at, |earlier| earlier.min(at)));
    }

    /// When the next sync is due, but not before `now`.
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

    /// Starts a sync and returns the families that are due. At the end of the sync period both are
    /// due, even one that waits after a failure.
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

    /// Records that the sync that ended was a full one of both families. A failed one counts, too:
    /// its retry is a full sync.
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
