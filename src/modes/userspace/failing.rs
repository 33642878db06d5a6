//! Which endpoints of a portal did not answer lately.

use std::{
    net::SocketAddr,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

/// How long an endpoint that refused or did not answer is passed over while
/// another one is available. Short, because the endpoint that comes back
/// should get its share at once; long enough that a dead one costs one caller
/// a second instead of every n-th caller a dial timeout.
const PASSED_OVER: Duration = Duration::from_secs(1);

/// Endpoints to pass over, mostly none.
#[derive(Debug, Default)]
pub struct Failing {
    /// There may be some: saves the lock where nothing fails.
    any: AtomicBool,
    until: Mutex<Vec<(SocketAddr, Instant)>>,
}

impl Failing {
    /// The endpoint refused a connection or did not answer in time.
    pub fn failed(&self, endpoint: SocketAddr) {
        let now = Instant::now();
        let mut until = self.lock();
        until.retain(|(other, until)| *other != endpoint && *until > now);
        until.push((endpoint, now + PASSED_OVER));
        self.any.store(true, Relaxed);
    }

    /// The endpoint answered.
    pub fn answered(&self, endpoint: SocketAddr) {
        if self.any.load(Relaxed) {
            let mut until = self.lock();
            until.retain(|(other, _)| *other != endpoint);
            self.settle(&until);
        }
    }

    /// Those to pass over now.
    pub fn now(&self) -> Vec<SocketAddr> {
        if !self.any.load(Relaxed) {
            return Vec::new();
        }
        let now = Instant::now();
        let mut until = self.lock();
        until.retain(|(_, until)| *until > now);
        self.settle(&until);
        until.iter().map(|(endpoint, _)| *endpoint).collect()
    }

    fn settle(&self, until: &[(SocketAddr, Instant)]) {
        self.any.store(!until.is_empty(), Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(SocketAddr, Instant)>> {
        // Nothing that runs under this lock leaves its value half-changed.
        self.until.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_fails_is_passed_over_for_a_second_or_until_it_answers() {
        let [a, b] = [1, 2].map(|last| SocketAddr::from(([10, 1, 0, last], 80)));
        let failing = Failing::default();
        assert_eq!(failing.now(), []);
        failing.failed(a);
        tokio::time::advance(PASSED_OVER / 2).await;
        failing.failed(b);
        failing.failed(b);
        assert_eq!(failing.now(), [a, b]);
        tokio::time::advance(PASSED_OVER / 2).await;
        assert_eq!(failing.now(), [b]);
        failing.answered(a);
        failing.answered(b);
        assert_eq!(failing.now(), []);
        assert!(!failing.any.load(Relaxed));
    }
}
