//! Which endpoints of a portal did not answer lately.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use tokio::time::Instant;

/// How long an endpoint that refused or did not answer is passed over while
/// another one is available. Short, because the endpoint that comes back
/// should get its share at once; long enough that a dead one costs one caller
/// a second instead of every n-th caller a dial timeout.
const PASSED_OVER: Duration = Duration::from_secs(1);

/// Entries above which expired ones are swept out; the next sweep comes when
/// what was left has doubled.
const SWEEP_AT: usize = 64;

/// Endpoints to pass over, mostly none.
#[derive(Debug, Default)]
pub struct Failing {
    /// There may be some: saves the lock where nothing fails.
    any: AtomicBool,
    table: Mutex<Table>,
}

/// A Service may have thousands of endpoints that all fail at once, and each is
/// asked for with each pick.
#[derive(Debug, Default)]
struct Table {
    until: HashMap<SocketAddr, Instant>,
    /// When all of them have expired.
    last: Option<Instant>,
    sweep_at: usize,
}

/// The endpoints to pass over at one moment. Nothing fails or answers
/// meanwhile.
#[derive(Debug)]
pub struct PassedOver<'a> {
    table: MutexGuard<'a, Table>,
    now: Instant,
}

impl PassedOver<'_> {
    /// Whether `endpoint` is among them.
    pub fn has(&self, endpoint: &SocketAddr) -> bool {
        let until = self.table.until.get(endpoint);
        until.is_some_and(|until| *until > self.now)
    }
}

impl Failing {
    /// The endpoint refused a connection or did not answer in time.
    pub fn failed(&self, endpoint: SocketAddr) {
        let now = Instant::now();
        let mut table = self.lock();
        if table.until.len() >= table.sweep_at.max(SWEEP_AT) {
            table.until.retain(|_, until| *until > now);
            table.sweep_at = table.until.len() * 2;
        }
        table.until.insert(endpoint, now + PASSED_OVER);
        table.last = Some(now + PASSED_OVER);
        self.any.store(true, Relaxed);
    }

    /// The endpoint answered.
    pub fn answered(&self, endpoint: SocketAddr) {
        if self.any.load(Relaxed) {
            let mut table = self.lock();
            table.until.remove(&endpoint);
            self.any.store(!table.until.is_empty(), Relaxed);
        }
    }

    /// Those to pass over now, if there are any.
    pub fn now(&self) -> Option<PassedOver<'_>> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let now = Instant::now();
        let mut table = self.lock();
        if table.last.is_none_or(|last| last <= now) {
            *table = Table::default();
            self.any.store(false, Relaxed);
            return None;
        }
        Some(PassedOver { table, now })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing that runs under this lock leaves its value half-changed.
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_fails_is_passed_over_for_a_second_or_until_it_answers() {
        let all = [1, 2].map(|last| SocketAddr::from(([10, 1, 0, last], 80)));
        let [a, b] = all;
        let failing = Failing::default();
        let now = || {
            let now = failing.now();
            all.map(|endpoint| now.as_ref().is_some_and(|now| now.has(&endpoint)))
        };
        assert_eq!(now(), [false, false]);
        failing.failed(a);
        tokio::time::advance(PASSED_OVER / 2).await;
        failing.failed(b);
        failing.failed(b);
        assert_eq!(now(), [true, true]);
        tokio::time::advance(PASSED_OVER / 2).await;
        assert_eq!(now(), [false, true]);
        failing.answered(a);
        failing.answered(b);
        assert_eq!(now(), [false, false]);
        assert!(!failing.any.load(Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn endpoints_that_come_and_go_do_not_accumulate() {
        let failing = Failing::default();
        for i in 0..20_000u32 {
            if i % 10 == 0 {
                tokio::time::advance(PASSED_OVER / 2).await;
            }
            failing.failed((std::net::Ipv4Addr::from_bits(i), 80).into());
        }
        assert!(failing.lock().until.len() <= 2 * SWEEP_AT);
        tokio::time::advance(PASSED_OVER).await;
        assert!(failing.now().is_none());
        assert!(failing.lock().until.is_empty());
    }
}
