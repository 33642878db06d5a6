//! Findings in what the running Tripod says about itself; pure.

use std::collections::BTreeSet;

use crate::{
    ask::check::CheckReport,
    status_api::{Diff, Difference, Status, Unusable},
};

/// Maximum number of differences that are named.
const NAMED: usize = 5;

/// Adds what the status shows.
pub fn add_status(status: &Status, report: &mut CheckReport) {
    let node = &*status.node;
    let mut fault = |object: &str, problem: String, remedy: &str| {
        report.fault(node, object, problem, remedy);
    };
    // Those that begin with a number count the objects that follow.
    let is_sum = |problem: &&String| problem.starts_with(|first: char| first.is_ascii_digit());
    for problem in status.problems.iter().filter(|problem| !is_sum(problem)) {
        fault("Tripod", problem.clone(), "see its log and tripod status");
    }
    for failing in &status.failing.items {
        let name = failing.service_port.as_deref().unwrap_or("rules");
        let (object, why) = (format!("{name} {}", failing.family), &failing.why);
        fault(
            &object,
            format!("not applied: {why}"),
            "Tripod tries again; see its log",
        );
    }
    for failing in &status.health_checks_failing.items {
        let (address, service) = (&failing.address, &failing.service);
        let object = format!("health-check node port {address} of {service}");
        let problem = format!("cannot be served: {}", failing.why);
        fault(&object, problem, "free the port on the node");
    }
    for Unusable { object, why, .. } in &status.unusable.items {
        fault(object, format!("is invalid: {why}"), "correct the object");
    }
    for conflict in &status.conflicts.items {
        // Its own node port may be that of Tripod, which the reason says.
        let (problem, remedy) = match conflict.owner == conflict.service_port {
            true => (conflict.why.clone(), "choose another port for one of them"),
            false => (
                format!("does not get an address: {}", conflict.why),
                "remove the address from one of the Services",
            ),
        };
        fault(&conflict.service_port, problem, remedy);
    }
    let mode = &status.mode;
    if mode.named && !mode.passed_over.is_empty() {
        let reasons = mode.passed_over.join("; ");
        let problem = format!(
            "{} runs, not the mode of the settings: {reasons}",
            mode.name
        );
        let remedy = "provide what the kernel lacks (tripod probe), or change the settings";
        fault("mode", problem, remedy);
    }
    if status.gave_way {
        let problem = "another Tripod process has taken over from the one that answers";
        let remedy = "check again when the older process has ended";
        report.note(node, "Tripod", problem, remedy);
    }
}

/// Adds the differences that are in both answers: a change of a Service is one until it is applied.
pub fn add_differences(node: &str, before: &Diff, now: &Diff, report: &mut CheckReport) {
    for (family, earlier) in now.families.iter().zip(&before.families) {
        if let (Some(why), Some(_)) = (&family.error, &earlier.error) {
            let object = format!("{} mode, {}", now.mode, family.family);
            let problem = format!("cannot be compared with the kernel: {why}");
            let remedy = "see the log of Tripod";
            report.fault(node, object, problem, remedy);
        }
    }
    let known: BTreeSet<String> = all(before).map(words).collect();
    let lasting: Vec<&Difference> = all(now).filter(|one| known.contains(&words(one))).collect();
    let more = lasting.len().saturating_sub(NAMED);
    for (at, difference) in lasting.iter().take(NAMED).enumerate() {
        let mut problem = format!("{} in the kernel", difference.found);
        if at + 1 == NAMED && more > 0 {
            problem += &format!(", and {more} more differences (tripod diff)");
        }
        let remedy = "another program changes it, or Tripod cannot write it: see the log of Tripod";
        report.fault(node, words(difference), problem, remedy);
    }
}

/// Returns whether anything differs, or cannot be compared.
pub fn differs(diff: &Diff) -> bool {
    all(diff).next().is_some() || diff.families.iter().any(|family| family.error.is_some())
}

fn all(diff: &Diff) -> impl Iterator<Item = &Difference> {
    let families = diff.families.iter().map(|family| &family.differences);
    families
        .chain([&diff.node])
        .flat_map(|listed| &listed.items)
}

fn words(difference: &Difference) -> String {
    match &difference.service_port {
        Some(port) => format!("{} of {port}", difference.object),
        None => difference.object.clone(),
    }
}
