//! `kubectl tripod status --all-nodes`: a line for each node.

use std::{
    process::{self, ExitCode, Stdio},
    thread,
};

use k8s_openapi::api::core::v1::{Node, Pod};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{document, table, times::ago},
    Items, Kubectl, Terminal,
    command_line::Asked,
    pods,
};
use crate::{cli, status_api::Status};

/// Number of nodes that are asked at the same time.
pub(super) const AT_ONCE: usize = 16;

/// Why a node has no answer.
pub(super) const NO_POD: &str = "no pod of Tripod runs there";

/// The status of a node, or why there is none.
#[derive(Debug, Serialize)]
struct OfNode {
    node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    /// Why there is no status.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl OfNode {
    fn new(node: String, answer: Result<Status, String>) -> OfNode {
        let (status, error) = match answer {
            Ok(status) => (Some(status), None),
            Err(error) => (None, Some(error)),
        };
        OfNode {
            node,
            status,
            error,
        }
    }

    fn is_healthy(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.healthy)
    }

    fn cells(&self) -> [String; 7] {
        let Some(status) = &self.status else {
            let why = self.error.clone().unwrap_or_default();
            let unknown = || "-".to_owned();
            return [
                self.node.clone(),
                unknown(),
                "no answer".to_owned(),
                unknown(),
                unknown(),
                unknown(),
                why,
            ];
        };
        let last = status.syncs.iter().filter_map(|sync| sync.last.as_ref());
        let last = last.map(|last| &last.ended).max();
        let health = if status.healthy {
            "healthy"
        } else {
            "not healthy"
        };
        [
            self.node.clone(),
            status.mode.name.clone(),
            health.to_owned(),
            status.counts.services.to_string(),
            last.map_or_else(|| "none yet".to_owned(), |ended| ago(ended)),
            status.version.clone(),
            status.problems.join("; "),
        ]
    }
}

/// Asks every node, and prints the answers. Returns 0 if all are healthy, otherwise 1.
///
/// # Errors
/// When the pods cannot be listed, or the answer cannot be written.
pub(super) fn print(asked: &Asked) -> Result<ExitCode, String> {
    let kubectl = &asked.kubectl;
    let pods = pods::all(kubectl)?;
    let answers = at_once(&pods, AT_ONCE, |_, pod| status(kubectl, pod));
    let answers = answers.into_iter();
    let mut all: Vec<OfNode> = answers
        .map(|(node, answer)| OfNode::new(node, answer))
        .collect();
    let without = without_pod(kubectl, &pods).into_iter();
    all.extend(without.map(|name| OfNode::new(name, Err(NO_POD.to_owned()))));
    if all.is_empty() {
        return Err(pods::none(kubectl));
    }
    all.sort_by(|one, other| one.node.cmp(&other.node));
    let text = document(&all, asked.output, |_| shown(&all))?;
    cli::put(&text).map_err(|error| error.to_string())?;
    Ok(if all.iter().all(OfNode::is_healthy) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns the nodes of Linux on which no pod of Tripod runs, if they may be listed.
pub(super) fn without_pod(kubectl: &Kubectl, pods: &[(String, Pod)]) -> Vec<String> {
    let nodes = kubectl.get::<Items<Node>>(&["nodes"]);
    let nodes = nodes.map(|nodes| nodes.items).unwrap_or_default();
    let is_linux = |node: &Node| {
        let mut labels = node.metadata.labels.iter().flatten();
        labels.all(|(key, value)| key != "kubernetes.io/os" || value == "linux")
    };
    let nodes = nodes.into_iter().filter(is_linux);
    let names = nodes.filter_map(|node| node.metadata.name);
    names
        .filter(|name| !pods.iter().any(|(node, _)| node == name))
        .collect()
}

/// Asks each of these pods, at most `most` of them at the same time. Returns the answer of each node.
pub(super) fn at_once<T: Send>(
    pods: &[(String, Pod)],
    most: usize,
    ask: impl Fn(&str, &Pod) -> Result<T, String> + Sync,
) -> Vec<(String, Result<T, String>)> {
    let mut answers = Vec::new();
    for some in pods.chunks(most) {
        thread::scope(|scope| {
            let ask = &ask;
            let asking: Vec<_> = some
                .iter()
                .map(|(node, pod)| (node, scope.spawn(move || ask(node, pod))))
                .collect();
            answers.extend(asking.into_iter().map(|(node, asked)| {
                let answer = asked.join();
                let answer = answer.unwrap_or_else(|_| Err("asking it failed".to_owned()));
                (node.clone(), answer)
            }));
        });
    }
    answers
}

fn status(kubectl: &Kubectl, pod: &Pod) -> Result<Status, String> {
    let arguments = ["status", "--output=json"].map(Into::into);
    let mut exec = kubectl.exec(pod, Terminal::None, &arguments);
    exec.stdin(Stdio::null());
    let done = exec.output().map_err(|error| super::unusable(&error))?;
    // It exits with 1 if the proxy is not healthy.
    read(&done)
}

/// Reads the JSON that a command printed.
pub(super) fn read<T: DeserializeOwned>(done: &process::Output) -> Result<T, String> {
    serde_json::from_slice(&done.stdout).map_err(|error| {
        let said = String::from_utf8_lossy(&done.stderr);
        match said.trim().lines().last() {
            Some(said) => said.to_owned(),
            None => format!("cannot read its answer: {error}"),
        }
    })
}

fn shown(all: &[OfNode]) -> String {
    let heads = [
        "NODE",
        "MODE",
        "STATUS",
        "SERVICES",
        "LAST SYNC",
        "VERSION",
        "PROBLEMS",
    ];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(all.iter().map(OfNode::cells));
    table::lines(&rows).join("\n") + "\n"
}
