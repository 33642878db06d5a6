//! Answers `/v1/status` and `/v1/health`.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::SystemTime,
};

use hyper::StatusCode;
use net::{Family, PerFamily};

use super::{StatusApi, refused, seconds, services::hides, time, trouble, unsupported};
use crate::{
    runner::{
        self,
        health::Snapshot,
        status::{FamilyStatus, Position},
    },
    serve::http::Answer,
    services::{ServiceAddresses, ServicePort, ServicePorts},
    status_api::{
        Conflict, Counts, Draining, Failing, FamilySync, Health, HealthCheckFailing, LastSync,
        Listed, Mode, ObjectKind, Objects, Progress, Status, Trouble, Unsupported, Unusable,
        VERSION,
    },
};

/// Maximum number of items of one kind that are listed; the number of all is given as well.
const MOST: usize = 100;

impl StatusApi {
    pub(super) fn status(&self) -> Status {
        let families = self.runner.families();
        let ports = self.runner.ports().unwrap_or_default();
        let objects = self.objects();
        let syncs = syncs(&families, &self.health);
        let failing = failing(families.iter());
        let health_checks_failing = self.health_checks_failing();
        let mut problems = problems(&objects, &syncs, failing.total);
        problems.extend(self.runner.node().map(|trouble| trouble.why));
        problems.extend(self.listeners.refused());
        let unusable = self.unusable();
        match unusable.total {
            0 => {}
            1 => problems.push("1 object is invalid".to_owned()),
            objects => problems.push(format!("{objects} objects are invalid")),
        }
        match self.health_check_ports_failing() {
            0 => {}
            1 => problems.push("1 health-check node port cannot be served".to_owned()),
            ports => problems.push(format!("{ports} health-check node ports cannot be served")),
        }
        let is_served =
            |port: &&Arc<ServicePort>| families.get(port.name.family).not_served().is_none();
        Status {
            api_version: VERSION.to_owned(),
            kind: "Status".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            node: self.about.node.clone(),
            started: time(self.about.started),
            healthy: problems.is_empty(),
            problems,
            gave_way: self.handover.has_successor(),
            mode: Mode {
                name: self.about.mode.to_string(),
                passed_over: self.about.passed_over.clone(),
                named: self.about.named,
                lost: self.about.lost.clone(),
            },
            objects,
            syncs,
            draining: draining(&families),
            counts: self.counts(ports.values().filter(is_served), &ports),
            failing,
            health_checks_failing,
            unusable,
            unsupported: self.unsupported(),
            conflicts: self.conflicts(&ports),
        }
    }

    pub(super) fn health(&self) -> Health {
        health(&self.runner.families(), &self.health)
    }

    /// Returns the answer to questions that depend on objects, while those are unknown: syncs, and
    /// with them questions to the mode, wait for them. `None`: they are known.
    pub(super) fn unknown(&self) -> Option<Answer> {
        if self.runner.knows_objects() {
            return None;
        }
        let objects = self.objects();
        let waiting: Vec<String> = objects.kinds.iter().filter_map(waiting).collect();
        let mut why = "objects are not known yet".to_owned();
        if !waiting.is_empty() {
            why.push_str(&format!(": {}", waiting.join("; ")));
        }
        why.push_str("; ask again when they are; tripod status shows the progress");
        Some(refused(StatusCode::SERVICE_UNAVAILABLE, why))
    }

    /// Returns the answer to questions to the mode, while it cannot answer: the objects are
    /// unknown, or the first sync, which may take long, has not ended. `None`: it can answer.
    pub(super) fn not_ready(&self) -> Option<Answer> {
        self.unknown().or_else(|| {
            let why = first_sync(&self.runner.families(), SystemTime::now())?;
            Some(refused(StatusCode::SERVICE_UNAVAILABLE, why))
        })
    }

    fn objects(&self) -> Objects {
        let kinds = self.objects.kinds().into_iter();
        let kinds = kinds.map(|(name, kind)| ObjectKind {
            name: name.to_owned(),
            complete: kind.complete,
            required: kind.required,
            trouble: kind.trouble.as_ref().map(trouble),
            faults: kind.faults,
        });
        Objects {
            source: self.about.source.clone(),
            kinds: kinds.collect(),
        }
    }

    fn health_checks_failing(&self) -> Listed<HealthCheckFailing> {
        let refused = self.health_listeners.refused();
        Listed::first(refused, MOST, |refused| HealthCheckFailing {
            service: refused.service.to_string(),
            address: refused.address.to_string(),
            since: time(refused.trouble.since),
            why: refused.trouble.why,
        })
    }

    fn unusable(&self) -> Listed<Unusable> {
        let unusable = self.objects.unusable();
        Listed::first(unusable, MOST, |(name, unusable)| Unusable {
            object: name.to_string(),
            since: time(unusable.trouble.since),
            why: unusable.trouble.why,
            stays: unusable.stays,
        })
    }

    /// Counts the health-check node ports that cannot be served at some address.
    fn health_check_ports_failing(&self) -> usize {
        let refused = self.health_listeners.refused().into_iter();
        let ports = refused.map(|refused| (refused.service, refused.address.port()));
        ports.collect::<BTreeSet<_>>().len()
    }

    /// Counts the objects that are `served`, among all `ports`.
    fn counts<'a>(
        &self,
        served: impl Iterator<Item = &'a Arc<ServicePort>>,
        ports: &ServicePorts,
    ) -> Counts {
        let addresses = ServiceAddresses::of(ports.values());
        let mut services = HashSet::new();
        let mut counts = Counts::default();
        for port in served {
            services.insert(&port.name.service);
            counts.service_ports += 1;
            counts.endpoints += port.endpoints.all.len();
            let usage = port.endpoints.usage();
            let used = usage.filter(|(_, why)| why.is_none()).count();
            let passed_over = self.passed_over(port, &addresses);
            counts.endpoints_in_use += match self.get_their_share(port, &passed_over) {
                true => used,
                false => used - passed_over.len(),
            };
        }
        counts.services = services.len();
        counts
    }

    fn conflicts(&self, ports: &ServicePorts) -> Listed<Conflict> {
        let open = self.listeners.open();
        let all = ports.values().flat_map(|port| {
            let lost = port.conflicts.iter();
            let lost = lost.map(|conflict| (&conflict.owner, conflict.to_string()));
            let hiding = hides(port, &open).map(|why| (&port.name, why));
            lost.chain(hiding)
                .map(|(owner, why)| (&port.name, owner, why))
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(name, ..)| *name);
        Listed::first(all, MOST, |(name, owner, why)| Conflict {
            service_port: name.to_string(),
            protocol: name.protocol.to_string(),
            owner: owner.to_string(),
            why,
        })
    }

    fn unsupported(&self) -> Listed<Unsupported> {
        self.runner.unsupported(|services| {
            // The ports of a Service usually have the same reasons.
            let reasons = services.iter().flat_map(|(service, ports)| {
                let reasons = ports.values().flatten();
                reasons.map(move |reason| (service, reason))
            });
            let all: BTreeSet<_> = reasons.collect();
            Listed::first(all, MOST, |(service, reason)| unsupported(service, reason))
        })
    }
}

/// Selects the part of the status that probes of the pod need.
pub(super) fn health(
    families: &PerFamily<FamilyStatus>,
    health: &runner::health::Health,
) -> Health {
    Health {
        api_version: VERSION.to_owned(),
        kind: "Health".to_owned(),
        syncs: syncs(families, health),
    }
}

fn syncs(families: &PerFamily<FamilyStatus>, health: &runner::health::Health) -> Vec<FamilySync> {
    let health = health.snapshot();
    let syncs = families.iter();
    syncs
        .map(|(family, status)| sync(family, status, &health))
        .collect()
}

fn sync(family: Family, status: &FamilyStatus, health: &Snapshot) -> FamilySync {
    let last = status.last.as_ref();
    let not_served = status.not_served().map(str::to_owned);
    FamilySync {
        family: family.to_string(),
        last: last.map(|sync| LastSync {
            ended: time(sync.ended),
            seconds: seconds(sync.took),
            full: sync.full,
        }),
        under_way_since: status.under_way.map(time),
        progress: status.position.map(progress),
        trouble: status.failure.as_ref().map(trouble),
        overdue: not_served.is_none() && !health.is_healthy(family),
        draining: last.map_or(0, |sync| sync.draining),
        not_served,
        empty: last.is_some_and(|sync| sync.empty),
    }
}

fn progress(position: Position) -> Progress {
    Progress {
        what: position.what.to_owned(),
        planned: position.planned,
        sent: position.sent,
        done: position.done,
        text: position.to_string(),
    }
}

fn draining(families: &PerFamily<FamilyStatus>) -> Listed<Draining> {
    let (mut total, mut items) = (0, Vec::new());
    for (_, status) in families.iter() {
        let Some(sync) = &status.last else { continue };
        total += sync.draining;
        let drains = sync.drains.iter().take(MOST - items.len());
        items.extend(drains.map(|drain| Draining {
            address: drain.address.clone(),
            endpoint: drain.endpoint.map(|endpoint| endpoint.to_string()),
        }));
    }
    Listed { total, items }
}

fn failing<'a>(families: impl Iterator<Item = (Family, &'a FamilyStatus)>) -> Listed<Failing> {
    let all = families.flat_map(|(family, status)| {
        let failures = &status.failures;
        let ports = failures.ports.iter().map(|(port, why)| (Some(port), why));
        let others = failures.unfinished.iter().map(|why| (None, why));
        let all = ports.chain(others);
        all.map(move |(port, why)| (family, port, why))
    });
    Listed::first(all, MOST, |(family, port, why)| Failing {
        service_port: port.map(ToString::to_string),
        protocol: port.map(|port| port.protocol.to_string()),
        family: family.to_string(),
        why: why.clone(),
    })
}

/// Says that the first sync is incomplete, with its progress in each of `families` at the time
/// `now`; `None` if it has ended, successfully or not.
fn first_sync(families: &PerFamily<FamilyStatus>, now: SystemTime) -> Option<String> {
    let is_again = |status: &FamilyStatus| status.last.is_none() && status.under_way.is_some();
    let waits = |status: &FamilyStatus| !status.first_sync_is_over() || is_again(status);
    families.iter().find(|(_, status)| waits(status))?;
    let words = families.iter().map(|(family, status)| {
        let since = |since| now.duration_since(since).unwrap_or_default().as_secs();
        match (&status.last, status.under_way, &status.failure) {
            (Some(_), ..) => format!("{family} is applied"),
            (None, Some(begun), _) => {
                let position = status.position.map(|position| format!(", {position}"));
                let (seconds, position) = (since(begun), position.unwrap_or_default());
                format!("{family} has been in progress for {seconds} s{position}")
            }
            (None, None, Some(trouble)) => format!("{family} failed: {}", trouble.why),
            (None, None, None) => format!("{family} has not begun"),
        }
    });
    let words: Vec<String> = words.collect();
    Some(format!(
        "the first sync is not complete: {}; ask again when it is; tripod services shows what will \
         be served",
        words.join(", ")
    ))
}

/// Explains why the objects of that kind are unknown; `None` if they are known.
fn waiting(kind: &ObjectKind) -> Option<String> {
    let name = &kind.name;
    match (&kind.trouble, kind.complete) {
        (_, true) => None,
        (Some(Trouble { why, .. }), false) => Some(format!("{name} cannot be read: {why}")),
        (None, false) => Some(format!("{name} are being read")),
    }
}

/// Returns the reasons why the proxy is not healthy.
fn problems(objects: &Objects, syncs: &[FamilySync], failing: usize) -> Vec<String> {
    let mut problems = Vec::new();
    for kind in objects.kinds.iter().filter(|kind| kind.required) {
        problems.extend(waiting(kind));
        if let (Some(Trouble { why, .. }), true) = (&kind.trouble, kind.complete) {
            let name = &kind.name;
            problems.push(format!(
                "{name} cannot be followed, the last known state stays applied: {why}"
            ));
        }
    }
    let kinds = objects.kinds.iter();
    let faults = kinds.flat_map(|kind| kind.faults.iter().map(move |why| (&kind.name, why)));
    problems.extend(faults.map(|(name, why)| format!("{name}: {why}")));
    let mut required = objects.kinds.iter().filter(|kind| kind.required);
    if required.any(|kind| !kind.complete) {
        let why = "no sync yet: only what an earlier process left in the kernel is served";
        problems.push(why.to_owned());
    }
    for sync in syncs {
        let family = &sync.family;
        match (&sync.trouble, &sync.last) {
            (Some(Trouble { why, .. }), _) => {
                problems.push(format!("the last sync of {family} failed: {why}"));
            }
            (None, None) if problems.is_empty() => {
                problems.push(format!("no sync of {family} has ended yet"));
            }
            _ => {}
        }
        if sync.overdue {
            problems.push(format!("changes of {family} have waited for too long"));
        }
    }
    if failing > 0 {
        problems.push(format!("{failing} things are not applied"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{runner::status::SuccessfulSync, trouble};

    #[test]
    fn the_first_sync_is_waited_for_until_it_ends() {
        let begun = SystemTime::UNIX_EPOCH;
        let now = begun + Duration::from_secs(7);
        let new = FamilyStatus::default;
        let under_way = FamilyStatus {
            under_way: Some(begun),
            ..new()
        };
        let failed = FamilyStatus {
            failure: Some(trouble::Trouble {
                since: begun,
                why: "no lock".to_owned(),
            }),
            ..new()
        };
        let in_force = FamilyStatus {
            last: Some(SuccessfulSync {
                ended: begun,
                took: Duration::ZERO,
                full: true,
                draining: 0,
                drains: [].into(),
                not_served: None,
                empty: false,
            }),
            failures: Arc::default(),
            ..new()
        };
        let again = FamilyStatus {
            under_way: Some(begun),
            ..in_force.clone()
        };
        let counted = FamilyStatus {
            position: Some(Position {
                what: "virtual servers",
                planned: 20_000,
                sent: 4_000,
                done: 2_000,
            }),
            ..under_way.clone()
        };
        for (v4, v6, expected) in [
            (
                counted,
                new(),
                "IPv4 has been in progress for 7 s, 2000 of 20000 virtual servers are done, 2000 \
                 more are sent and not confirmed yet, IPv6 has not begun",
            ),
            (new(), new(), "IPv4 has not begun, IPv6 has not begun"),
            (
                in_force.clone(),
                under_way.clone(),
                "IPv4 is applied, IPv6 has been in progress for 7 s",
            ),
            (
                failed.clone(),
                under_way,
                "IPv4 failed: no lock, IPv6 has been in progress for 7 s",
            ),
            (in_force, again, ""),
            (failed.clone(), failed, ""),
        ] {
            let found = first_sync(&PerFamily { v4, v6 }, now).unwrap_or_default();
            assert_eq!(found.is_empty(), expected.is_empty(), "{found}");
            assert!(found.contains(expected), "{found}");
        }
    }
}
