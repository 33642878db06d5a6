//! Messages that are logged once for as long as they hold.

use std::{
    collections::BTreeSet,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
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

    /// Forgets `message`, which does not hold any more. Returns true if it was logged.
    pub fn is_over(&mut self, message: &str) -> bool {
        self.logged.remove(message)
    }

    /// Logs which of the logged messages are not among `current`, all that hold now, and
    /// forgets them.
    pub fn end_others(&mut self, current: &[String]) {
        for over in self.over(current) {
            tracing::info!("resolved: {over}");
            self.logged.remove(&over);
        }
    }

    fn over(&self, current: &[String]) -> Vec<String> {
        let logged = self.logged.iter();
        let over = logged.filter(|message| !current.contains(message));
        over.cloned().collect()
    }

    /// Returns those messages of `current`, all that hold now, that were not logged yet, and counts
    /// them as logged. The others are forgotten, so they are new if they hold again.
    pub fn replace(&mut self, current: impl IntoIterator<Item = String>) -> Vec<String> {
        let current: BTreeSet<String> = current.into_iter().collect();
        let new = current.difference(&self.logged).cloned().collect();
        self.logged = current;
        new
    }
}

/// Remembers whether something was logged that happens again and again, for one connection and not
/// for the next; threads may ask at the same time. It is over when it has not happened for a
/// minute, so that a condition that comes and goes does not fill the log.
#[derive(Debug, Default)]
pub struct LoggedFlag {
    /// When it last happened, in seconds as [`now`] returns them; 0: it was not logged, or is over.
    last: AtomicU64,
}

/// Seconds without it after which something is over.
const QUIET: u64 = 60;

/// Returns the time in seconds, from 1 on.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_secs() + 1
}

impl LoggedFlag {
    /// Records that it happens. Returns true if that should be logged: the first time, and the
    /// first time after it was over.
    pub fn is_first(&self) -> bool {
        self.happens(now())
    }

    /// Records that it does not happen now. Returns true once when it is over.
    pub fn is_over(&self) -> bool {
        // Called for each connection: mostly there is nothing to compare with the time.
        self.last.load(Relaxed) != 0 && self.ends(now())
    }

    fn happens(&self, now: u64) -> bool {
        self.last.swap(now, Relaxed) == 0
    }

    fn ends(&self, now: u64) -> bool {
        let is_quiet = |last| last != 0 && now.saturating_sub(last) >= QUIET;
        let ended = (self.last).fetch_update(Relaxed, Relaxed, |last| is_quiet(last).then_some(0));
        ended.is_ok()
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
        assert!(logged.is_new("a") && logged.is_over("a") && !logged.is_over("a"));
    }

    #[test]
    fn what_holds_no_more_is_named_until_it_is_forgotten() {
        let mut logged = LogOnce::default();
        let [a, b] = ["a", "b"].map(str::to_owned);
        logged.replace([a.clone(), b.clone()]);
        let left = [b];
        assert_eq!(logged.over(&left), [a]);
        logged.end_others(&left);
        assert_eq!(logged.over(&left), [""; 0]);
        assert!(!logged.is_new(&left[0]));
    }

    #[test]
    fn what_comes_and_goes_is_over_after_a_minute_without_it() {
        let flag = LoggedFlag::default();
        assert!(!flag.is_over() && !flag.ends(100), "it never happened");
        assert!(flag.happens(100) && !flag.happens(130));
        assert!(!flag.ends(189), "59 s after it last happened");
        assert!(flag.ends(190) && !flag.ends(191), "once");
        assert!(flag.happens(200), "it came back");
        assert!(LoggedFlag::default().is_first());
    }
}
