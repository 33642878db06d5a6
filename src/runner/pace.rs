//! When to sync: pure arithmetic on instants, so that every rule is tested
//! without waiting.

use std::time::Duration;

use tokio::time::Instant;

/// How often syncs may, and must, happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Shortest time from the end of one sync to the start of the next, once a
    /// burst is used up: `minSyncPeriod` of the mode. What changes meanwhile is
    /// one batch.
    pub min_interval: Duration,
    /// Syncs that may follow each other at once after a quiet time; at least 1.
    pub burst: u32,
    /// Longest time from one full sync to the next: `syncPeriod` of the mode.
    pub sync_period: Duration,
    /// Pause after a first failure; it doubles with each further one.
    pub retry: Duration,
    /// The longest such pause.
    pub retry_longest: Duration,
}

impl Default for Options {
    /// For a mode whose syncs cost microseconds, as userspace mode's do: at
    /// most about a hundred syncs a second, a full one every 30 s (kube-proxy's
    /// default). kube-proxy's own minimum, 1 s, is meant for iptables.
    ///
    /// Measured (`cargo bench --bench cluster -- intervals`): in a storm of
    /// 20,000 changes among 5,000 Services, 1 ms, 10 ms, 100 ms and 1 s all
    /// take 11,000 to 13,000 changes a second of one core. A longer interval
    /// saves nothing, so it is as short as still joins what a controller
    /// writes in one go.
    fn default() -> Self {
        Options {
            min_interval: Duration::from_millis(10),
            burst: 2,
            sync_period: Duration::from_secs(30),
            retry: Duration::from_millis(500),
            retry_longest: Duration::from_secs(30),
        }
    }
}

/// How a sync ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is in force.
    Done,
    /// Some of it is not, and is to be tried again; the rest need not wait.
    Partly,
    /// Nothing took effect.
    Failed,
}

/// Says when the next sync is due.
#[derive(Debug)]
pub struct Pace {
    options: Options,
    /// Syncs that may start now.
    tokens: u32,
    /// Since when the next token grows.
    growing: Instant,
    /// A sync was asked for.
    requested: bool,
    /// No request is heard before: what has just failed as a whole would
    /// most likely fail again.
    deaf_until: Option<Instant>,
    full_at: Instant,
    retry_at: Option<Instant>,
    pause: Duration,
    look_at: Option<Instant>,
}

impl Pace {
    /// Nothing is due before the sync period is over, unless it is asked for.
    pub fn new(options: Options, now: Instant) -> Pace {
        Pace {
            tokens: options.burst.max(1),
            growing: now,
            requested: false,
            deaf_until: None,
            full_at: now + options.sync_period,
            retry_at: None,
            pause: options.retry,
            look_at: None,
            options,
        }
    }

    /// Asks for a sync. Requests until it starts are one.
    pub fn request(&mut self) {
        self.requested = true;
    }

    /// Asks for a sync no later than `at`.
    pub fn look_again(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// When the next sync is due; now, if that is past.
    pub fn due(&self, now: Instant) -> Instant {
        let requested = self.requested.then(|| self.deaf_until.unwrap_or(now));
        let free = match self.tokens_at(now) {
            0 => self.growing + self.options.min_interval,
            _ => now,
        };
        [requested, self.retry_at, self.look_at]
            .into_iter()
            .flatten()
            .fold(self.full_at, Instant::min)
            .max(free)
    }

    /// A sync starts. True if the sync period is over, so that it must be a
    /// full one.
    pub fn begin(&mut self, now: Instant) -> bool {
        self.tokens = self.tokens_at(now).saturating_sub(1);
        self.requested = false;
        self.look_at = None;
        now >= self.full_at
    }

    /// The sync that began has ended; `full` says whether it was a full one.
    pub fn end(&mut self, now: Instant, outcome: Outcome, full: bool) {
        self.growing = now;
        if full {
            // Also if it failed: then the retry is a full sync.
            self.full_at = now + self.options.sync_period;
        }
        if outcome == Outcome::Done {
            self.retry_at = None;
            self.deaf_until = None;
            self.pause = self.options.retry;
            return;
        }
        // A sync that ran early because something changed leaves the retry
        // where it is, so that a storm does not stretch the pause.
        if self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = Some(now + self.pause);
            self.pause = (self.pause * 2).min(self.options.retry_longest);
        }
        self.deaf_until = (outcome == Outcome::Failed).then(|| now + self.options.retry);
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
