//! Reports that this node's object is not known, as where the node has another name:
//! kube-proxy does not start then (`NewNodeManager` of its `pkg/proxy/node.go`).

use crate::log_once::LogOnce;

/// Whether this node's object is known, and what was logged of it.
#[derive(Debug, Default)]
pub(super) struct ThisNode {
    name: String,
    /// What does not work without the object, in words.
    dependents: Vec<String>,
    logged: LogOnce,
}

impl ThisNode {
    /// Returns the node of that `name`, of which nothing was logged.
    pub(super) fn new(name: &str, dependents: Vec<String>) -> ThisNode {
        ThisNode {
            name: name.to_owned(),
            dependents,
            logged: LogOnce::default(),
        }
    }

    /// Logs that the object is not known, or is known again. Returns what does not work
    /// without it, and what to do, if something depends on it.
    pub(super) fn observe(&mut self, is_known: bool) -> Option<String> {
        if is_known {
            if self.logged.end() {
                tracing::info!("this node's Node object {} is known now", self.name);
            }
            return None;
        }
        if self.dependents.is_empty() {
            let text = format!("this node's Node object {} is not known", self.name);
            if self.logged.differs(&text) {
                tracing::info!("{text}; nothing that is set depends on it");
            }
            return None;
        }
        let text = format!(
            "this node's Node object {} is not known: {}; give the name that kubectl get nodes \
             shows as --hostname-override, or add the object to the manifests",
            self.name,
            self.dependents.join("; "),
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
        let mut node = ThisNode::new("here", vec!["node ports are not served".to_owned()]);
        assert_eq!(node.observe(true), None);
        let missing = node.observe(false).expect("something depends on it");
        let begin = "this node's Node object here is not known: node ports are not served; ";
        assert!(missing.starts_with(begin), "{missing}");
        assert!(missing.contains("--hostname-override"), "{missing}");
        assert_eq!(node.observe(false), Some(missing));
        assert_eq!(node.observe(true), None);
        assert!(!node.logged.end(), "it is logged anew when it goes again");
        assert_eq!(ThisNode::new("here", Vec::new()).observe(false), None);
    }
}
