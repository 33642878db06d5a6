//! A bounded number of answers, each for a bounded time.

use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::Instant;

/// A digest of the question, so that no token stays in memory.
pub(super) type Key = [u8; 32];

/// Answers that hold for some time.
#[derive(Debug)]
pub(super) struct Cache<T> {
    most: usize,
    time_to_live: Duration,
    answers: HashMap<Key, (Instant, T)>,
}

impl<T: Clone> Cache<T> {
    /// Returns a cache that keeps at most `most` answers, each for `time_to_live`.
    pub(super) fn new(most: usize, time_to_live: Duration) -> Cache<T> {
        Cache {
            most,
            time_to_live,
            answers: HashMap::new(),
        }
    }

    /// Returns the answer about `key`, if there is one that still holds.
    pub(super) fn get(&self, key: &Key) -> Option<T> {
        let (ends, answer) = self.answers.get(key)?;
        (*ends > Instant::now()).then(|| answer.clone())
    }

    /// Keeps `answer` about `key`. If there is no room, removes the answer that would have ended
    /// first.
    pub(super) fn put(&mut self, key: Key, answer: T) {
        let now = Instant::now();
        if self.answers.len() >= self.most && !self.answers.contains_key(&key) {
            self.answers.retain(|_, (ends, _)| *ends > now);
            let first = self.answers.iter().min_by_key(|(_, (ends, _))| *ends);
            if self.answers.len() >= self.most
                && let Some(first) = first.map(|(key, _)| *key)
            {
                self.answers.remove(&first);
            }
        }
        self.answers.insert(key, (now + self.time_to_live, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn answers_end_and_are_bounded() {
        let mut cache = Cache::new(2, Duration::from_secs(10));
        cache.put([1; 32], 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        cache.put([2; 32], 2);
        cache.put([3; 32], 3);
        let kept = [1, 2, 3].map(|key| cache.get(&[key; 32]));
        assert_eq!(kept, [None, Some(2), Some(3)], "the oldest goes");
        assert_eq!(cache.answers.len(), 2);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(cache.get(&[2; 32]), Some(2));
        cache.put([2; 32], 4);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(cache.get(&[3; 32]), None, "its time is over");
        assert_eq!(cache.get(&[2; 32]), Some(4), "it was put again");
    }
}
