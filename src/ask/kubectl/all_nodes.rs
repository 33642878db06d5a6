//! `kubectl tripod status --all-nodes`: a line for each node.

use std::{
    cell::Cell,
    io::{self, IsTerminal},
    process::ExitCode,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use serde::Serialize;

use super::{
    super::{show, table, times::ago},
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
        OfNode {
            node,
            error: answer.as_ref().err().cloned(),
            status: answer.ok(),
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
pub(super) async fn print(asked: &Asked) -> Result<ExitCode, String> {
    let kubectl = &asked.kubectl;
    let listed = pods::listed(kubectl)?;
    let pods = pods::serving(listed.clone());
    // It exits with 1 if the proxy is not healthy.
    let status = async |_: &str, pod: &Pod| {
        let arguments = ["status", "--output=json"];
        kubectl.ask_in(pod, arguments, None, Duration::MAX).await
    };
    let answers = at_once(&pods, AT_ONCE, status).await.into_iter();
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
pub(super) async fn at_once<T>(
    pods: &[(String, Pod)],
    most: usize,
    ask: impl AsyncFn(&str, &Pod) -> Result<T, String>,
) -> Vec<(String, Result<T, String>)> {
    let shows_progress = pods.len() > most && io::stderr().is_terminal();
    let done = Cell::new(0);
    let answers = stream::iter(pods).map(async |(node, pod)| {
        let answer = ask(node, pod).await;
        done.set(done.get() + 1);
        if shows_progress {
            eprint!("\r{} of {} nodes\x1b[K", done.get(), pods.len());
        }
        (node.clone(), answer)
    });
    let answers = answers.buffered(most).collect().await;
    if shows_progress {
        eprint!("\r\x1b[K");
    }
    answers
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
