//! `kubectl tripod status --all-nodes`: a line for each node.

use std::{
    io::{self, IsTerminal},
    panic::resume_unwind,
    process::{self, ExitCode, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use k8s_openapi::api::core::v1::Pod;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    super::{show, table, times::ago},
    Kubectl, Terminal,
    command_line::Asked,
    missing::missing,
    pods,
};
use crate::{cli, status_api::Status};

/// Number of nodes that are asked at the same time.
pub(super) const AT_ONCE: usize = 16;

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
    let listed = pods::listed(kubectl)?;
    let pods = pods::serving(listed.clone());
    let answers = at_once(&pods, AT_ONCE, |_, pod| status(kubectl, pod));
    let answers = answers.into_iter();
    let mut all: Vec<OfNode> = answers
        .map(|(node, answer)| OfNode::new(node, answer))
        .collect();
    let missing = missing(kubectl, &listed).into_iter();
    all.extend(missing.map(|one| OfNode::new(one.node, Err(one.why))));
    if all.is_empty() {
        return Err(pods::none(kubectl));
    }
    all.sort_by(|one, other| one.node.cmp(&other.node));
    show(&all, asked.output, |_| shown(&all))?;
    Ok(cli::exit_status(all.iter().all(OfNode::is_healthy)))
}

/// Asks each of these pods, at most `most` of them at the same time. Returns the answer of each node,
/// in the order of the pods.
pub(super) fn at_once<T: Send>(
    pods: &[(String, Pod)],
    most: usize,
    ask: impl Fn(&str, &Pod) -> Result<T, String> + Sync,
) -> Vec<(String, Result<T, String>)> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let shows_progress = pods.len() > most && io::stderr().is_terminal();
    let worker = || {
        let mut answers = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((node, pod)) = pods.get(at) else {
                return answers;
            };
            answers.push((at, (node.clone(), ask(node, pod))));
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if shows_progress {
                eprint!("\r{done} of {} nodes\x1b[K", pods.len());
            }
        }
    };
    let mut answers: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..most).map(|_| scope.spawn(worker)).collect();
        let answers = workers.into_iter().map(|worker| worker.join());
        let answers = answers.map(|answers| answers.unwrap_or_else(|panic| resume_unwind(panic)));
        answers.flatten().collect()
    });
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
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
        // kubectl ends with such a line.
        let is_why = |line: &&str| !line.starts_with("command terminated with exit code");
        match said.trim().lines().rfind(is_why) {
            Some(said) => said.to_owned(),
            None => format!("cannot read its answer: {error}"),
        }
    })
}

fn shown(all: &[OfNode]) -> String {
    let heading = [
        "NODE",
        "MODE",
        "STATUS",
        "SERVICES",
        "LAST SYNC",
        "VERSION",
        "PROBLEMS",
    ];
    table::headed(heading, all.iter().map(OfNode::cells)).join("\n") + "\n"
}
