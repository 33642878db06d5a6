//! Limits how often similar messages about one object are logged: a Service that changes many times
//! a second must neither fill the disk nor hide messages about others.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

/// Number of messages from one place in the code about one object that are logged at once, and the
/// time after which another one is.
const BURST: u32 = 5;
const ANOTHER_AFTER: Duration = Duration::from_secs(20);

/// Maximum number of messages and objects that are remembered. Those that are no longer limited are
/// forgotten first.
const MOST: usize = 8192;

/// Budgets of recent messages.
#[derive(Debug, Default)]
pub(super) struct Limit {
    budgets: HashMap<u64, Budget>,
}

/// A token bucket.
#[derive(Debug)]
struct Budget {
    /// When the bucket is full again.
    full_at: Instant,
    /// Number of messages left out since the last logged one.
    left_out: u64,
}

/// Whether to log a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Log,
    /// Log, with a note: the last message for some time, or the first one after others were left
    /// out.
    LogWith(String),
    LeaveOut,
}

impl Limit {
    /// Decides whether to log a message from this place in the code now. The message names the
    /// object that it is about.
    pub(super) fn judge(&mut self, place: impl Hash, message: &str, now: Instant) -> Verdict {
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        let Some(object) = object(message) else {
            return Verdict::Log;
        };
        object.hash(&mut hasher);
        self.make_room(now);
        let budget = self.budgets.entry(hasher.finish()).or_insert(Budget {
            full_at: now,
            left_out: 0,
        });
        let full_at = budget.full_at.max(now) + ANOTHER_AFTER;
        if full_at > now + ANOTHER_AFTER * BURST {
            budget.left_out += 1;
            return Verdict::LeaveOut;
        }
        budget.full_at = full_at;
        let seconds = ANOTHER_AFTER.as_secs();
        match std::mem::take(&mut budget.left_out) {
            0 if full_at + ANOTHER_AFTER > now + ANOTHER_AFTER * BURST => Verdict::LogWith(
                format!("similar messages are logged at most every {seconds} s"),
            ),
            0 => Verdict::Log,
            left_out => Verdict::LogWith(format!("{left_out} similar messages were suppressed")),
        }
    }

    fn make_room(&mut self, now: Instant) {
        if self.budgets.len() >= MOST {
            self.budgets.retain(|_, budget| budget.full_at > now);
        }
        if self.budgets.len() >= MOST {
            self.budgets.clear();
        }
    }
}

/// Finds the first object that a message names, as `namespace/name`.
fn object(message: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '/');
    let mut words = message.split(|c| !is_name(c));
    words.find(|word| {
        let Some((namespace, name)) = word.split_once('/') else {
            return false;
        };
        let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let is_network = is_number(namespace) && is_number(name);
        let is_path = namespace.is_empty() || name.is_empty() || name.contains('/');
        !is_network && !is_path
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_the_first_name_in_a_message() {
        for (message, expected) in [
            ("Service ns/web: no lc", Some("ns/web")),
            ("Services shop/a-b.c: it stays", Some("shop/a-b.c")),
            (
                "not applied service=ns/web:http protocol=TCP",
                Some("ns/web"),
            ),
            ("cannot read /run/tripod/tripod.sock: busy", None),
            ("10.0.0.0/8 is too long", None),
            ("started", None),
        ] {
            assert_eq!(object(message), expected, "{message}");
        }
    }

    #[test]
    fn an_object_has_a_burst_and_then_a_message_now_and_then() {
        let mut limit = Limit::default();
        let start = Instant::now();
        let mut logged = |name: &str, from: u64, to: u64| {
            let times = (from * 45..to * 45).map(|n| start + Duration::from_millis(n * 22));
            let verdicts =
                times.map(|now| limit.judge(1, &format!("Service {name}: {now:?}"), now));
            verdicts
                .filter(|verdict| *verdict != Verdict::LeaveOut)
                .count()
        };
        assert_eq!(logged("ns/storm", 0, 10), 5);
        // Others have budgets of their own.
        assert_eq!(logged("ns/quiet", 10, 11), 5);
        assert_eq!(logged("ns/storm", 11, 111), 5);
        assert_eq!(logged("ns/storm", 1000, 1010), 5);
    }

    #[test]
    fn what_was_left_out_is_counted() {
        let mut limit = Limit::default();
        let now = Instant::now();
        let mut judge = |place, now| limit.judge(place, "Service ns/web: odd", now);
        for _ in 1..BURST {
            assert_eq!(judge(1, now), Verdict::Log);
        }
        let last = Verdict::LogWith("similar messages are logged at most every 20 s".to_owned());
        assert_eq!(judge(1, now), last);
        assert_eq!(judge(1, now), Verdict::LeaveOut);
        assert_eq!(judge(1, now), Verdict::LeaveOut);
        // Another message about the same object.
        assert_eq!(judge(2, now), Verdict::Log);
        let counted = Verdict::LogWith("2 similar messages were suppressed".to_owned());
        assert_eq!(judge(1, now + ANOTHER_AFTER), counted);
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut limit = Limit::default();
        let now = Instant::now();
        for n in 0..3 * MOST {
            assert_eq!(
                limit.judge(1, &format!("Service ns/s-{n}"), now),
                Verdict::Log
            );
        }
        assert!(limit.budgets.len() <= MOST);
    }
}
