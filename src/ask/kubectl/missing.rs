//! Nodes on which no pod of Tripod runs.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};

use super::{Kubectl, pods};

/// How long a pod may take to start: images are pulled.
const STARTS_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// A node on which no pod of Tripod runs.
#[derive(Debug, PartialEq)]
pub(super) struct Missing {
    pub(super) node: String,
    pub(super) why: String,
    /// Whether one should run there.
    pub(super) is_fault: bool,
}

/// Returns the nodes of Linux without a pod that runs, if nodes may be listed.
pub(super) fn missing(kubectl: &Kubectl, listed: &[Pod]) -> Vec<Missing> {
    let nodes = kubectl.linux_nodes().into_iter();
    let runs = |node: &String| {
        let mut here = listed.iter().filter(|pod| pods::node(pod) == Some(node));
        here.any(pods::runs)
    };
    let without: Vec<String> = nodes.filter(|node| !runs(node)).collect();
    if without.is_empty() {
        return Vec::new();
    }
    let desired = desired(kubectl, listed);
    let each = without.into_iter();
    each.map(|node| describe(node, listed, desired)).collect()
}

/// Returns the number of nodes on which the DaemonSets of these pods want one, if it is known.
fn desired(kubectl: &Kubectl, listed: &[Pod]) -> Option<usize> {
    let owners = listed.iter().flat_map(|pod| &pod.metadata.owner_references);
    let sets = owners.flatten().filter(|owner| owner.kind == "DaemonSet");
    let names: BTreeSet<&str> = sets.map(|owner| &*owner.name).collect();
    let desired = names.iter().map(|name| {
        let set = kubectl.get(&["daemonset", name, "-n", &kubectl.namespace]);
        let status = set.map(|set: DaemonSet| set.status).ok()??;
        usize::try_from(status.desired_number_scheduled).ok()
    });
    desired.sum::<Option<usize>>().filter(|_| !names.is_empty())
}

fn describe(node: String, listed: &[Pod], desired: Option<usize>) -> Missing {
    let nodes: BTreeSet<&String> = listed.iter().filter_map(pods::node).collect();
    let pod = listed.iter().find(|pod| pods::node(pod) == Some(&node));
    let created = pod.and_then(|pod| pod.metadata.creation_timestamp.as_ref());
    let is_new = |at: &Timestamp| Timestamp::now().duration_since(*at) < STARTS_WITHIN;
    let is_starting = created.is_some_and(|at| is_new(&at.0));
    let is_excluded = pod.is_none() && desired.is_some_and(|desired| desired <= nodes.len());
    let why = match pod {
        Some(_) if is_starting => "its pod of Tripod is starting",
        None if is_excluded => "no pod of Tripod runs there, and its DaemonSet wants none there",
        _ => "no pod of Tripod runs there",
    };
    Missing {
        node,
        why: why.to_owned(),
        is_fault: !is_starting && !is_excluded,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_without_a_pod_is_a_fault_if_one_should_run_there() {
        let now = Timestamp::now().to_string();
        for (pod, created, desired, is_fault, why) in [
            (None, "", None, true, "no pod of Tripod runs there"),
            (None, "", Some(2), true, "no pod of Tripod runs there"),
            (None, "", Some(1), false, "wants none there"),
            (Some("new"), &*now, Some(2), false, "is starting"),
            (Some("new"), "2026-01-01T00:00:00Z", Some(2), true, "no pod"),
        ] {
            let pods = [(Some("old"), "2026-01-01T00:00:00Z"), (pod, created)];
            let pods = pods.iter().filter_map(|(node, created)| {
                let node = (*node)?;
                let metadata = json!({"name": node, "creationTimestamp": created});
                let pod =
                    json!({"metadata": metadata, "spec": {"nodeName": node, "containers": []}});
                serde_json::from_value(pod).expect("a pod")
            });
            let found = describe("new".to_owned(), &pods.collect::<Vec<_>>(), desired);
            assert_eq!(found.is_fault, is_fault, "{found:?}");
            assert!(found.why.contains(why), "{found:?}");
        }
    }
}
