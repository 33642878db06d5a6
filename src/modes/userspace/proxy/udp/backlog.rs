//! How long datagrams have been waiting in a listener's socket.
//!
//! The kernel queues some ten thousand of them. Starting a flow for each may take longer than the
//! clients wait, while those that could still be served wait behind them.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A queue that has not been empty for this long will not become empty by serving everyone.
const LONG: Duration = Duration::from_millis(250);

/// State of the queue of a socket.
#[derive(Debug, Default)]
pub struct Backlog {
    /// Time in milliseconds since which the queue has not been empty; 0 if it was empty at the last
    /// read.
    since: AtomicU64,
}

impl Backlog {
    /// Records that there was more to read at the time `now`, in milliseconds.
    pub fn grew(&self, now: u64) {
        let _ = self.since.compare_exchange(0, now.max(1), Relaxed, Relaxed);
    }

    /// Records that there was nothing more to read.
    pub fn ended(&self) {
        self.since.store(0, Relaxed);
    }

    /// Returns whether, at the time `now`, the queue has not been empty for so long that new
    /// clients should wait if there is little room for them.
    pub fn is_long(&self, now: u64) -> bool {
        let since = self.since.load(Relaxed);
        since > 0 && u128::from(now.saturating_sub(since)) >= LONG.as_millis()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_read_to_its_end_is_long_after_a_while() {
        let backlog = Backlog::default();
        assert!(!backlog.is_long(10_000));
        for (now, is_long) in [
            (1_000, false),
            (1_100, false),
            (1_249, false),
            (1_250, true),
        ] {
            backlog.grew(now);
            assert_eq!(backlog.is_long(now), is_long, "{now}");
        }
        backlog.ended();
        assert!(!backlog.is_long(1_300));
        backlog.grew(1_300);
        assert!(!backlog.is_long(1_400));
    }
}
