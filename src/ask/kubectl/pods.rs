//! The pods of Tripod, as kubectl prints them.

use k8s_openapi::api::core::v1::Pod;

use super::{Items, Kubectl};

/// Returns the name of the node on which a pod runs.
pub(super) fn node(pod: &Pod) -> Option<&String> {
    pod.spec.as_ref()?.node_name.as_ref()
}

/// Returns the addresses of its node. Clusters before 1.28 show one.
pub(super) fn host_ips(pod: &Pod) -> impl Iterator<Item = &String> {
    let status = pod.status.as_ref();
    let all = status.and_then(|status| status.host_ips.as_ref());
    let one = status.filter(|_| all.is_none());
    let one = one.and_then(|status| status.host_ip.as_ref());
    all.into_iter().flatten().map(|host| &host.ip).chain(one)
}

/// Returns the container with Tripod: the one of kube-proxy's name, or the first.
pub(super) fn container(pod: &Pod) -> &str {
    let mut all = pod.spec.iter().flat_map(|spec| &spec.containers);
    let named = all.clone().find(|container| container.name == "kube-proxy");
    named.or(all.next()).map_or("", |container| &container.name)
}

/// Returns whether a command can be run in it.
pub(super) fn runs(pod: &Pod) -> bool {
    let phase = pod.status.iter().flat_map(|status| &status.phase).next();
    phase.is_some_and(|phase| phase == "Running")
}

/// Orders pods of one node: during a rollout there may be two, and the newer one serves once it is
/// ready.
fn rank(pod: &Pod) -> impl Ord {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    let mut conditions = conditions.flatten();
    let is_ready = conditions.any(|one| one.type_ == "Ready" && one.status == "True");
    let stays = pod.metadata.deletion_timestamp.is_none();
    (is_ready, stays, pod.metadata.creation_timestamp.clone())
}

/// Returns the [serving] pods of the cluster.
///
/// # Errors
/// When kubectl cannot list them.
pub(super) fn all(kubectl: &Kubectl) -> Result<Vec<(String, Pod)>, String> {
    listed(kubectl).map(serving)
}

/// Returns all pods of Tripod, including those that do not run.
///
/// # Errors
/// When kubectl cannot list them.
pub(super) fn listed(kubectl: &Kubectl) -> Result<Vec<Pod>, String> {
    let (namespace, selector) = (&kubectl.namespace, &kubectl.selector);
    let Items { items } = kubectl.get(&["pods", "-n", namespace, "-l", selector])?;
    Ok(items)
}

/// Returns the pod that serves each node that has one, by the nodes' names.
pub(super) fn serving(mut pods: Vec<Pod>) -> Vec<(String, Pod)> {
    pods.retain(runs);
    pods.sort_by(|one, other| {
        let by_node = node(one).cmp(&node(other));
        by_node.then_with(|| rank(other).cmp(&rank(one)))
    });
    pods.dedup_by(|one, before| node(one) == node(before));
    let with_node = |pod: Pod| Some((node(&pod)?.clone(), pod));
    pods.into_iter().filter_map(with_node).collect()
}

/// Returns the pod that serves a node, one of `all`.
///
/// # Errors
/// When there is none.
pub(super) fn find(kubectl: &Kubectl, all: &[(String, Pod)], node: &str) -> Result<Pod, String> {
    match all.iter().find(|(name, _)| name == node) {
        Some((_, pod)) => Ok(pod.clone()),
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
                "apiVersion": "v1", "kind": "Pod",
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
            .map(|(node, pod)| (&**node, pod.metadata.name.as_deref(), container(pod)))
            .collect();
        assert_eq!(
            named,
            [
                ("one", Some("new"), "kube-proxy"),
                ("three", Some("alone"), "kube-proxy")
            ]
        );
    }
}
