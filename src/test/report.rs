//! The report of a test.

use std::process::ExitCode;

use net::Protocol;
use serde::Serialize;

use super::UNABLE;
use crate::status_api::VERSION;

/// The report of a test: all its checks.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    api_version: &'static str,
    kind: &'static str,
    /// The tested mode.
    pub(super) mode: String,
    /// Notes about the whole test.
    pub(super) notes: Vec<String>,
    /// Why parts of the folder cannot be used, so that they were not tested.
    pub(super) faults: Vec<String>,
    passed: usize,
    failed: usize,
    skipped: usize,
    pub(super) checks: Vec<Check>,
}

/// One promise of a mode, and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// The name of the check, such as `node port`.
    pub name: String,
    /// `namespace/name:port` of the ServicePort.
    pub service_port: String,
    /// The called address and port.
    pub to: String,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// The caller, such as `a pod of this node`.
    pub from: String,
    /// Result of the check.
    #[serde(flatten)]
    pub finding: Finding,
}

impl Check {
    /// Makes a row for calls of this node over TCP.
    pub fn of_node(name: &str, service_port: String, to: String, finding: Finding) -> Check {
        Check {
            name: name.to_owned(),
            service_port,
            to,
            protocol: Protocol::Tcp.to_string(),
            from: "this node".to_owned(),
            finding,
        }
    }
}

/// The promise, the result, and whether they agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The promise of the mode.
    pub promised: String,
    /// The result; if nothing was tested, the reason.
    pub seen: String,
    /// Whether the two agree.
    pub outcome: Outcome,
}

impl Finding {
    /// The finding for a promise that was tested, and kept or not.
    pub fn tried(promised: String, seen: String, kept: bool) -> Finding {
        Finding {
            promised,
            seen,
            outcome: if kept {
                Outcome::Passed
            } else {
                Outcome::Failed
            },
        }
    }

    /// The finding if nothing can be tested, or nothing is promised.
    pub fn skipped(why: String) -> Finding {
        Finding {
            promised: "-".to_owned(),
            seen: why,
            outcome: Outcome::Skipped,
        }
    }
}

/// Whether a promise was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// All calls had the promised result.
    Passed,
    /// At least one call did not, or none was made.
    Failed,
    /// It could not be tested here.
    Skipped,
}

impl Report {
    /// Makes the report on a mode.
    pub fn new(mode: impl ToString, checks: Vec<Check>) -> Report {
        let count = |outcome| {
            checks
                .iter()
                .filter(|check| check.finding.outcome == outcome)
                .count()
        };
        Report {
            api_version: VERSION,
            kind: "TestReport",
            mode: mode.to_string(),
            notes: Vec::new(),
            faults: Vec::new(),
            passed: count(Outcome::Passed),
            failed: count(Outcome::Failed),
            skipped: count(Outcome::Skipped),
            checks,
        }
    }

    /// The exit status: 0 if every tested promise was kept, 1 if one was not, or the folder has
    /// faults, 2 if none could be tested.
    pub fn status(&self) -> ExitCode {
        match (self.passed, self.failed, self.faults.is_empty()) {
            (0, 0, _) => ExitCode::from(UNABLE),
            (_, 0, true) => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }

    /// Writes the last sentence of the report.
    pub(super) fn summary(&self) -> String {
        let Report {
            passed,
            failed,
            skipped,
            ..
        } = self;
        let mut summary = format!("{passed} passed, {failed} failed, {skipped} skipped");
        match self.faults.len() {
            0 => {}
            1 => summary.push_str("; 1 part of the folder cannot be used"),
            faults => summary.push_str(&format!("; {faults} parts of the folder cannot be used")),
        }
        summary
    }
}
