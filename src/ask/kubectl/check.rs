//! `kubectl tripod check`: checks each node in its pod, and compares the nodes.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    process::{ExitCode, Output, Stdio},
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use tokio::{io::AsyncWriteExt, time::timeout};

use super::{
    super::check::{CheckReport, CheckedNode, Finding},
    Kubectl, Target, Terminal,
    all_nodes::{self, AT_ONCE, NO_POD, at_once, without_pod},
    command_line::Asked,
    pods, unusable,
};
use crate::cli::Check;

/// Number of other nodes whose node ports each node calls.
const OTHERS: usize = 3;

/// How much longer than the calls a node may take: it compares its kernel, and ends its last calls.
const LONGER: Duration = Duration::from_secs(30);

/// How much longer it may take with Services of its own.
const LONGER_TO_MAKE: Duration = Duration::from_secs(240);

/// Checks the nodes, and prints one report. Returns 0; 1 if there are faults.
///
/// # Errors
/// When no node can be checked, or the report cannot be written.
pub(super) fn print(asked: &Asked) -> Result<ExitCode, String> {
    let (kubectl, Some(check)) = (&asked.kubectl, &asked.check) else {
        return Err("name a command".to_owned());
    };
    let only = match &asked.target {
        Target::Node(node) => Some(node.clone()),
        Target::NodeOf(pod) => Some(kubectl.node_of(pod)?),
        Target::Only | Target::AllNodes => None,
    };
    let nodes = Nodes {
        kubectl,
        check,
        kubeconfig: check
            .make
            .as_ref()
            .map(|_| kubectl.kubeconfig())
            .transpose()?,
        all: pods::all(kubectl)?,
    };
    let chosen = nodes
        .all
        .iter()
        .filter(|(node, _)| only.as_ref().is_none_or(|only| only == node));
    let chosen: Vec<(String, Pod)> = chosen.cloned().collect();
    if chosen.is_empty() {
        return Err(pods::none(kubectl));
    }
    let mut report = CheckReport::default();
    let mut why = String::new();
    for (node, answer) in nodes.ask(&chosen) {
        match answer {
            Ok(one) => report.add(one),
            Err(error) => {
                report.add(no_answer(&node, &error));
                why = error;
            }
        }
    }
    if report.nodes.is_empty() {
        return Err(why);
    }
    if only.is_none() {
        for node in without_pod(kubectl, &nodes.all) {
            report.add(no_answer(&node, NO_POD));
        }
        compare(&mut report);
        nodes.find_stale(&mut report);
    }
    report.print(asked.output)
}

fn no_answer(node: &str, why: &str) -> CheckReport {
    let remedy = "kubectl describe pod, and kubectl logs, of Tripod's pod on that node";
    CheckReport {
        faults: vec![Finding::new(node, "Tripod", why, remedy)],
        ..CheckReport::default()
    }
}

/// The nodes that have a pod, by name, and how they are checked.
struct Nodes<'a> {
    kubectl: &'a Kubectl,
    check: &'a Check,
    kubeconfig: Option<Vec<u8>>,
    all: Vec<(String, Pod)>,
}

impl Nodes<'_> {
    fn ask(&self, some: &[(String, Pod)]) -> Vec<(String, Result<CheckReport, String>)> {
        // The Services that several nodes make at the same time might get the same addresses.
        let most = if self.kubeconfig.is_some() {
            1
        } else {
            AT_ONCE
        };
        at_once(some, most, |node, pod| {
            let mut arguments = vec!["check".to_owned(), "--output=json".to_owned()];
            arguments.push(format!("--timeout={}s", self.check.timeout.as_secs_f64()));
            arguments.extend(self.others(node));
            let mut limit = self.check.timeout + LONGER;
            if self.kubeconfig.is_some() {
                limit += LONGER_TO_MAKE;
                arguments.push("--make=-".to_owned());
                let image = self.check.image.iter();
                arguments.extend(image.map(|image| format!("--image={image}")));
            }
            let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
            all_nodes::read(&self.run(pod, &arguments, limit)?)
        })
    }

    /// Returns the flags that name the next nodes after this one, so that each node is called by
    /// some others, however many there are.
    fn others(&self, node: &str) -> Vec<String> {
        let at = self.all.iter().position(|(name, _)| name == node);
        let next = self.all.iter().cycle().skip(at.unwrap_or_default() + 1);
        let next = next.take(OTHERS.min(self.all.len() - 1));
        let flags = next.flat_map(|(name, pod)| {
            let hosts = pod
                .status
                .iter()
                .filter_map(|status| status.host_ips.as_ref());
            let ips = hosts.flatten().map(|host| &host.ip);
            ips.map(move |ip| format!("--other-node={name}={ip}"))
        });
        flags.collect()
    }

    /// Runs the command in a pod; kubectl waits for a node that has gone for a long time.
    fn run(&self, pod: &Pod, arguments: &[OsString], limit: Duration) -> Result<Output, String> {
        let terminal = match self.kubeconfig {
            Some(_) => Terminal::Input,
            None => Terminal::None,
        };
        let exec = self.kubectl.exec(pod, terminal, arguments);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let done = async {
            let mut exec = tokio::process::Command::from(exec);
            exec.stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let mut running = exec.kill_on_drop(true).spawn()?;
            if let (Some(mut stdin), Some(kubeconfig)) = (running.stdin.take(), &self.kubeconfig) {
                // If it ends early, its output says why.
                let _ = stdin.write_all(kubeconfig).await;
            }
            running.wait_with_output().await
        };
        let done = runtime.block_on(async { timeout(limit, done).await });
        let done = done.map_err(|_| format!("no answer within {} s", limit.as_secs()))?;
        done.map_err(|error| unusable(&error))
    }

    /// Finds nodes that do not follow the objects any more. While objects change, nodes know
    /// different ones for a moment: those that differ are asked again, with one that does not.
    fn find_stale(&self, report: &mut CheckReport) {
        let digests = report.nodes.iter().map(|node| &node.digest);
        let Some(usual) = most_frequent(digests).cloned() else {
            return;
        };
        let (usual, suspects): (Vec<_>, Vec<_>) = report
            .nodes
            .iter()
            .cloned()
            .partition(|node| node.digest == usual);
        let Some(usual) = usual.first().filter(|_| !suspects.is_empty()) else {
            return;
        };
        let names: Vec<&String> = [usual]
            .into_iter()
            .chain(&suspects)
            .map(|of| &of.node)
            .collect();
        let pods = self.all.iter().filter(|(node, _)| names.contains(&node));
        let pods: Vec<(String, Pod)> = pods.take(AT_ONCE).cloned().collect();
        let answers = self
            .ask(&pods)
            .into_iter()
            .filter_map(|(_, answer)| answer.ok());
        let again: Vec<CheckedNode> = answers.flat_map(|answer| answer.nodes).collect();
        report.faults.extend(stale(usual, &suspects, &again));
    }
}

/// Returns the `suspects` that know the same as before, which is not what the node `usual` knows.
fn stale(usual: &CheckedNode, suspects: &[CheckedNode], again: &[CheckedNode]) -> Vec<Finding> {
    let now = |name: &str| again.iter().find(|node| node.node == name);
    let Some(reference) = now(&usual.node) else {
        return Vec::new();
    };
    let is_stale = |node: &&CheckedNode| {
        node.version == usual.version
            && node.digest != reference.digest
            && now(&node.node).is_some_and(|now| now.digest == node.digest)
    };
    let stale = suspects.iter().filter(is_stale).map(|node| {
        let problem = format!(
            "knows {} ServicePorts and {} endpoints, and node {} {} and {}: it does not follow \
             changes",
            node.service_ports,
            node.endpoints,
            reference.node,
            reference.service_ports,
            reference.endpoints
        );
        let remedy =
            "see the log of Tripod, and the API server that this node uses; restart Tripod";
        Finding::new(&node.node, "Services and EndpointSlices", problem, remedy)
    });
    stale.collect()
}

/// Adds nodes that differ from most others in mode or version.
fn compare(report: &mut CheckReport) {
    let usual =
        |of: fn(&CheckedNode) -> &String| most_frequent(report.nodes.iter().map(of)).cloned();
    let (mode, version) = (usual(|node| &node.mode), usual(|node| &node.version));
    for node in &report.nodes {
        if let Some(mode) = mode.as_ref().filter(|mode| **mode != node.mode) {
            let problem = format!("{} runs, and {mode} on most nodes", node.mode);
            let remedy = "tripod status and tripod probe on the node say why";
            report
                .faults
                .push(Finding::new(&node.node, "mode", problem, remedy));
        }
        if let Some(version) = version.as_ref().filter(|version| **version != node.version) {
            let problem = format!("version {}, and {version} on most nodes", node.version);
            let remedy = "kubectl rollout status shows whether an upgrade is in progress";
            report
                .notes
                .push(Finding::new(&node.node, "Tripod", problem, remedy));
        }
    }
}

/// Returns the most frequent value; of several, the first one in order.
fn most_frequent<'a>(values: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    let counts = counts.into_iter().rev();
    counts
        .max_by_key(|(_, count)| *count)
        .map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, mode: &str, digest: &str) -> CheckedNode {
        CheckedNode {
            node: name.to_owned(),
            version: "1".to_owned(),
            mode: mode.to_owned(),
            service_ports: 1,
            endpoints: 1,
            digest: digest.to_owned(),
            called: 1,
            seconds: 0.1,
        }
    }

    #[test]
    fn a_node_that_differs_and_stays_as_it_is_is_stale() {
        let (usual, suspect) = (node("a", "ipvs", "x"), [node("c", "ipvs", "y")]);
        for (again, count) in [
            (vec![node("a", "ipvs", "x"), node("c", "ipvs", "y")], 1),
            // Others have changed; this one has not.
            (vec![node("a", "ipvs", "z"), node("c", "ipvs", "y")], 1),
            (vec![node("a", "ipvs", "x"), node("c", "ipvs", "x")], 0),
            (vec![node("a", "ipvs", "z"), node("c", "ipvs", "v")], 0),
            // The others were late.
            (vec![node("a", "ipvs", "y"), node("c", "ipvs", "y")], 0),
            (vec![node("c", "ipvs", "y")], 0),
        ] {
            assert_eq!(stale(&usual, &suspect, &again).len(), count, "{again:?}");
        }
    }

    #[test]
    fn nodes_that_differ_from_most_are_named() {
        let other_version = CheckedNode {
            version: "2".to_owned(),
            ..node("c", "ipvs", "x")
        };
        let mut report = CheckReport {
            nodes: vec![
                node("a", "ipvs", "x"),
                node("b", "nftables", "x"),
                other_version,
            ],
            ..CheckReport::default()
        };
        compare(&mut report);
        let nodes = |all: &[Finding]| all.iter().map(|one| one.nodes.concat()).collect::<Vec<_>>();
        assert_eq!(nodes(&report.faults), ["b"]);
        assert_eq!(nodes(&report.notes), ["c"]);
    }
}
