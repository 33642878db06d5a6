//! The pause after a failure.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// The longest pause that a server can demand: otherwise a faulty proxy in front of it could make
/// the node miss every change of Services for any time.
pub(super) const MOST_ASKED: Duration = Duration::from_secs(5 * 60);

/// Pauses that double from `first` to `longest`, half of each being random, so that the nodes of a
/// cluster do not return all at once.
#[derive(Debug)]
pub(super) struct Pauses {
    first: Duration,
    longest: Duration,
    failures: u32,
    chance: RandomState,
}

impl Pauses {
    pub(super) fn new(first: Duration, longest: Duration) -> Pauses {
        Pauses {
            first,
            longest,
            failures: 0,
            chance: RandomState::new(),
        }
    }

    /// Returns the pause after one more failure, at most `most`.
    pub(super) fn next(&mut self, most: Duration) -> Duration {
        let doubled = self.first.saturating_mul(1 << self.failures.min(20));
        self.failures = self.failures.saturating_add(1);
        self.scatter(doubled.min(self.longest).min(most))
    }

    /// Returns the pause after a failure for which the server demands at least `minimum`, which
    /// counts up to [`MOST_ASKED`]. A random time up to `most` is added, so that not all nodes
    /// return at once.
    pub(super) fn at_least(&mut self, minimum: Duration, most: Duration) -> Duration {
        minimum.min(MOST_ASKED) + self.next(most)
    }

    /// Resets the pause to the first one, after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    fn scatter(&self, whole: Duration) -> Duration {
        let share = self.chance.hash_one(self.failures) % 1024;
        whole / 2 + whole / 2 * u32::try_from(share).unwrap_or(0) / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(30);

    #[test]
    fn pauses_double_up_to_the_longest_and_start_anew() {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        for doublings in 0..200 {
            let whole = FIRST.saturating_mul(1 << doublings.min(20)).min(LONGEST);
            let pause = pauses.next(Duration::MAX);
            assert!(
                pause >= whole / 2 && pause <= whole,
                "{doublings}: {pause:?}"
            );
        }
        pauses.reset();
        assert!(pauses.next(Duration::MAX) <= FIRST);
        assert!(pauses.next(FIRST / 2) <= FIRST / 2);
    }

    #[test]
    fn nodes_do_not_come_back_at_once() {
        let thousand = (0..1000).map(|_| {
            let mut pauses = Pauses::new(LONGEST, LONGEST);
            pauses.next(Duration::MAX)
        });
        let mut spread: Vec<_> = thousand.collect();
        spread.sort();
        assert!(spread[900] - spread[100] > LONGEST / 3);
    }

    #[test]
    fn what_the_server_says_counts_for_some_minutes() {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        let pause = pauses.at_least(Duration::from_secs(100_000), Duration::MAX);
        assert!(
            pause > MOST_ASKED && pause <= MOST_ASKED + FIRST,
            "{pause:?}"
        );
    }

    #[test]
    fn what_the_server_says_is_a_minimum() {
        let mut pauses = Pauses::new(FIRST, LONGEST);
        let minimum = Duration::from_secs(7);
        let pause = pauses.at_least(minimum, Duration::MAX);
        assert!(pause > minimum && pause <= minimum + FIRST, "{pause:?}");
    }
}
