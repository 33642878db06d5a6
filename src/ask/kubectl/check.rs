//! `kubectl tripod check`: checks each node in its pod, and compares the nodes.

use std::{collections::BTreeMap, path::Path, process::ExitCode, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::sleep;

use super::{
    super::check::{CheckReport, CheckedNode, Finding},
    Kubectl,
    all_nodes::{AT_ONCE, at_once},
    command_line::Asked,
    missing::{Missing, missing},
    pods,
};
use crate::{cli::Check, status_api::SOCKET};

/// Number of other nodes whose node ports each node calls.
const OTHERS: usize = 3;

/// How much longer than the calls a node may take: it compares its kernel, and waits for the last
/// answers.
const LONGER: Duration = Duration::from_secs(60);

/// How much longer it may take with Services of its own.
const LONGER_TO_MAKE: Duration = Duration::from_secs(240);

/// Time in which a change reaches each node.
const CHANGED_WITHIN: Duration = Duration::from_secs(2);

/// Checks the nodes, or `only` one, and prints one report. Returns 0; 1 if there are faults.
///
/// # Errors
/// When no node can be checked, or the report cannot be written.
pub(super) async fn print(
    asked: &Asked,
    check: &Check,
    only: Option<String>,
) -> Result<ExitCode, String> {
    let kubectl = &asked.kubectl;
    if let Some(Some(file)) = &check.make {
        let file = file.display();
        return Err(format!(
            "--make={file}: --make takes no file here, it uses the kubeconfig of kubectl; \
             --kubeconfig={file} --make uses this one"
        ));
    }
    let listed = pods::listed(kubectl)?;
    let nodes = Nodes {
        kubectl,
        check,
        kubeconfig: match check.make {
            Some(_) => Some(kubectl.kubeconfig()?),
            None => None,
        },
        all: pods::serving(listed.clone()),
    };
    let chosen = match &only {
        Some(node) => vec![(node.clone(), pods::find(kubectl, &nodes.all, node)?)],
        None => nodes.all.clone(),
    };
    if chosen.is_empty() {
        return Err(pods::none(kubectl));
    }
    // Faults of Tripod itself, before those that may follow from them.
    let mut own = CheckReport::default();
    let mut reports = Vec::new();
    let mut why = String::new();
    for (node, answer) in nodes.ask(&chosen).await {
        match answer {
            Ok(one) => reports.push(one),
            Err(error) => {
                why.clone_from(&error);
                let remedy = "kubectl describe pod, and kubectl logs, of Tripod's pod on that node";
                own.fault(&node, "Tripod", error, remedy);
            }
        }
    }
    if reports.is_empty() {
        return Err(why);
    }
    if only.is_none() {
        add_missing(missing(kubectl, &listed), &mut own);
        let checked: Vec<CheckedNode> = reports.iter().flat_map(|one| one.nodes.clone()).collect();
        compare(&checked, &mut own);
        own.faults.extend(nodes.find_stale(checked).await);
    }
    CheckReport::of([own].into_iter().chain(reports)).print(asked.output)
}

/// Adds the nodes on which no pod of Tripod runs.
fn add_missing(missing: Vec<Missing>, report: &mut CheckReport) {
    for one in missing {
        let remedy = "kubectl get daemonsets,pods -o wide, in Tripod's namespace";
        match one.is_fault {
            true => report.fault(&one.node, "Tripod", one.why, remedy),
            false => report.note(&one.node, "Tripod", one.why, remedy),
        }
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
    async fn ask(&self, some: &[(String, Pod)]) -> Vec<(String, Result<CheckReport, String>)> {
        // The Services that several nodes make at the same time might get the same addresses.
        let most = if self.kubeconfig.is_some() {
            1
        } else {
            AT_ONCE
        };
        at_once(some, most, async |node: &str, pod: &Pod| {
            let mut more = self.addresses(node);
            let mut limit = self.check.timeout + LONGER;
            if self.kubeconfig.is_some() {
                limit += LONGER_TO_MAKE.max(self.check.timeout);
                more.push("--make=-".to_owned());
                let image = self.check.image.iter();
                more.extend(image.map(|image| format!("--image={image}")));
            }
            let input = self.kubeconfig.as_deref();
            self.run(pod, more, input, limit).await
        })
        .await
    }

    /// Asks some nodes only for what they know.
    async fn ask_briefly(&self, some: &[(String, Pod)]) -> Vec<CheckedNode> {
        let answers = at_once(some, AT_ONCE, async |_: &str, pod: &Pod| {
            let more = vec!["--no-calls".to_owned()];
            self.run(pod, more, None, self.check.timeout).await
        });
        let reports = answers
            .await
            .into_iter()
            .filter_map(|(_, answer)| answer.ok());
        reports.flat_map(|report| report.nodes).collect()
    }

    /// Returns the flags that name the addresses of this node, and of the next ones after it, so that
    /// each node is called by some others, however many there are.
    fn addresses(&self, node: &str) -> Vec<String> {
        let at = self.all.iter().position(|(name, _)| name == node);
        let some = self.all.iter().cycle().skip(at.unwrap_or_default());
        let some = some.take(self.all.len().min(1 + OTHERS));
        let flags = some.flat_map(|(name, pod)| {
            pods::host_ips(pod).map(move |ip| format!("--other-node={name}={ip}"))
        });
        let given = self.check.others.iter();
        let given = given.map(|(name, ip)| format!("--other-node={name}={ip}"));
        flags.chain(given).collect()
    }

    /// Runs a check in a pod, with `more` flags.
    async fn run(
        &self,
        pod: &Pod,
        more: Vec<String>,
        input: Option<&[u8]>,
        limit: Duration,
    ) -> Result<CheckReport, String> {
        let Check {
            timeout, common, ..
        } = self.check;
        let mut arguments = vec!["check".to_owned(), "--output=json".to_owned()];
        arguments.push(format!("--timeout={}s", timeout.as_secs_f64()));
        if common.socket != Path::new(SOCKET) {
            arguments.push(format!("--status-socket={}", common.socket.display()));
        }
        arguments.extend(more);
        self.kubectl.ask_in(pod, arguments, input, limit).await
    }

    /// Finds nodes that do not follow the objects any more. While objects change, nodes know
    /// different ones for a moment: those that differ are asked twice more, always together with one
    /// that knew what most did.
    async fn find_stale(&self, checked: Vec<CheckedNode>) -> Vec<Finding> {
        let digests = checked.iter().map(|node| &node.digest);
        let Some(usual) = most_frequent(digests).cloned() else {
            return Vec::new();
        };
        let (usual, mut suspects): (Vec<_>, Vec<_>) =
            checked.into_iter().partition(|node| node.digest == usual);
        let Some(usual) = usual.first() else {
            return Vec::new();
        };
        let mut found: Vec<Finding> = Vec::new();
        for _ in 0..2 {
            if !suspects.is_empty() {
                sleep(CHANGED_WITHIN).await;
            }
            found.clear();
            for some in suspects.chunks(AT_ONCE - 1) {
                let names: Vec<_> = some.iter().chain([usual]).map(|of| &of.node).collect();
                let pods = self.all.iter().filter(|(node, _)| names.contains(&node));
                let again = self.ask_briefly(&pods.cloned().collect::<Vec<_>>()).await;
                found.extend(stale(usual, some, &again));
            }
            suspects.retain(|node| found.iter().any(|one| one.nodes.contains(&node.node)));
        }
        found
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
fn compare(nodes: &[CheckedNode], report: &mut CheckReport) {
    let usual = |of: fn(&CheckedNode) -> &String| most_frequent(nodes.iter().map(of));
    let (mode, version) = (usual(|node| &node.mode), usual(|node| &node.version));
    for node in nodes {
        if let Some(mode) = mode.filter(|mode| **mode != node.mode) {
            let problem = format!("{} runs, and {mode} on most nodes", node.mode);
            let remedy = "tripod status and tripod probe on the node say why";
            // Otherwise each node runs the best mode of its kernel.
            match node.mode_named {
                true => report.fault(&node.node, "mode", problem, remedy),
                false => report.note(&node.node, "mode", problem, remedy),
            }
        }
        if let Some(version) = version.filter(|version| **version != node.version) {
            let problem = format!("version {}, and {version} on most nodes", node.version);
            let remedy = "kubectl rollout status shows whether an upgrade is in progress";
            report.note(&node.node, "Tripod", problem, remedy);
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
            mode_named: true,
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
        let without_choice = CheckedNode {
            mode_named: false,
            ..node("d", "iptables", "x")
        };
        let mut report = CheckReport::default();
        let usual = [node("a", "ipvs", "x"), node("e", "ipvs", "x")];
        let others = [node("b", "nftables", "x"), other_version, without_choice];
        compare(&[&usual[..], &others].concat(), &mut report);
        let nodes = |all: &[Finding]| all.iter().map(|one| one.nodes.concat()).collect::<Vec<_>>();
        assert_eq!(nodes(&report.faults), ["b"]);
        assert_eq!(nodes(&report.notes), ["c", "d"]);
    }
}
