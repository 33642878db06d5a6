//! The report of `tripod check`, of one node or of several.

use std::{collections::HashMap, process::ExitCode};

use serde::{Deserialize, Serialize};

use super::{show, status::number, table};
use crate::{
    cli::{self, Output},
    listing::first_of,
    status_api::VERSION,
};

/// Most faults, and most notes, that are printed, unless all are requested.
const MOST: usize = 30;

/// Maximum number of nodes that are named in a row.
const NAMED: usize = 4;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Version of the API.
    pub api_version: String,
    /// Kind of the object: always `CheckReport`.
    pub kind: String,
    /// The nodes that were checked.
    pub nodes: Vec<CheckedNode>,
    /// What must be fixed.
    pub faults: Vec<Finding>,
    /// What may have a good reason.
    pub notes: Vec<Finding>,
}

/// A node that was checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckedNode {
    /// Name of the node.
    pub node: String,
    /// Version of its Tripod.
    pub version: String,
    /// The mode in which it runs.
    pub mode: String,
    /// Whether its settings name a mode.
    #[serde(default)]
    pub mode_named: bool,
    /// Number of ServicePorts that it knows.
    pub service_ports: usize,
    /// Number of their endpoints.
    pub endpoints: usize,
    /// Hash of these ServicePorts and endpoints: the same on each node that knows the same.
    pub digest: String,
    /// Number of addresses and endpoints that were called.
    pub called: usize,
    /// Duration of the check.
    pub seconds: f64,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// The nodes that have the fault.
    pub nodes: Vec<String>,
    /// Other nodes that noticed it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen_from: Vec<String>,
    /// The Service, address or other object.
    pub object: String,
    /// What is wrong.
    pub problem: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    /// Describes a fault of one node.
    pub fn new(node: &str, object: impl ToString, problem: impl ToString, remedy: &str) -> Finding {
        Finding {
            nodes: vec![node.to_owned()],
            seen_from: Vec::new(),
            object: object.to_string(),
            problem: problem.to_string(),
            remedy: remedy.to_owned(),
        }
    }

    /// Adds the node that noticed it, if that is another one.
    pub fn seen_from(mut self, node: &str) -> Finding {
        if !self.nodes.iter().any(|one| one == node) {
            self.seen_from.push(node.to_owned());
        }
        self
    }
}

impl Default for CheckReport {
    fn default() -> CheckReport {
        CheckReport {
            api_version: VERSION.to_owned(),
            kind: "CheckReport".to_owned(),
            nodes: Vec::new(),
            faults: Vec::new(),
            notes: Vec::new(),
        }
    }
}

impl CheckReport {
    /// Adds a fault of one node.
    pub fn fault(
        &mut self,
        node: &str,
        object: impl ToString,
        problem: impl ToString,
        remedy: &str,
    ) {
        self.faults
            .push(Finding::new(node, object, problem, remedy));
    }

    /// Adds something about one node that may have a good reason.
    pub fn note(
        &mut self,
        node: &str,
        object: impl ToString,
        problem: impl ToString,
        remedy: &str,
    ) {
        self.notes.push(Finding::new(node, object, problem, remedy));
    }

    /// Makes one report of several. What several nodes report becomes one finding.
    pub fn of(reports: impl IntoIterator<Item = CheckReport>) -> CheckReport {
        let mut all = CheckReport::default();
        for one in reports {
            all.nodes.extend(one.nodes);
            all.faults.extend(one.faults);
            all.notes.extend(one.notes);
        }
        all.faults = merged(all.faults);
        all.notes = merged(all.notes);
        all
    }

    /// Prints the report. Returns the exit status: 0, or 1 if there are faults.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn print(&self, output: Output) -> Result<ExitCode, String> {
        show(self, output, |wide| self.text(wide))?;
        Ok(cli::exit_status(self.faults.is_empty()))
    }

    fn text(&self, wide: bool) -> String {
        let most = if wide { usize::MAX } else { MOST };
        let mut lines = Vec::new();
        if !self.faults.is_empty() || !self.notes.is_empty() {
            let faults = self.faults.iter().take(most).map(|one| row("FAULT", one));
            let notes = self.notes.iter().take(most).map(|one| row("note", one));
            let heading = ["", "NODE", "OBJECT", "PROBLEM", "WHAT TO DO"];
            lines.extend(table::headed(heading, faults.chain(notes)));
            let all = [&self.faults, &self.notes].into_iter();
            let left: usize = all.map(|all| all.len().saturating_sub(most)).sum();
            if left > 0 {
                lines.push(format!("and {left} more (-o wide shows all)"));
            }
            lines.push(String::new());
        }
        let called: usize = self.nodes.iter().map(|node| node.called).sum();
        lines.push(format!(
            "{} checked, {called} addresses called: {}, {}",
            number(self.nodes.len(), "node"),
            number(self.faults.len(), "fault"),
            number(self.notes.len(), "note")
        ));
        lines.join("\n") + "\n"
    }
}

/// Makes one finding of those that several nodes have in common.
fn merged(all: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    let mut known: HashMap<(String, String), usize> = HashMap::new();
    for one in all {
        let key = (one.object.clone(), one.problem.clone());
        let at = *known.entry(key).or_insert(merged.len());
        let Some(same) = merged.get_mut(at) else {
            merged.push(one);
            continue;
        };
        same.nodes.extend(one.nodes);
        same.seen_from.extend(one.seen_from);
    }
    for one in &mut merged {
        for names in [&mut one.nodes, &mut one.seen_from] {
            names.sort();
            names.dedup();
        }
    }
    merged
}

fn row(kind: &str, finding: &Finding) -> [String; 5] {
    let mut problem = finding.problem.clone();
    if !finding.seen_from.is_empty() {
        let from = first_of(&finding.seen_from, NAMED);
        problem += &format!(" (called from {from})");
    }
    [
        kind.to_owned(),
        first_of(&finding.nodes, NAMED),
        finding.object.clone(),
        problem,
        finding.remedy.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_nodes_report_is_one_finding() {
        let report = |fault: Finding| CheckReport {
            faults: vec![fault],
            ..CheckReport::default()
        };
        let ports = ["c", "b"]
            .map(|from| Finding::new("a", "node port", "silent", "open it").seen_from(from));
        let services = ["c", "a"]
            .map(|node| Finding::new(node, "shop/web", "invalid", "correct it").seen_from(node));
        let all = CheckReport::of(ports.into_iter().chain(services).map(report));
        assert_eq!(
            all.text(false),
            "       NODE  OBJECT     PROBLEM                    WHAT TO DO\n\
             FAULT  a     node port  silent (called from b, c)  open it\n\
             FAULT  a, c  shop/web   invalid                    correct it\n\
             \n\
             0 nodes checked, 0 addresses called: 2 faults, 0 notes\n"
        );
    }
}
