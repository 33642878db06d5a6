//! Oddities that arose a short time ago: many pass by themselves, because objects that belong
//! together come one after the other.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::Oddity;

/// For so long an oddity may follow only from the order in which objects come.
const PASSES_WITHIN: Duration = Duration::from_secs(5);

/// Oddities that hold and were not logged, each with the time at which it arose.
#[derive(Debug, Default)]
pub(super) struct Arisen(BTreeMap<Oddity, Instant>);

impl Arisen {
    /// Adds one that arose `now`.
    pub(super) fn add(&mut self, oddity: Oddity, now: Instant) {
        self.0.insert(oddity, now);
    }

    /// Forgets one that has passed.
    pub(super) fn remove(&mut self, oddity: &Oddity) {
        self.0.remove(oddity);
    }

    /// Takes out those that have lasted until `now`, sorted.
    pub(super) fn take_lasting(&mut self, now: Instant) -> Vec<Oddity> {
        let lasts = |at: Instant| now.saturating_duration_since(at) >= PASSES_WITHIN;
        let lasting = self.0.extract_if(.., |_, at| lasts(*at));
        lasting.map(|(oddity, _)| oddity).collect()
    }
}
