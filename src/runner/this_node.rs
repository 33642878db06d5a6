//! Reports that this node's object is not known, for example because the node has another name, or
//! lacks what something depends on. kube-proxy waits for it for 30 s, and with NodeCIDR ends after
//! five minutes (`NewNodeManager` of its `pkg/proxy/node.go`).

use crate::{log_once::LogOnce, services::Node};

/// What does not work without this node's object, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDependents {
    /// What does not work of node ports and health-check node ports; `None`: none depends on the
    /// Node object.
    pub node_ports: Option<String>,
    /// What does not work because pods cannot be distinguished from other callers; `None`: nothing
    /// depends on the Node object.
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

    /// Logs that the object is not known or lacks something, or that nothing is missing any more.
    /// Returns what does not work without it, and what to do, if something depends on it: node
    /// ports, if Services have some.
    pub(super) fn observe(&mut self, node: Option<&Node>, have_node_ports: bool) -> Option<String> {
        let NodeDependents { node_ports, pods } = &self.dependents;
        let lacks_addresses = node.is_none_or(|node| node.addresses.is_empty());
        let lacks_networks = node.is_none_or(|node| node.pod_cidrs.is_empty());
        let node_ports = node_ports.as_deref();
        let node_ports = node_ports.filter(|_| lacks_addresses && have_node_ports);
        let pods = pods.as_deref().filter(|_| lacks_networks);
        let affected: Vec<&str> = node_ports.into_iter().chain(pods).collect();
        let name = &self.name;
        let (text, remedy) = match node {
            None => (
                format!("this node's Node object {name} is not known"),
                "give the name that kubectl get nodes shows as --hostname-override, or add the \
                 object to the manifests",
            ),
            Some(_) if affected.is_empty() => {
                if self.logged.end() {
                    tracing::info!("this node's Node object {name} has all that is needed now");
                }
                return None;
            }
            Some(_) => {
                let lacking = [
                    node_ports.map(|_| "InternalIP or ExternalIP in status.addresses"),
                    pods.map(|_| "spec.podCIDRs"),
                ];
                let lacking: Vec<&str> = lacking.into_iter().flatten().collect();
                let lacking = lacking.join(" and no ");
                (
                    format!("this node's Node object {name} has no {lacking}"),
                    "see that the kubelet (--node-ip), the cloud controller and the controller \
                     manager set it",
                )
            }
        };
        if affected.is_empty() {
            if self.logged.differs(&text) {
                tracing::info!("{text}; nothing depends on it");
            }
            return None;
        }
        let text = format!("{text}: {}; {remedy}", affected.join("; "));
        if self.logged.differs(&text) {
            tracing::warn!("{text}");
        }
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addresses: &[&str], pod_cidrs: &[&str]) -> Node {
        Node {
            name: "here".into(),
            zone: None,
            pod_cidrs: pod_cidrs
                .iter()
                .map(|net| net.parse().expect("net"))
                .collect(),
            addresses: addresses.iter().map(|ip| ip.parse().expect("IP")).collect(),
            deleting: false,
            to_be_deleted: false,
            weight: None,
        }
    }

    #[test]
    fn what_depends_on_the_object_is_named_until_it_is_known() {
        let dependents = NodeDependents {
            node_ports: Some("node ports are not served".to_owned()),
            pods: None,
        };
        let known = node(&["192.0.2.1"], &[]);
        let mut this = ThisNode::new("here", dependents);
        assert_eq!(this.observe(Some(&known), true), None);
        assert_eq!(this.observe(None, false), None, "there are no node ports");
        let missing = this.observe(None, true);
        let missing = missing.expect("something depends on it");
        let begin = "this node's Node object here is not known: node ports are not served; ";
        assert!(missing.starts_with(begin), "{missing}");
        assert!(missing.contains("--hostname-override"), "{missing}");
        assert_eq!(this.observe(None, true), Some(missing));
        assert_eq!(this.observe(Some(&known), true), None);
        assert!(!this.logged.end(), "it is logged anew when it goes again");
        let mut this = ThisNode::new("here", NodeDependents::default());
        assert_eq!(this.observe(None, true), None);
    }

    #[test]
    fn what_the_object_lacks_is_named() {
        let dependents = NodeDependents {
            node_ports: Some("node ports are not served".to_owned()),
            pods: Some("pods are not distinguished from others".to_owned()),
        };
        let mut this = ThisNode::new("here", dependents);
        let begins = [
            (
                node(&[], &["10.1.0.0/24"]),
                "this node's Node object here has no InternalIP or ExternalIP in \
                 status.addresses: node ports are not served; ",
            ),
            (
                node(&["192.0.2.1"], &[]),
                "this node's Node object here has no spec.podCIDRs: pods are not distinguished from \
                 others; ",
            ),
        ];
        for (node, begin) in begins {
            let missing = this.observe(Some(&node), true).expect("something");
            assert!(missing.starts_with(begin), "{missing}");
        }
        let whole = node(&["192.0.2.1"], &["10.1.0.0/24"]);
        assert_eq!(this.observe(Some(&whole), true), None);
    }
}
