//! Reports that this node's object is not known, as where the node has another name:
//! kube-proxy does not start then (`NewNodeManager` of its `pkg/proxy/node.go`).

use crate::log_once::LogOnce;

/// What does not work without this node's object, in words; `None`: that needs nothing of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDependents {
    /// Node ports and health-check node ports.
    pub node_ports: Option<String>,
    /// Telling pods from other callers.
    pub pods: Option<String>,
}

/// Whether this node's object is known, and what was logged of it.
#[derive(Debug, Default)]
pub(super) struct ThisNode {
    name: String,
    dependents: NodeDependents,
    logged: LogOnce,
}

impl ThisNode {
    /// Returns the node of that `name`, of which nothing was logged.
    pub(super) fn new(name: &str, dependents: NodeDependents) -> ThisNode {
        ThisNode {
            name: name.to_owned(),
            dependents,
            logged: LogOnce::default(),
        }
    }

    /// Logs that the object is not known, or is known again. Returns what does not work
    /// without it, and what to do, if something depends on it: node ports, if Services have
    /// some.
    pub(super) fn observe(
        &mut self,
        is_known: bool,
        have_node_ports: impl FnOnce() -> bool,
    ) -> Option<String> {
        if is_known {
            if self.logged.end() {
                tracing::info!("this node's Node object {} is known now", self.name);
            }
            return None;
        }
        let NodeDependents { node_ports, pods } = &self.dependents;
        let node_ports = node_ports.as_deref().filter(|_| have_node_ports());
        let affected: Vec<&str> = node_ports.into_iter().chain(pods.as_deref()).collect();
        let text = format!("this node's Node object {} is not known", self.name);
        if affected.is_empty() {
            if self.logged.differs(&text) {
                tracing::info!("{text}; nothing depends on it");
            }
            return None;
        }
        let text = format!(
            "{text}: {}; give the name that kubectl get nodes shows as --hostname-override, or \
             add the object to the manifests",
            affected.join("; "),
        );
        if self.logged.differs(&text) {
            tracing::warn!("{text}");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_depends_on_the_object_is_named_until_it_is_known() {
        let dependents = NodeDependents {
            node_ports: Some("node ports are not served".to_owned()),
            pods: None,
        };
        let mut node = ThisNode::new("here", dependents);
        assert_eq!(node.observe(true, || true), None);
        assert_eq!(
            node.observe(false, || false),
            None,
            "there are no node ports"
        );
        let missing = node.observe(false, || true);
        let missing = missing.expect("something depends on it");
        let begin = "this node's Node object here is not known: node ports are not served; ";
        assert!(missing.starts_with(begin), "{missing}");
        assert!(missing.contains("--hostname-override"), "{missing}");
        assert_eq!(node.observe(false, || true), Some(missing));
        assert_eq!(node.observe(true, || true), None);
        assert!(!node.logged.end(), "it is logged anew when it goes again");
        let mut node = ThisNode::new("here", NodeDependents::default());
        assert_eq!(node.observe(false, || true), None);
    }
}
