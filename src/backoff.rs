//! Retries with growing pauses.

use std::{future::pending, time::Duration};

use tokio::time::{Instant, sleep_until};

/// Schedules retries, each after twice the previous pause.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    /// Pause between the next failure and the retry after it.
    pause: Duration,
    due: Option<Instant>,
}

impl Backoff {
    /// Returns a back-off without failures. The pause after a first failure is
    /// `first`, and none is longer than `longest`.
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        let first = first.min(longest);
        Backoff {
            first,
            longest,
            pause: first,
            due: None,
        }
    }

    /// When to retry; `None` if nothing failed.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Records that a failure persists or is back. A try that ran early, because something else
    /// changed, does not postpone the one that is due: a storm of changes does not stretch the
    /// pause.
    pub fn failed(&mut self, now: Instant) {
        if self.due.is_none_or(|due| due <= now) {
            self.due = Some(now + self.pause);
            self.pause = (self.pause * 2).min(self.longest);
        }
    }

    /// Records a failure of something that did not fail before: its first retry comes after the
    /// shortest pause, even if others have been failing for a while.
    pub fn failed_anew(&mut self, now: Instant) {
        self.pause = self.first;
        if self.due.is_some_and(|due| due > now + self.first) {
            self.due = None;
        }
        self.failed(now);
    }

    /// Waits until the next retry is due, after a try that failed now.
    pub async fn wait(&mut self) {
        let now = Instant::now();
        self.failed(now);
        sleep_until(self.due.unwrap_or(now)).await;
    }

    /// Records a success: nothing is due, and the next pause is the first one again.
    pub fn succeeded(&mut self) {
        self.due = None;
        self.pause = self.first;
    }
}

/// Waits until a point in time, for example until a retry is [due](Backoff::due); without one, for
/// ever.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Seconds from `start` to the next try.
    fn due(backoff: &Backoff, start: Instant) -> Option<u64> {
        backoff.due().map(|due| (due - start).as_secs())
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_after_a_success() {
        let start = Instant::now();
        let mut backoff = Backoff::new(SECOND, 10 * SECOND);
        assert_eq!(backoff.due(), None);
        for _ in 0..2 {
            let mut now = start;
            let mut pauses = Vec::new();
            for _ in 0..6 {
                backoff.failed(now);
                let due = backoff.due().unwrap();
                pauses.push((due - now).as_secs());
                now = due;
            }
            assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
            backoff.succeeded();
            assert_eq!(backoff.due(), None);
        }
    }

    #[test]
    fn a_try_that_ran_early_does_not_put_the_next_one_off() {
        let start = Instant::now();
        let mut backoff = Backoff::new(SECOND, 10 * SECOND);
        backoff.failed(start);
        backoff.failed(start + SECOND / 2);
        assert_eq!(due(&backoff, start), Some(1));
    }

    #[test]
    fn what_fails_anew_does_not_wait_for_what_has_failed_for_long() {
        let start = Instant::now();
        let mut backoff = Backoff::new(SECOND, 60 * SECOND);
        for second in [0, 1, 3, 7, 15] {
            backoff.failed(start + second * SECOND);
        }
        assert_eq!(due(&backoff, start), Some(31));
        backoff.failed_anew(start + 20 * SECOND);
        assert_eq!(due(&backoff, start), Some(21));
        backoff.failed(start + 21 * SECOND);
        assert_eq!(due(&backoff, start), Some(23));
        // Further new failures do not postpone it.
        backoff.failed_anew(start + 22 * SECOND);
        assert_eq!(due(&backoff, start), Some(23));
    }
}
