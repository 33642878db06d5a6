use super::*;

const MS: Duration = Duration::from_millis(1);

fn options() -> Options {
    Options {
        min_interval: 10 * MS,
        burst: 1,
        sync_period: 30_000 * MS,
        retry: 1_000 * MS,
    }
}

/// A scheduler, its clock, and syncs that take no time.
struct Clock {
    scheduler: SyncScheduler,
    start: Instant,
    now: Instant,
}

impl Clock {
    fn new(options: Options) -> Clock {
        let now = Instant::now();
        Clock {
            scheduler: SyncScheduler::new(options, now),
            start: now,
            now,
        }
    }

    /// Time in milliseconds at which the next sync is due.
    fn due(&self) -> u128 {
        let due = self.scheduler.due(self.now).max(self.now);
        (due - self.start).as_millis()
    }

    fn at(&mut self, ms: u32) -> &mut Self {
        self.now = self.start + MS * ms;
        self
    }

    fn request(&mut self) -> &mut Self {
        self.scheduler.request(Family::V4);
        self
    }

    /// Advances the clock until the sync is due, and has it end with `outcome`. Returns true if the
    /// sync period made it a full one.
    fn sync(&mut self, outcome: Outcome) -> bool {
        self.now = self.scheduler.due(self.now).max(self.now);
        let turns = self.scheduler.begin(self.now);
        for (family, turn) in turns {
            if turn.is_some() {
                self.scheduler.end(family, self.now, outcome);
            }
        }
        let full = turns.v4.is_some_and(|turn| turn.full);
        if full {
            self.scheduler.was_full(self.now);
        }
        full
    }
}

#[test]
fn the_first_request_is_due_at_once() {
    let mut clock = Clock::new(options());
    assert_eq!(clock.due(), 30_000, "nothing is due by itself");
    assert_eq!(clock.request().due(), 0);
}

#[test]
fn a_request_soon_after_a_sync_waits_for_the_minimum_interval() {
    let mut clock = Clock::new(options());
    clock.at(100).request().sync(Outcome::Done);
    assert_eq!(clock.at(103).request().due(), 110);
    assert_eq!(
        clock.at(105).request().due(),
        110,
        "and is one with the next"
    );
    clock.sync(Outcome::Done);
    assert_eq!(clock.due(), 30_000);
    assert_eq!(
        clock.at(500).request().due(),
        500,
        "after a quiet time it does not wait"
    );
}

#[test]
fn the_minimum_interval_begins_when_a_sync_ends() {
    let mut clock = Clock::new(options());
    clock.at(100).request();
    clock.scheduler.begin(clock.now);
    clock.at(170).request();
    clock.scheduler.end(Family::V4, clock.now, Outcome::Done);
    assert_eq!(clock.due(), 180);
}

#[test]
fn a_burst_is_used_up_and_grows_again() {
    let mut clock = Clock::new(Options {
        burst: 3,
        ..options()
    });
    let mut times = Vec::new();
    clock.at(100);
    for _ in 0..5 {
        times.push(clock.request().due());
        clock.sync(Outcome::Done);
    }
    assert_eq!(times, [100, 100, 100, 110, 120]);
    times.clear();
    clock.at(1_000);
    for _ in 0..4 {
        times.push(clock.request().due());
        clock.sync(Outcome::Done);
    }
    assert_eq!(times, [1_000, 1_000, 1_000, 1_010]);
}

#[test]
fn without_a_minimum_interval_nothing_waits() {
    let mut clock = Clock::new(Options {
        min_interval: Duration::ZERO,
        ..options()
    });
    for _ in 0..3 {
        assert_eq!(clock.at(100).request().due(), 100);
        clock.sync(Outcome::Done);
    }
}

#[test]
fn full_syncs_come_every_sync_period_whatever_else_is_synced() {
    let mut clock = Clock::new(options());
    for ms in [0, 10_000, 29_000] {
        assert!(!clock.at(ms).request().sync(Outcome::Done), "{ms}");
    }
    assert_eq!(clock.due(), 30_000);
    assert!(clock.sync(Outcome::Done));
    assert_eq!(clock.due(), 60_000);
    // A full sync for another reason counts, too.
    clock.at(50_000).request();
    clock.scheduler.begin(clock.now);
    clock.scheduler.end(Family::V4, clock.now, Outcome::Done);
    clock.scheduler.was_full(clock.now);
    assert_eq!(clock.due(), 80_000);
}

#[test]
fn failures_are_retried_after_a_pause_that_doubles_to_the_sync_period() {
    for outcome in [
        Outcome::Partly {
            new_failures: false,
        },
        Outcome::Failed,
    ] {
        let mut clock = Clock::new(options());
        clock.request().sync(outcome);
        let mut pauses = Vec::new();
        for _ in 0..4 {
            let before = clock.now;
            clock.sync(outcome);
            pauses.push((clock.now - before).as_millis());
        }
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000], "{outcome:?}");
        clock.sync(Outcome::Done);
        let now = (clock.now - clock.start).as_millis();
        assert_eq!(clock.due(), now + 30_000, "the full sync was a retry, too");
        clock.request().sync(outcome);
        let before = clock.now;
        clock.sync(outcome);
        assert_eq!(
            (clock.now - before).as_millis(),
            1_000,
            "the pause begins again"
        );
    }
}

#[test]
fn a_change_does_not_wait_for_the_retry_of_another() {
    let fails = Outcome::Partly {
        new_failures: false,
    };
    let mut clock = Clock::new(options());
    clock.request().sync(fails);
    assert_eq!(clock.at(100).request().due(), 100);
    clock.sync(fails);
    assert_eq!(clock.due(), 1_000, "nor does it put the retry off");
}

#[test]
fn a_change_after_nothing_worked_waits_but_not_for_a_long_retry() {
    let mut clock = Clock::new(options());
    clock.request().sync(Outcome::Failed);
    assert_eq!(clock.at(100).request().due(), 1_000);
    for _ in 0..3 {
        clock.sync(Outcome::Failed);
    }
    let now = (clock.now - clock.start).as_millis();
    assert_eq!(clock.due(), now + 8_000);
    assert_eq!(clock.request().due(), now + 1_000);
}

#[test]
fn a_family_that_fails_delays_nothing_of_the_other() {
    let (v4, v6) = (Family::V4, Family::V6);
    let mut clock = Clock::new(options());
    let begin = |clock: &mut Clock| {
        let now = clock.now;
        let turns = clock.scheduler.begin(now);
        turns.map(|_, turn| turn.map(|turn| turn.retry))
    };
    clock.scheduler.request(v6);
    let both = PerFamily {
        v4: Some(false),
        v6: Some(false),
    };
    assert_eq!(begin(clock.request()), both);
    clock.scheduler.end(v4, clock.now, Outcome::Done);
    clock.scheduler.end(v6, clock.now, Outcome::Failed);
    clock.scheduler.request(v6);
    assert_eq!(clock.at(100).due(), 1_000);
    assert_eq!(clock.request().due(), 100);
    let first = PerFamily {
        v4: Some(false),
        v6: None,
    };
    assert_eq!(begin(&mut clock), first);
    clock.scheduler.end(v4, clock.now, Outcome::Done);
    assert_eq!(clock.due(), 1_000, "it is tried again, all the same");
    let second = PerFamily {
        v4: None,
        v6: Some(true),
    };
    assert_eq!(begin(clock.at(1_000)), second);
}

#[test]
fn a_full_sync_that_failed_is_not_due_at_once() {
    let mut clock = Clock::new(options());
    assert_eq!(clock.due(), 30_000);
    assert!(clock.sync(Outcome::Failed));
    assert_eq!(clock.due(), 31_000);
}

#[test]
fn a_sync_asked_for_by_a_time_happens_once() {
    let mut clock = Clock::new(options());
    let second = clock.start + 1_000 * MS;
    clock.scheduler.sync_by(Family::V4, second);
    clock.scheduler.sync_by(Family::V4, second + 1_000 * MS);
    assert_eq!(clock.due(), 1_000);
    clock.sync(Outcome::Done);
    assert_eq!(clock.due(), 30_000);
}

proptest::proptest! {
    /// In all cases, at most burst + elapsed / min_interval syncs start, and no request waits
    /// longer than allowed.
    #[test]
    fn the_rate_is_bounded(
        burst in 1u32..5,
        gaps in proptest::collection::vec((0u32..30, 0u8..3), 1..200),
    ) {
        let mut clock = Clock::new(Options { burst, ..options() });
        let mut starts = Vec::new();
        let mut ms = 0;
        for (gap, kind) in gaps {
            ms += gap;
            if clock.now < clock.start + MS * ms {
                clock.at(ms);
            }
            let outcome = if kind == 0 { Outcome::Partly { new_failures: kind == 1 } } else { Outcome::Done };
            let asked = clock.now;
            clock.request().sync(outcome);
            proptest::prop_assert!(clock.now - asked <= 10 * MS);
            starts.push(clock.now);
        }
        for (i, first) in starts.iter().enumerate() {
            let window = starts[i..].iter().filter(|at| **at - *first < 50 * MS).count();
            proptest::prop_assert!(window as u32 <= burst + 5, "{window} in 50 ms");
        }
    }
}
