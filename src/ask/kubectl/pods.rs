//! The pods of Tripod, as kubectl prints them.

use serde::Deserialize;

use super::Kubectl;

#[derive(Debug, Deserialize)]
struct Pods {
    items: Vec<Pod>,
}

/// The fields of a pod that are read.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    pub(super) spec: Spec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: String,
    #[serde(default)]
    creation_timestamp: String,
    deletion_timestamp: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    pub(super) node_name: Option<String>,
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Deserialize)]
struct Container {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodStatus {
    #[serde(default)]
    phase: String,
    #[serde(default)]
    conditions: Vec<Condition>,
}

#[derive(Clone, Debug, Deserialize)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Pod {
    /// Returns the container with Tripod: the one of kube-proxy's name, or the first.
    pub(super) fn container(&self) -> &str {
        let mut all = self.spec.containers.iter();
        let named = all.clone().find(|container| container.name == "kube-proxy");
        named.or(all.next()).map_or("", |container| &container.name)
    }

    /// Returns whether a command can be run in it.
    fn runs(&self) -> bool {
        self.status.phase == "Running"
    }

    /// Orders pods of one node: during a rollout there may be two, and the newer one serves once it
    /// is ready.
    fn rank(&self) -> (bool, bool, &str) {
        let ready = |one: &Condition| one.kind == "Ready" && one.status == "True";
        let is_ready = self.status.conditions.iter().any(ready);
        let stays = self.metadata.deletion_timestamp.is_none();
        (is_ready, stays, &self.metadata.creation_timestamp)
    }
}

/// Returns the pod that serves each node that has one, by the nodes' names.
///
/// # Errors
/// When kubectl cannot list them.
pub(super) fn all(kubectl: &Kubectl) -> Result<Vec<(String, Pod)>, String> {
    let (namespace, selector) = (&kubectl.namespace, &kubectl.selector);
    let Pods { items } = kubectl.get(&["pods", "-n", namespace, "-l", selector])?;
    Ok(serving(items))
}

fn serving(mut pods: Vec<Pod>) -> Vec<(String, Pod)> {
    pods.retain(Pod::runs);
    pods.sort_by(|one, other| {
        let by_node = one.spec.node_name.cmp(&other.spec.node_name);
        by_node.then_with(|| other.rank().cmp(&one.rank()))
    });
    pods.dedup_by(|one, before| one.spec.node_name == before.spec.node_name);
    let with_node = |pod: Pod| Some((pod.spec.node_name.clone()?, pod));
    pods.into_iter().filter_map(with_node).collect()
}

/// Returns the pod that serves a node.
///
/// # Errors
/// When there is none.
pub(super) fn of_node(kubectl: &Kubectl, node: &str) -> Result<Pod, String> {
    let mut all = all(kubectl)?;
    match all.iter().position(|(name, _)| name == node) {
        Some(at) => Ok(all.swap_remove(at).1),
        None => Err(format!(
            "no pod of Tripod runs on node {node}: {}",
            remedy(kubectl)
        )),
    }
}

/// Returns the pod that serves the only node.
///
/// # Errors
/// When there are several, or none.
pub(super) fn only(kubectl: &Kubectl) -> Result<Pod, String> {
    let mut all = all(kubectl)?;
    match all.len() {
        0 => Err(none(kubectl)),
        1 => Ok(all.swap_remove(0).1),
        nodes => Err(format!(
            "Tripod runs on {nodes} nodes: name one with --node, or a pod on it with --pod; \
             status also takes --all-nodes"
        )),
    }
}

/// Returns the text for a cluster without such a pod.
pub(super) fn none(kubectl: &Kubectl) -> String {
    format!("no pod of Tripod runs: {}", remedy(kubectl))
}

fn remedy(kubectl: &Kubectl) -> String {
    let Kubectl {
        namespace,
        selector,
        ..
    } = kubectl;
    format!(
        "kubectl get pods -n {namespace} -l {selector} shows those that this program looks for; \
         --tripod-namespace and --tripod-selector choose others"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pod_that_serves_is_found() {
        let pod = |name: &str, node: &str, phase: &str, ready: &str, age: &str| {
            json!({
                "metadata": {"name": name, "creationTimestamp": age},
                "spec": {"nodeName": node, "containers": [{"name": "sidecar"}, {"name": "kube-proxy"}]},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            })
        };
        let cases = [
            pod("old", "one", "Running", "True", "2026-01-01T00:00:00Z"),
            pod("new", "one", "Running", "True", "2026-01-02T00:00:00Z"),
            pod("starts", "one", "Running", "False", "2026-01-03T00:00:00Z"),
            pod("pulls", "two", "Pending", "False", "2026-01-03T00:00:00Z"),
            pod("alone", "three", "Running", "False", "2026-01-01T00:00:00Z"),
        ];
        let pods = cases.map(|case| serde_json::from_value(case).unwrap());
        let found = serving(pods.into());
        let named: Vec<_> = found
            .iter()
            .map(|(node, pod)| (&**node, &*pod.metadata.name, pod.container()))
            .collect();
        assert_eq!(
            named,
            [
                ("one", "new", "kube-proxy"),
                ("three", "alone", "kube-proxy")
            ]
        );
    }
}
