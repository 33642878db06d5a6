//! Decides which events are written, and how: a stream of events about one object must not overload
//! the API server.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::{Event, Regarding};

/// Number of events about one object that may be written at once, and the time after which another
/// one may be (client-go's `EventSourceObjectSpamFilter`).
const BURST: u32 = 25;
const ANOTHER_AFTER: Duration = Duration::from_secs(5 * 60);

/// An event that equals one within this time counts as its repetition (`finishTime` of client-go's
/// `tools/events`).
const SERIES: Duration = Duration::from_secs(6 * 60);

/// Maximum number of entries of each kind that are remembered; the oldest are dropped first
/// (client-go's `maxLruCacheEntries`).
const MOST: usize = 4096;

/// The handling of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is written as a new object.
    Create,
    /// It is the `count`-th repetition of the event of that name.
    Count {
        /// Name of the event's object.
        name: String,
        /// Number of occurrences so far.
        count: i32,
    },
    /// Dropped, because there were too many about this object.
    Drop,
}

/// Remembers which events were written.
#[derive(Debug, Default)]
pub(super) struct Limit {
    budgets: HashMap<Regarding, Budget>,
    written: HashMap<Event, Written>,
}

/// A token bucket.
#[derive(Debug)]
struct Budget {
    /// The time at which the bucket is full again, with one token each
    /// `ANOTHER_AFTER`.
    paid_at: Instant,
}

#[derive(Debug)]
struct Written {
    name: String,
    count: i32,
    last: Instant,
}

impl Limit {
    /// Decides whether and how to post `event`, which happens now.
    pub(super) fn judge(&mut self, event: &Event) -> Verdict {
        let now = Instant::now();
        if !self.may_write(&event.regarding, now) {
            return Verdict::Drop;
        }
        match self.written.get_mut(event) {
            Some(written) if now - written.last < SERIES => {
                written.last = now;
                written.count = written.count.saturating_add(1);
                Verdict::Count {
                    name: written.name.clone(),
                    count: written.count,
                }
            }
            _ => Verdict::Create,
        }
    }

    /// Records that `event` was written as the object of that name.
    pub(super) fn created(&mut self, event: Event, name: String) {
        let now = Instant::now();
        make_room(&mut self.written, |written| written.last);
        let written = Written {
            name,
            count: 1,
            last: now,
        };
        self.written.insert(event, written);
    }

    /// Records that the object of `event` does not exist any more: the API
    /// server stores events for an hour by default.
    pub(super) fn is_gone(&mut self, event: &Event) {
        self.written.remove(event);
    }

    fn may_write(&mut self, regarding: &Regarding, now: Instant) -> bool {
        let burst = ANOTHER_AFTER * BURST;
        if let Some(budget) = self.budgets.get_mut(regarding) {
            let paid_at = budget.paid_at.max(now) + ANOTHER_AFTER;
            let may = paid_at <= now + burst;
            if may {
                budget.paid_at = paid_at;
            }
            return may;
        }
        make_room(&mut self.budgets, |budget| budget.paid_at);
        let paid_at = now + ANOTHER_AFTER;
        self.budgets.insert(regarding.clone(), Budget { paid_at });
        true
    }
}

/// Forgets the older half of the entries where there are too many.
fn make_room<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, age: impl Fn(&V) -> Instant) {
    if map.len() < MOST {
        return;
    }
    let mut ages: Vec<Instant> = map.values().map(&age).collect();
    ages.sort_unstable();
    let middle = ages[ages.len() / 2];
    map.retain(|_, value| age(value) > middle);
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::services::service_ports::service_name;

    fn event(service: usize, note: &str) -> Event {
        let service = service_name(&format!("web-{service}"));
        Event::unsupported(service, note.to_owned())
    }

    fn count(name: &str, count: i32) -> Verdict {
        Verdict::Count {
            name: name.to_owned(),
            count,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_has_a_burst_and_then_one_event_in_five_minutes() {
        let mut limit = Limit::default();
        let mut written = |notes: std::ops::Range<u32>| {
            let verdicts = notes.map(|note| limit.judge(&event(1, &note.to_string())));
            verdicts
                .filter(|verdict| *verdict == Verdict::Create)
                .count()
        };
        assert_eq!(written(0..1000), 25);
        advance(ANOTHER_AFTER * 2).await;
        assert_eq!(written(1000..2000), 2);
        advance(ANOTHER_AFTER * 1000).await;
        assert_eq!(written(2000..3000), 25);
        // Other objects have budgets of their own.
        assert_eq!(limit.judge(&event(2, "0")), Verdict::Create);
    }

    #[tokio::test(start_paused = true)]
    async fn what_repeats_is_counted() {
        let mut limit = Limit::default();
        let first = event(1, "no lc");
        assert_eq!(limit.judge(&first), Verdict::Create);
        // It could not be written.
        assert_eq!(limit.judge(&first), Verdict::Create);
        limit.created(first.clone(), "web-1.a".to_owned());
        for n in 2..5 {
            advance(SERIES / 2).await;
            assert_eq!(limit.judge(&first), count("web-1.a", n));
        }
        assert_eq!(limit.judge(&event(1, "no sed")), Verdict::Create);
        limit.is_gone(&first);
        assert_eq!(limit.judge(&first), Verdict::Create);
        limit.created(first.clone(), "web-1.b".to_owned());
        advance(SERIES).await;
        assert_eq!(limit.judge(&first), Verdict::Create);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_has_a_limit() {
        let mut limit = Limit::default();
        for service in 0..3 * MOST {
            advance(Duration::from_millis(1)).await;
            let event = event(service, "no lc");
            assert_eq!(limit.judge(&event), Verdict::Create);
            limit.created(event, service.to_string());
        }
        assert!(limit.budgets.len() <= MOST && limit.written.len() <= MOST);
        let last = 3 * MOST - 1;
        let found = limit.judge(&event(last, "no lc"));
        assert_eq!(found, count(&last.to_string(), 2));
    }
}
