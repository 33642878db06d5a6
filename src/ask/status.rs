//! Prints the state of the proxy.

use super::{
    paint::{Tone, paint},
    times::{ago, length},
};
use crate::{
    cli::Probe,
    status_api::{FamilySync, Health, Listed, ObjectKind, Status},
};

/// Most items of each kind that are printed, unless all are requested.
const MOST: usize = 10;

/// Lists the reasons why a probe of the pod fails; empty if it does not.
pub(super) fn failing(health: &Health, probe: Probe) -> Vec<String> {
    let serves = |sync: &FamilySync| {
        // A family without Services does not show whether those of the other family are served.
        let counts = probe == Probe::Liveness || !sync.empty;
        sync.last.is_some() && sync.not_served.is_none() && counts
    };
    let serves_any = health.syncs.iter().any(serves);
    let why = |sync: &FamilySync| {
        let family = &sync.family;
        if serves_any && sync.overdue && sync.last.is_none() {
            // As for `/livez`: the node may not be able to serve the family.
            None
        } else if sync.overdue {
            Some(format!("changes of {family} have waited for too long"))
        } else if probe == Probe::Readiness && sync.last.is_none() {
            Some(format!("nothing of {family} is applied yet"))
        } else {
            None
        }
    };
    health.syncs.iter().filter_map(why).collect()
}

/// The text for a process that gave way.
const GAVE_WAY: &str =
    "another Tripod process has taken over; this one writes nothing until the other one has ended";

/// Width of the headings.
const HEADING: usize = 13;

const STAYS: &str = "; its last valid version stays in use";

/// Returns the lines, for people; all items of each kind if it is `wide`.
pub(super) fn table(status: &Status, wide: bool) -> String {
    let health = match status.healthy {
        true => paint(Tone::Good, "healthy"),
        false => paint(Tone::Bad, "not healthy"),
    };
    let Status {
        version, node, pid, ..
    } = status;
    let started = ago(&status.started);
    let mut sections = Sections(format!(
        "Tripod {version} on node {node} is {health} (process {pid}, started {started})\n"
    ));
    sections.toned("why", Tone::Bad, &status.problems);
    let gave_way = status.gave_way.then(|| GAVE_WAY.to_owned());
    sections.toned("gave way", Tone::Warning, gave_way.as_slice());
    sections.plain("mode", vec![status.mode.name.clone()]);
    sections.toned("passed over", Tone::Warning, &status.mode.passed_over);
    sections.toned("without", Tone::Warning, &status.mode.lost);
    let objects = &status.objects;
    let mut lines = vec![objects.source.clone()];
    let kinds = objects.kinds.iter();
    lines.extend(kinds.filter_map(|kind| object_kind(kind, wide)));
    sections.plain("objects", lines);
    sections.plain("last sync", status.syncs.iter().map(sync).collect());
    let draining = shown(&status.draining, wide, |draining| {
        let address = &draining.address;
        draining.endpoint.as_ref().map_or_else(
            || format!("{address}, no longer served"),
            |endpoint| format!("{endpoint} of {address}"),
        )
    });
    sections.plain("draining", draining);
    let counts = &status.counts;
    let mut required = objects.kinds.iter().filter(|kind| kind.required);
    let serving = if required.all(|kind| kind.complete) {
        format!(
            "{}, {}, {} of {} in use",
            number(counts.services, "Service"),
            number(counts.service_ports, "ServicePort"),
            counts.endpoints_in_use,
            number(counts.endpoints, "endpoint")
        )
    } else {
        "not known yet".to_owned()
    };
    sections.plain("serving", vec![serving]);
    let failing = shown(&status.failing, wide, |failing| {
        let whose = [&failing.service_port, &failing.protocol];
        let whose: Vec<&str> = whose.into_iter().flatten().map(String::as_str).collect();
        let whose = [whose, vec![&failing.family]].concat().join(" ");
        format!("{whose}: {}", failing.why)
    });
    sections.toned("failing", Tone::Bad, &failing);
    let health_checks = shown(&status.health_checks_failing, wide, |failing| {
        let (service, address) = (&failing.service, &failing.address);
        let since = ago(&failing.since);
        format!("{service} on {address}, since {since}: {}", failing.why)
    });
    sections.toned("health checks", Tone::Bad, &health_checks);
    let unusable = shown(&status.unusable, wide, |unusable| {
        let (object, why) = (&unusable.object, &unusable.why);
        let stays = if unusable.stays { STAYS } else { "" };
        format!("{object}, since {}: {why}{stays}", ago(&unusable.since))
    });
    sections.toned("unusable", Tone::Bad, &unusable);
    let unsupported = shown(&status.unsupported, wide, |unsupported| {
        let (service, what) = (&unsupported.service, &unsupported.what);
        format!("{service} {what}: {}", unsupported.why)
    });
    sections.toned("unsupported", Tone::Warning, &unsupported);
    let conflicts = shown(&status.conflicts, wide, |conflict| {
        let (port, protocol) = (&conflict.service_port, &conflict.protocol);
        format!("{port} {protocol}: {}", conflict.why)
    });
    sections.toned("conflicts", Tone::Warning, &conflicts);
    sections.0
}

struct Sections(String);

impl Sections {
    fn plain(&mut self, heading: &str, lines: Vec<String>) {
        let headings = std::iter::once(heading).chain(std::iter::repeat(""));
        for (heading, line) in headings.zip(lines) {
            self.0.push_str(&format!("{heading:HEADING$}  {line}\n"));
        }
    }

    fn toned(&mut self, heading: &str, tone: Tone, lines: &[String]) {
        let lines = lines.iter().map(|line| paint(tone, line));
        self.plain(heading, lines.collect());
    }
}

/// Returns the number with its noun, in the plural if it is not one.
pub(super) fn number(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Returns a line for each item that is shown, and one about the rest.
fn shown<T>(listed: &Listed<T>, wide: bool, line: impl Fn(&T) -> String) -> Vec<String> {
    let most = if wide { usize::MAX } else { MOST };
    let mut lines: Vec<_> = listed.items.iter().take(most).map(line).collect();
    match listed.total.saturating_sub(lines.len()) {
        0 => {}
        more => lines.push(format!("and {more} more")),
    }
    lines
}

fn object_kind(kind: &ObjectKind, wide: bool) -> Option<String> {
    let name = &kind.name;
    let known = if kind.complete {
        "known"
    } else {
        "not known yet"
    };
    match &kind.trouble {
        Some(trouble) => {
            let since = ago(&trouble.since);
            Some(format!(
                "{name}: {known}; not followed, since {since}: {}",
                trouble.why
            ))
        }
        None if kind.complete && !wide => None,
        None => Some(format!("{name}: {known}")),
    }
}

fn sync(sync: &FamilySync) -> String {
    let mut parts = Vec::new();
    parts.push(match &sync.last {
        Some(last) => {
            let extent = if last.full { "full" } else { "partial" };
            let (ended, took) = (ago(&last.ended), length(last.seconds));
            format!("{ended}, {extent}, took {took}")
        }
        None => "none yet".to_owned(),
    });
    if let Some(since) = &sync.under_way_since {
        parts.push(format!("one is in progress, begun {}", ago(since)));
        parts.extend(sync.progress.iter().map(|progress| progress.text.clone()));
    }
    if let Some(why) = &sync.not_served {
        parts.push(format!("its Services are not served: {why}"));
    }
    if sync.draining > 0 {
        parts.push(format!("{} draining", sync.draining));
    }
    if sync.overdue {
        parts.push("overdue".to_owned());
    }
    if let Some(trouble) = &sync.trouble {
        parts.push(format!("failing since {}", ago(&trouble.since)));
    }
    format!("{} {}", sync.family, parts.join("; "))
}
