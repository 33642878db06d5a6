//! Prints the report.

use super::report::{Check, Outcome, Report};
use crate::ask::table;

/// Formats the report for people.
pub(super) fn text(report: &Report) -> String {
    let heading = ["", "CHECK", "SERVICEPORT", "TO", "FROM", "PROMISED", "SEEN"];
    let mut lines = vec![format!("{} mode", report.mode)];
    lines.extend(report.notes.iter().cloned());
    let faults = report.faults.iter();
    lines.extend(faults.map(|fault| format!("not tried: {fault}")));
    lines.push(String::new());
    lines.extend(table::headed(heading, report.checks.iter().map(cells)));
    lines.extend([String::new(), report.summary(), String::new()]);
    lines.join("\n")
}

fn cells(check: &Check) -> [String; 7] {
    let finding = &check.finding;
    let outcome = match finding.outcome {
        Outcome::Passed => "ok",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
    };
    [
        outcome.to_owned(),
        check.name.clone(),
        check.service_port.clone(),
        format!("{} {}", check.to, check.protocol),
        check.from.clone(),
        finding.promised.clone(),
        finding.seen.clone(),
    ]
}
