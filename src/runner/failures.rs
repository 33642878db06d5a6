//! Logs each failure once, and once more when it is resolved.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use hashbrown::HashMap;
use net::{Family, PerFamily};
use tokio::time::Instant;

use super::schedule::Outcome;
use crate::{
    config::ModeName, duration, log_once::LogOnce, modes::FailedPorts, services::ServicePortName,
};

/// Up to this number of ServicePorts that fail for the same reason get a log line each; more share
/// one line.
const LOGGED_ALONE: usize = 3;

/// Failures that were logged and still exist.
#[derive(Debug, Default)]
pub(super) struct LoggedFailures {
    families: PerFamily<Arc<Failures>>,
    syncs: PerFamily<FailedSyncs>,
    /// Why the addresses of this node cannot be listed.
    addresses: LogOnce,
}

/// Syncs of one family that failed since the last successful one.
#[derive(Debug, Default)]
struct FailedSyncs {
    /// When the first of them ended; `None` if none failed.
    since: Option<Instant>,
    times: u32,
    logged: LogOnce,
}

/// Parts of the desired state of one family that are not applied.
#[derive(Debug, Default)]
pub struct Failures {
    /// ServicePorts, each with the reason.
    pub ports: FailedPorts,
    /// Other work that was not done, each with the reason.
    pub unfinished: BTreeSet<String>,
}

impl LoggedFailures {
    /// Logs new failures among `failed` and `unfinished`, the result of one sync of `family`, and
    /// earlier failures that are resolved. Returns the outcome of the sync.
    pub(super) fn replace(
        &mut self,
        family: Family,
        failed: FailedPorts,
        unfinished: Vec<String>,
    ) -> Outcome {
        let now = Failures {
            ports: failed,
            unfinished: unfinished.into_iter().collect(),
        };
        let before = self.families.get_mut(family);
        let mut new = log_ports(&before.ports, &now.ports);
        for why in now.unfinished.difference(&before.unfinished) {
            new = true;
            tracing::error!("{family}: {why}");
        }
        for why in before.unfinished.difference(&now.unfinished) {
            // Not resolved if it only fails for another reason now.
            if !now.unfinished.iter().any(|now| what(now) == what(why)) {
                tracing::info!("{family}: resolved: {why}");
            }
        }
        *before = Arc::new(now);
        if before.ports.is_empty() && before.unfinished.is_empty() {
            Outcome::Done
        } else {
            Outcome::Partly { new_failures: new }
        }
    }

    /// Logs that a sync of `family` failed at `now`. Each reason is logged once until a sync
    /// succeeds, because retries may continue for hours.
    pub(super) fn sync_failed(&mut self, mode: ModeName, family: Family, why: &str, now: Instant) {
        let failed = self.syncs.get_mut(family);
        failed.since.get_or_insert(now);
        failed.times += 1;
        if failed.logged.is_new(why) {
            tracing::error!(%mode, "sync of {family} failed, will be tried again: {why}");
        } else {
            tracing::debug!(%mode, "sync of {family} failed as before: {why}");
        }
    }

    /// Logs at `now` that syncs of `family` succeed again, if any failed.
    pub(super) fn sync_in_force(&mut self, family: Family, now: Instant) {
        let failed = std::mem::take(self.syncs.get_mut(family));
        if let Some(since) = failed.since {
            // Milliseconds are precise enough for the log.
            let took = Duration::from_millis((now - since).as_millis() as u64);
            let took = duration::format(took);
            tracing::info!(
                "syncs of {family} succeed again, {took} after the first of {} failures",
                failed.times
            );
        }
    }

    /// Logs that the addresses of this node could not be listed; each reason once.
    pub(super) fn addresses_unlisted(&mut self, error: &io::Error) {
        let why = error.to_string();
        if self.addresses.differs(&why) {
            tracing::warn!(
                "cannot list the addresses of this node; node ports stay at the last known ones: \
                 {why}"
            );
        }
    }

    /// Logs that the addresses are known again, if they could not be listed before.
    pub(super) fn addresses_listed(&mut self) {
        if self.addresses.end() {
            tracing::info!("the addresses of this node are known again");
        }
    }

    pub(super) fn of(&self, family: Family) -> Arc<Failures> {
        Arc::clone(self.families.get(family))
    }

    /// Number of ServicePorts that are not applied.
    pub(super) fn service_ports(&self) -> usize {
        let families = self.families.iter();
        families.map(|(_, failures)| failures.ports.len()).sum()
    }
}

/// Logs ServicePorts that have failed `now` for the first time or for another reason than `before`,
/// and those that are applied again. Returns true if a ServicePort fails that did not fail before.
fn log_ports(before: &FailedPorts, now: &FailedPorts) -> bool {
    if now.is_shared_with(before) {
        return false;
    }
    let changed = now
        .iter()
        .filter(|(name, why)| before.get(*name) != Some(*why));
    for (why, names) in by_reason(changed) {
        if names.len() <= LOGGED_ALONE {
            for name in names {
                tracing::error!(service = %name, protocol = %name.protocol, "not applied: {why}");
            }
        } else if let [first, others @ ..] = &*names {
            let count = others.len();
            tracing::error!("{first} and {count} more ServicePorts are not applied: {why}");
        }
    }
    let over = before.over(now).into_iter();
    let over = over.filter_map(|name| before.get_key_value(name));
    for (_, names) in by_reason(over) {
        if names.len() <= LOGGED_ALONE {
            for name in names {
                tracing::info!(service = %name, protocol = %name.protocol, "applied again");
            }
        } else if let [first, others @ ..] = &*names {
            let count = others.len();
            tracing::info!("{first} and {count} more ServicePorts are applied again");
        }
    }
    now.keys().any(|name| !before.contains_key(name))
}

/// Groups ServicePorts by reason, in the order in which the reasons first appear.
fn by_reason<'a>(
    failed: impl Iterator<Item = (&'a ServicePortName, &'a String)>,
) -> Vec<(&'a str, Vec<&'a ServicePortName>)> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut reasons: Vec<(&str, Vec<&ServicePortName>)> = Vec::new();
    for (name, why) in failed {
        let place = *places.entry(why).or_insert(reasons.len());
        match reasons.get_mut(place) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons
}

/// The work that was not done, without the reason after the last colon.
fn what(unfinished: &str) -> &str {
    unfinished
        .rsplit_once(": ")
        .map_or(unfinished, |(what, _)| what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{log::lines, services::service_ports::port_name};

    /// Lines that `body` logs: level, then message.
    fn logged(body: impl FnOnce(&mut LoggedFailures)) -> Vec<String> {
        let lines = lines(0, || body(&mut LoggedFailures::default()));
        let lines = lines.iter().filter_map(|line| line.split_once(' '));
        lines.map(|(_, line)| line.trim().to_owned()).collect()
    }

    #[test]
    fn a_sync_that_fails_again_and_again_is_logged_once_and_when_that_is_over() {
        let now = Instant::now();
        let log = logged(|failures| {
            let mut fail = |family, why, after| {
                let at = now + Duration::from_secs(after);
                failures.sync_failed(ModeName::Ipvs, family, why, at);
            };
            for (why, after) in [
                ("no memory", 0),
                ("no memory", 1),
                ("busy", 2),
                ("no memory", 5),
            ] {
                fail(Family::V4, why, after);
            }
            fail(Family::V6, "no memory", 5);
            let over = now + Duration::from_millis(12_300);
            failures.sync_in_force(Family::V4, over);
            failures.sync_in_force(Family::V4, over);
            failures.sync_failed(ModeName::Ipvs, Family::V4, "busy", over);
        });
        let failed = |family, why| {
            format!("ERROR sync of {family} failed, will be tried again: {why} mode=ipvs")
        };
        let expected = [
            failed("IPv4", "no memory"),
            failed("IPv4", "busy"),
            failed("IPv6", "no memory"),
            "INFO syncs of IPv4 succeed again, 12.3s after the first of 4 failures".to_owned(),
            failed("IPv4", "busy"),
        ];
        assert_eq!(log, expected);
    }

    #[test]
    fn many_that_fail_for_one_reason_have_one_line() {
        let name = |number: usize| port_name(&format!("web:p{number:02}"));
        let failed = |ports: std::ops::Range<usize>, why: &str| -> FailedPorts {
            ports.map(|port| (name(port), why.to_owned())).collect()
        };
        let log = logged(|failures| {
            let mut both = failed(1..41, "full");
            both.add(name(0), "taken".to_owned());
            for failed in [both, failed(0..41, "full"), FailedPorts::default()] {
                failures.replace(Family::V4, failed, Vec::new());
            }
        });
        let [taken, full, also, over] = &log[..] else {
            panic!("{log:#?}");
        };
        assert!(
            taken.starts_with("ERROR not applied: taken service="),
            "{taken}"
        );
        let first = name(1);
        let expected = format!("ERROR {first} and 39 more ServicePorts are not applied: full");
        assert_eq!(*full, expected);
        assert!(also.contains("full") && also.contains("p00"), "{also}");
        assert_eq!(
            *over,
            format!(
                "INFO {} and 40 more ServicePorts are applied again",
                name(0)
            )
        );
    }

    #[test]
    fn what_is_unfinished_is_logged_once_and_when_it_is_no_longer_so() {
        let log = logged(|failures| {
            for unfinished in [&["A stays", "B stays"][..], &["B stays"], &["B stays"], &[]] {
                let unfinished = unfinished.iter().map(|why| (*why).to_owned());
                failures.replace(Family::V4, FailedPorts::default(), unfinished.collect());
            }
        });
        let expected = [
            "ERROR IPv4: A stays",
            "ERROR IPv4: B stays",
            "INFO IPv4: resolved: A stays",
            "INFO IPv4: resolved: B stays",
        ];
        assert_eq!(log, expected);
    }

    #[test]
    fn addresses_that_cannot_be_listed_are_logged_once_and_when_they_are_known() {
        let log = logged(|failures| {
            failures.addresses_listed();
            for why in ["busy", "busy"] {
                failures.addresses_unlisted(&io::Error::other(why));
            }
            failures.addresses_listed();
            failures.addresses_listed();
        });
        assert_eq!(log.len(), 2, "{log:?}");
        assert!(log[0].starts_with("WARN ") && log[0].ends_with(": busy"));
        assert_eq!(log[1], "INFO the addresses of this node are known again");
    }
}
