//! Logs changes by other programs that were repaired.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use crate::services::Changes;

/// Repairs of a sync that are named; the others are counted.
const NAMED: usize = 20;

/// If something is repaired again within this time, a program keeps changing it. Most of it is
/// compared with the kernel by full syncs alone, which may be minutes apart.
const QUIET: Duration = Duration::from_secs(600);

/// This many repairs of one object, none of them long after the one before, mean that a program
/// keeps changing it. Fewer may come from an administrator who flushes rules a few times.
const KEEPS_CHANGING: u32 = 6;

/// How many things are remembered; more are logged each time.
const MOST: usize = 1000;

/// Repairs of changes by other programs, until these have paused for ten minutes.
#[derive(Debug, Default)]
pub struct Repairs {
    recent: BTreeMap<String, Recent>,
    /// Whether the differences that this sync finds were written by another Tripod.
    taken_back: bool,
}

/// The last repair of something.
#[derive(Debug)]
struct Recent {
    at: Instant,
    /// How many there were.
    times: u32,
}

impl Recent {
    /// Returns whether a program keeps changing it.
    fn keeps_changing(&self) -> bool {
        self.times >= KEEPS_CHANGING
    }
}

impl Repairs {
    /// Begins a sync of `changes`: differences may have been written by another Tripod before it
    /// ended.
    pub fn begin(&mut self, changes: &Changes) {
        self.taken_back = changes.taken_back;
    }

    /// Logs the objects that a sync `repaired` after changes by other programs: each object by
    /// itself once, then together with others, and as an error when a program keeps changing it.
    /// Logs when no object is changed again and again any more.
    pub fn log(&mut self, repaired: &[String]) {
        self.log_at(repaired, Instant::now());
    }

    fn log_at(&mut self, repaired: &[String], now: Instant) {
        self.expire(now);
        if self.taken_back {
            if !repaired.is_empty() {
                let count = repaired.len();
                tracing::info!(
                    "rewrote what another Tripod process had written (differences: {count})"
                );
            }
            return;
        }
        let (mut new, mut again, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        for what in repaired {
            if let Some(recent) = self.recent.get_mut(what) {
                recent.at = now;
                recent.times = recent.times.saturating_add(1);
                match recent.times {
                    ..KEEPS_CHANGING => again.push(what),
                    KEEPS_CHANGING => kept.push(what),
                    _ => tracing::debug!("repaired {what} again"),
                }
                continue;
            }
            new.push(what);
            if self.recent.len() < MOST {
                let first = Recent { at: now, times: 1 };
                self.recent.insert(what.clone(), first);
            }
        }
        for what in new.iter().take(NAMED) {
            tracing::warn!("repaired {what}, which another program had changed");
        }
        if let Some(more) = new.len().checked_sub(NAMED).filter(|more| *more > 0) {
            tracing::warn!("repaired {more} more things that another program had changed");
        }
        if let Some(what) = together(&again) {
            tracing::warn!("repaired {what} again, which another program had changed");
        }
        if let Some(what) = together(&kept) {
            tracing::error!(
                "repaired {what} again, which another program keeps changing: find this program, \
                 such as another service proxy or a script, and stop it; further repairs are \
                 logged only with --v=2"
            );
        }
    }

    fn expire(&mut self, now: Instant) {
        let is_old = |_: &String, recent: &mut Recent| now.duration_since(recent.at) >= QUIET;
        let old = self.recent.extract_if(.., is_old);
        let ended = old.filter(|(_, recent)| recent.keeps_changing()).count();
        if ended > 0 && !self.recent.values().any(Recent::keeps_changing) {
            let minutes = QUIET.as_secs() / 60;
            tracing::info!(
                "no other program has kept changing objects of Tripod for {minutes} minutes"
            );
        }
    }
}

/// Names the first of the `things` and how many more there are; `None`: there are none.
fn together(things: &[&String]) -> Option<String> {
    let (first, more) = things.split_first()?;
    Some(match more.len() {
        0 => first.to_string(),
        more => format!("{first} and {more} more things"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::lines;

    /// The log of repairs at these seconds.
    fn logged(repairs: &[(u64, &[&str])]) -> Vec<String> {
        let start = Instant::now();
        lines(0, || {
            let mut log = Repairs::default();
            for (second, repaired) in repairs {
                let repaired: Vec<String> =
                    repaired.iter().map(|what| (*what).to_owned()).collect();
                log.log_at(&repaired, start + Duration::from_secs(*second));
            }
        })
    }

    #[test]
    fn what_is_changed_again_and_again_is_an_error_until_that_is_over() {
        let lines = logged(&[
            (0, &["a", "b"]),
            (30, &["a"]),
            (31, &["a"]),
            (32, &["a"]),
            (40, &["a", "c"]),
            (50, &["a"]),
            (90, &["a"]),
            (600, &[]),
            (690, &[]),
            (691, &[]),
            (692, &["a"]),
        ]);
        let again = "WARN repaired a again, which another program had changed";
        let expected = [
            "WARN repaired a, which another program had changed",
            "WARN repaired b, which another program had changed",
            again,
            again,
            again,
            "WARN repaired c, which another program had changed",
            again,
            "ERROR repaired a again, which another program keeps changing: find this",
            "for 10 minutes",
            "WARN repaired a, which another program had changed",
        ];
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, expected) in lines.iter().zip(expected) {
            let line = line.replace("  ", " ");
            assert!(line.contains(expected), "{lines:#?}");
        }
    }

    #[test]
    fn a_few_flushes_are_no_error() {
        let lines = logged(&[(0, &["a", "b"]), (60, &["a", "b"]), (300, &["a", "b"])]);
        assert!(
            !lines.iter().any(|line| line.contains("ERROR")),
            "{lines:#?}"
        );
        assert_eq!(lines.len(), 4, "{lines:#?}");
    }

    #[test]
    fn what_another_tripod_wrote_is_not_called_damage() {
        let lines = lines(0, || {
            let mut log = Repairs::default();
            for taken_back in [true, false] {
                log.begin(&Changes {
                    taken_back,
                    ..Changes::default()
                });
                log.log(&["a".to_owned()]);
            }
        });
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(
            lines[0].contains("another Tripod process had written"),
            "{lines:#?}"
        );
        assert!(
            lines[1].contains("repaired a, which another program"),
            "{lines:#?}"
        );
    }

    #[test]
    fn of_many_some_are_named() {
        let names: Vec<String> = (0..MOST + 5).map(|number| format!("n{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lines = logged(&[(0, &names), (1, &names)]);
        // Those that were not remembered are named again.
        assert_eq!(lines.len(), NAMED + 1 + 5 + 1, "{lines:#?}");
        assert!(
            lines[NAMED].contains("repaired 985 more things"),
            "{lines:#?}"
        );
        let last = lines.last().expect("a line");
        assert!(
            last.contains("repaired n0 and 999 more things again"),
            "{last}"
        );
    }
}
