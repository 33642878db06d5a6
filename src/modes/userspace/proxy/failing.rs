//! Endpoints of a service group that did not answer recently.
//!
//! An endpoint that fails is *ejected*: it is skipped while another one is available. After that
//! time one connection tries it, and all others skip it until the outcome is known: a dead endpoint
//! costs one caller a dial timeout now and then, instead of every n-th caller. Each further failure
//! in a row doubles the time; an answer ends it at once.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// How long the first failure ejects an endpoint. Short, because a recovered endpoint should get
/// its share at once.
const FIRST: Duration = Duration::from_secs(1);

/// Maximum duration of an ejection, and how long it is remembered afterwards.
const LONGEST: Duration = Duration::from_secs(60);

/// How long a trial may have no outcome: longer than any attempt to connect waits, and a reset
/// after it counts as a failure (`ANSWER_WINDOW` in `tcp/relay.rs`). A trial has no outcome if its
/// client leaves, or if nothing ever comes back over UDP, where only a refusal can be seen; the
/// endpoint is then no longer skipped.
const TRIAL: Duration = Duration::from_secs(8);

/// Number of endpoints above which old ones are removed; the next removal is due when the rest has
/// doubled.
const SWEEP_AT: usize = 64;

/// Number of failures in a row after which an endpoint is named in the log: failures of up to a
/// second are not logged.
const NAMED_AFTER: u32 = 2;

/// Endpoints that failed recently; usually none.
#[derive(Debug, Default)]
pub struct Failing {
    /// Whether there may be any: saves the lock if nothing fails.
    any: AtomicBool,
    table: Mutex<Table>,
}

/// A map, because a Service may have thousands of endpoints that all fail at once, and each is
/// looked up at each pick.
#[derive(Debug, Default)]
struct Table {
    ejections: HashMap<SocketAddr, Ejection>,
    /// When all of them will be forgotten.
    last: Option<Instant>,
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Ejection {
    until: Instant,
    /// Number of failures in a row.
    failures: u32,
    /// Whether `until` is the end of a trial, which may also have ended without an outcome.
    on_trial: bool,
}

impl Ejection {
    fn forgotten(&self) -> Instant {
        self.until + LONGEST
    }
}

impl Table {
    fn put(&mut self, endpoint: SocketAddr, ejection: Ejection) {
        self.last = self.last.max(Some(ejection.forgotten()));
        self.ejections.insert(endpoint, ejection);
    }
}

/// The endpoints to skip at one moment. While it exists, none can fail or answer.
#[derive(Debug)]
pub struct Ejected<'a> {
    table: MutexGuard<'a, Table>,
    now: Instant,
}

impl Ejected<'_> {
    /// Returns whether `endpoint` must be skipped.
    pub fn has(&self, endpoint: &SocketAddr) -> bool {
        let ejection = self.table.ejections.get(endpoint);
        ejection.is_some_and(|ejection| ejection.until > self.now)
    }

    /// Records that `endpoint` was picked. If its ejection is over, this is its trial.
    pub fn picked(&mut self, endpoint: SocketAddr) {
        if let Some(ejection) = self.table.ejections.get(&endpoint).copied()
            && ejection.until <= self.now
            && !ejection.on_trial
        {
            let trial = Ejection {
                until: self.now + TRIAL,
                on_trial: true,
                ..ejection
            };
            self.table.put(endpoint, trial);
        }
    }
}

impl Failing {
    /// Records that the endpoint refused a connection, did not answer in time, or reset the
    /// connection before it sent anything. Returns the number of failures in a row when it should
    /// be logged.
    pub fn failed(&self, endpoint: SocketAddr) -> Option<u32> {
        let now = Instant::now();
        let mut table = self.table.lock();
        let before = table.ejections.get(&endpoint).copied();
        let before = before.filter(|ejection| ejection.forgotten() > now);
        // Attempts that began before the first failure count as one failure.
        if before.is_some_and(|ejection| ejection.until > now && !ejection.on_trial) {
            return None;
        }
        if table.ejections.len() >= table.sweep_at.max(SWEEP_AT) {
            table.ejections.retain(|_, e| e.forgotten() > now);
            table.sweep_at = table.ejections.len() * 2;
        }
        let failures = before.map_or(0, |ejection| ejection.failures);
        let ejection = Ejection {
            until: now + FIRST.saturating_mul(1 << failures.min(16)).min(LONGEST),
            failures: failures.saturating_add(1),
            on_trial: false,
        };
        table.put(endpoint, ejection);
        self.any.store(true, Relaxed);
        Some(ejection.failures).filter(|failures| *failures == NAMED_AFTER)
    }

    /// Records that the endpoint sent something, or did not reset the connection for a while.
    /// Returns whether it was ejected long enough to be named.
    pub fn answered(&self, endpoint: SocketAddr) -> bool {
        if !self.any.load(Relaxed) {
            return false;
        }
        let mut table = self.table.lock();
        let ejection = table.ejections.remove(&endpoint);
        self.any.store(!table.ejections.is_empty(), Relaxed);
        ejection.is_some_and(|ejection| ejection.failures >= NAMED_AFTER)
    }

    /// The endpoints to skip now, if there may be any.
    pub fn ejected(&self) -> Option<Ejected<'_>> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let now = Instant::now();
        let mut table = self.table.lock();
        if table.last.is_none_or(|last| last <= now) {
            *table = Table::default();
            self.any.store(false, Relaxed);
            return None;
        }
        Some(Ejected { table, now })
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn endpoint(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 1, 0, last], 80))
    }

    fn is_ejected(failing: &Failing, endpoint: SocketAddr) -> bool {
        failing.ejected().is_some_and(|now| now.has(&endpoint))
    }

    fn picked(failing: &Failing, endpoint: SocketAddr) {
        failing.ejected().expect("one failed").picked(endpoint);
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_again_is_named_until_it_answers() {
        let failing = Failing::default();
        let (a, b) = (endpoint(1), endpoint(2));
        let fails = async |endpoint| {
            let first = failing.failed(endpoint);
            advance(FIRST).await;
            (first, failing.failed(endpoint))
        };
        assert_eq!(fails(a).await, (None, Some(2)));
        assert_eq!(failing.failed(b), None);
        advance(LONGEST).await;
        assert_eq!(failing.failed(a), None, "it is named");
        assert!(failing.answered(a) && !failing.answered(b));
        assert_eq!(fails(a).await, (None, Some(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_fails_is_passed_over_for_longer_each_time_until_it_answers() {
        let failing = Failing::default();
        let (a, b) = (endpoint(1), endpoint(2));
        assert!(!is_ejected(&failing, a));
        for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
            failing.failed(a);
            // Other attempts were under way at the same time.
            failing.failed(a);
            assert!(!is_ejected(&failing, b));
            advance(Duration::from_secs(seconds) - Duration::from_millis(1)).await;
            assert!(is_ejected(&failing, a), "for {seconds} s");
            advance(Duration::from_millis(1)).await;
            assert!(!is_ejected(&failing, a), "for {seconds} s");
            picked(&failing, a);
            assert!(is_ejected(&failing, a), "one tries it at a time");
        }
        failing.answered(a);
        assert!(!failing.any.load(Relaxed));
        failing.failed(a);
        advance(FIRST).await;
        assert!(!is_ejected(&failing, a), "the answer counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_trial_without_an_outcome_ends() {
        let (failing, a) = (Failing::default(), endpoint(1));
        failing.failed(a);
        advance(FIRST).await;
        picked(&failing, a);
        advance(TRIAL).await;
        for _ in 0..2 {
            assert!(!is_ejected(&failing, a));
            picked(&failing, a);
        }
        failing.failed(a);
        advance(FIRST).await;
        assert!(is_ejected(&failing, a), "it failed before");
        advance(FIRST + LONGEST).await;
        failing.failed(a);
        advance(FIRST).await;
        assert!(!is_ejected(&failing, a), "that was long ago");
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_that_come_and_go_do_not_accumulate() {
        let failing = Failing::default();
        for i in 0..20_000u32 {
            if i % 10 == 0 {
                advance(LONGEST / 2).await;
            }
            failing.failed((std::net::Ipv4Addr::from_bits(i), 80).into());
        }
        assert!(failing.table.lock().ejections.len() <= 2 * SWEEP_AT);
        advance(LONGEST + FIRST).await;
        assert!(failing.ejected().is_none());
        assert!(failing.table.lock().ejections.is_empty());
    }
}
