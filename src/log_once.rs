//! Messages that are logged once for as long as they hold.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

/// Remembers which messages were logged.
///
/// ```
/// # use tripod::log_once::LogOnce;
/// let mut logged = LogOnce::default();
/// assert_eq!(logged.replace(["full".to_owned()]), ["full"]);
/// assert_eq!(logged.replace(["full".to_owned()]), [""; 0]);
/// assert_eq!(logged.replace([]), [""; 0]);
/// assert_eq!(logged.replace(["full".to_owned()]), ["full"], "it came back");
/// ```
#[derive(Debug, Default)]
pub struct LogOnce {
    logged: BTreeSet<String>,
}

impl LogOnce {
    /// Returns true if `message` was not logged yet, and counts it as logged.
    pub fn is_new(&mut self, message: &str) -> bool {
        !self.logged.contains(message) && self.logged.insert(message.to_owned())
    }

    /// Returns true unless `message`, the only one that holds now, was logged by the
    /// last call.
    pub fn differs(&mut self, message: &str) -> bool {
        !self.replace([message.to_owned()]).is_empty()
    }

    /// Forgets all messages, as none holds any more. Returns true if one was logged.
    pub fn end(&mut self) -> bool {
        !std::mem::take(&mut self.logged).is_empty()
    }

    /// Returns those messages of `current`, all that hold now, that were not logged
    /// yet, and counts them as logged. The others are forgotten: they are new when
    /// they hold again.
    pub fn replace(&mut self, current: impl IntoIterator<Item = String>) -> Vec<String> {
        let current: BTreeSet<String> = current.into_iter().collect();
        let new = current.difference(&self.logged).cloned().collect();
        self.logged = current;
        new
    }
}

/// Remembers whether something was logged, which threads may ask at the same time.
#[derive(Debug, Default)]
pub struct LoggedFlag(AtomicBool);

impl LoggedFlag {
    /// Returns true for the first call.
    pub fn is_first(&self) -> bool {
        !self.0.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_new_until_it_was_logged_and_after_it_ended() {
        let mut logged = LogOnce::default();
        assert!(logged.is_new("a"));
        assert!(!logged.is_new("a"));
        let both = ["b".to_owned(), "a".to_owned()];
        assert_eq!(logged.replace(both), ["b"]);
        assert_eq!(logged.replace(["b".to_owned()]), [""; 0]);
        assert!(logged.is_new("a"), "it held no more");
        assert!(logged.differs("c") && !logged.differs("c"));
        assert!(logged.differs("d") && logged.differs("c"));
        assert!(logged.end() && !logged.end());
    }
}
