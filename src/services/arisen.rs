//! Oddities that arose a short time ago: many pass by themselves, because objects that belong
//! together come one after the other.

use std::{
    collections::{HashSet, VecDeque},
    time::{Duration, Instant},
};

use super::Oddity;

/// For so long an oddity may follow only from the order in which objects come.
const PASSES_WITHIN: Duration = Duration::from_secs(5);

/// Oddities with the times at which they arose, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Arisen(VecDeque<(Instant, Oddity)>);

impl Arisen {
    /// Adds one that arose `now`.
    pub(super) fn add(&mut self, oddity: Oddity, now: Instant) {
        self.0.push_back((now, oddity));
    }

    /// Takes out those that arose long enough before `now`. Returns each of them once.
    pub(super) fn take(&mut self, now: Instant) -> Vec<Oddity> {
        let is_old = |at: Instant| now.saturating_duration_since(at) >= PASSES_WITHIN;
        let old = self.0.iter().take_while(|(at, _)| is_old(*at)).count();
        let mut taken = HashSet::new();
        let old = self.0.drain(..old).map(|(_, oddity)| oddity);
        old.filter(|oddity| taken.insert(oddity.clone())).collect()
    }
}
