//! Notices that another program changes the same thing again and again.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use crate::net::Family;

/// This many repairs within [`WITHIN`] are no accident.
const MANY: usize = 3;
const WITHIN: Duration = Duration::from_secs(60);

/// Repairs of what other programs had changed, of one family.
#[derive(Debug, Default)]
pub struct Repairs {
    /// The times of the last ones.
    recent: VecDeque<Instant>,
    /// Whether it was logged that they do not end.
    contested: bool,
}

/// How a repair is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repair {
    /// As a single repair, with a warning.
    Single,
    /// As an error: this one shows that they do not end.
    Contested,
    /// At debug level only: it was logged already that they do not end.
    AsBefore,
}

impl Repairs {
    /// Logs once that they ended, if they were many. To be called now and then.
    pub fn check(&mut self, family: Family) {
        if self.have_ended(Instant::now()) {
            tracing::info!("{family}: no other program changed our rules for a minute");
        }
    }

    fn have_ended(&mut self, now: Instant) -> bool {
        self.recent.retain(|at| now.duration_since(*at) < WITHIN);
        self.recent.is_empty() && mem::replace(&mut self.contested, false)
    }

    /// Logs that `repair` was necessary; one by one until they are many.
    pub fn log(&mut self, family: Family, repair: &str) {
        match self.count(Instant::now()) {
            Repair::Single => tracing::warn!("{family}: {repair}"),
            Repair::Contested => tracing::error!(
                "{family}: {repair}; repaired {MANY} times within a minute, so another program \
                 keeps changing these objects; find it (another service proxy, a firewall service \
                 or a script), and stop it or exclude them from it; further repairs are logged only \
                 with --v=2"
            ),
            Repair::AsBefore => tracing::debug!("{family}: {repair}"),
        }
    }

    fn count(&mut self, now: Instant) -> Repair {
        self.have_ended(now);
        self.recent.push_back(now);
        if self.contested {
            // More of them would add nothing.
            while self.recent.len() > MANY {
                self.recent.pop_front();
            }
            return Repair::AsBefore;
        }
        self.contested = self.recent.len() >= MANY;
        if self.contested {
            Repair::Contested
        } else {
            Repair::Single
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_repair_within_a_minute_says_so_until_a_minute_is_quiet() {
        use Repair::{AsBefore, Contested, Single};
        let start = Instant::now();
        let mut repairs = Repairs::default();
        for (second, expected) in [
            (0, Single),
            (59, Single),
            (61, Single),
            (118, Contested),
            (119, AsBefore),
            (178, AsBefore),
            (237, AsBefore),
            (298, Single),
            (299, Single),
            (300, Contested),
        ] {
            let at = start + Duration::from_secs(second);
            assert_eq!(repairs.count(at), expected, "after {second} s");
        }
        let ended =
            |repairs: &mut Repairs, second| repairs.have_ended(start + Duration::from_secs(second));
        assert!(!ended(&mut repairs, 359));
        assert!(
            ended(&mut repairs, 360) && !ended(&mut repairs, 361),
            "once"
        );
    }
}
