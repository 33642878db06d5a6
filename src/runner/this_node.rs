//! Reports that this node's object is not known, for example because the node has another name, or
//! that it lacks something that is needed. kube-proxy waits for it for 30 s, and with NodeCIDR
//! exits after five minutes (`NewNodeManager` of its `pkg/proxy/node.go`).

use net::{Family, PerFamily};

use crate::{
    config::DetectLocal,
    log_once::LogOnce,
    services::{Changes, Node},
};

/// Consequences of not knowing this node's object, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDependents {
    /// Consequences for node ports and health-check node ports; `None` if they do not depend on the
    /// Node object.
    pub node_ports: Option<String>,
    /// Consequences of not being able to distinguish pods from other callers; `None` if that does
    /// not depend on the Node object.
    pub pods: Option<String>,
    /// The way in which pods are distinguished from other callers.
    pub detect_local: DetectLocal,
}

/// Message about the consequences of `what` having no network of `family`.
pub fn pods_unknown(what: &str, family: Family) -> String {
    format!(
        "{what} has no network of {family}, so that pods cannot be distinguished from other \
         callers of {family}: in ipvs, nftables and iptables mode, callers of a cluster IP from \
         outside are masqueraded only with masqueradeAll, and pods that call an external address \
         of a Service whose externalTrafficPolicy is Local are treated as callers from outside; \
         name the pods' network, or set another detectLocalMode"
    )
}

/// State of this node's object, and what was logged about it.
#[derive(Debug)]
pub(super) struct ThisNode {
    name: String,
    dependents: NodeDependents,
    logged: LogOnce,
    /// Families that have Services.
    served: PerFamily<bool>,
    /// Messages logged about missing networks of pods.
    networks_logged: PerFamily<LogOnce>,
}

impl ThisNode {
    pub(super) fn new(name: &str, dependents: NodeDependents) -> ThisNode {
        ThisNode {
            name: name.to_owned(),
            dependents,
            logged: LogOnce::default(),
            served: PerFamily::default(),
            networks_logged: PerFamily::default(),
        }
    }

    /// Logs that a family has Services but no known network of pods, while the other family has
    /// one; and when that is resolved.
    pub(super) fn observe_families(&mut self, node: Option<&Node>, changes: &Changes) {
        for port in &changes.ports {
            *self.served.get_mut(port.family) = true;
        }
        let (what, networks) = match &self.dependents.detect_local {
            DetectLocal::ClusterCidr(networks) => (
                "detectLocalMode is ClusterCIDR, and clusterCIDR (--cluster-cidr)".to_owned(),
                &**networks,
            ),
            DetectLocal::NodeCidr => (
                format!(
                    "detectLocalMode is NodeCIDR, and spec.podCIDRs of Node {}",
                    self.name
                ),
                node.map(|node| &*node.pod_cidrs).unwrap_or_default(),
            ),
            DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_) => return,
        };
        for family in Family::ALL {
            let mut of_networks = networks.iter().map(|net| Family::of(&net.addr()));
            let is_other_alone = !networks.is_empty() && of_networks.all(|of| of != family);
            let logged = self.networks_logged.get_mut(family);
            if is_other_alone && *self.served.get(family) {
                if logged.differs(&what) {
                    tracing::warn!(
                        "there are {family} Services, but {}",
                        pods_unknown(&what, family)
                    );
                }
            } else if logged.end() {
                tracing::info!("the network of {family} pods is known now");
            }
        }
    }

    /// Logs that the object is not known or lacks something, or that nothing is missing any more.
    /// Returns the consequences and the remedy if something depends on it: node ports only count if
    /// Services have some.
    pub(super) fn observe(&mut self, node: Option<&Node>, have_node_ports: bool) -> Option<String> {
        let NodeDependents {
            node_ports, pods, ..
        } = &self.dependents;
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
                "set --hostname-override to the name that kubectl get nodes shows, or add the \
                 object to the manifests",
            ),
            Some(_) if affected.is_empty() => {
                if self.logged.end() {
                    tracing::info!(
                        "this node's Node object {name} now has everything that is needed"
                    );
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
                    "check that the kubelet (--node-ip), the cloud controller and the controller \
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

    fn nothing() -> NodeDependents {
        NodeDependents {
            node_ports: None,
            pods: None,
            detect_local: DetectLocal::ClusterCidr(Vec::new()),
        }
    }

    #[test]
    fn networks_of_the_other_family_alone_are_named() {
        let v4 = || node(&["192.0.2.1"], &["10.1.0.0/24"]);
        let both = || node(&["192.0.2.1"], &["10.1.0.0/24", "fd00:1::/64"]);
        let of = |detect_local| NodeDependents {
            detect_local,
            ..nothing()
        };
        let cluster =
            |network: &str| DetectLocal::ClusterCidr(vec![network.parse().expect("a network")]);
        let logged = |detect_local: DetectLocal, node: Node, families: &[Family]| {
            let mut this = ThisNode::new("here", of(detect_local));
            crate::log::lines(0, || {
                for family in families {
                    let mut changes = Changes::default();
                    let port = crate::services::service_ports::port_name("web");
                    changes.ports.insert(port.in_family(*family));
                    // Twice: it must be logged only once.
                    for _ in 0..2 {
                        this.observe_families(Some(&node), &changes);
                    }
                }
                this.observe_families(Some(&both()), &Changes::default());
            })
        };
        let warned = |lines: &[String], words: &[&str]| {
            let warned = lines.iter().filter(|line| line.contains("WARN"));
            let [line] = &warned.collect::<Vec<_>>()[..] else {
                panic!("{lines:#?}");
            };
            assert!(words.iter().all(|words| line.contains(words)), "{line}");
        };
        let all = &Family::ALL;
        let lines = logged(cluster("10.244.0.0/16"), v4(), all);
        warned(&lines, &["clusterCIDR", "no network of IPv6"]);
        let lines = logged(cluster("fd00:244::/64"), v4(), all);
        warned(&lines, &["clusterCIDR", "no network of IPv4"]);
        let lines = logged(DetectLocal::NodeCidr, v4(), all);
        warned(
            &lines,
            &["spec.podCIDRs of Node here", "no network of IPv6"],
        );
        assert_eq!(lines.len(), 2, "and when that is over: {lines:#?}");
        for (detect_local, node, families) in [
            (cluster("10.244.0.0/16"), v4(), &[Family::V4][..]),
            (DetectLocal::NodeCidr, v4(), &[Family::V4]),
            (DetectLocal::NodeCidr, both(), all),
            (DetectLocal::ClusterCidr(Vec::new()), v4(), all),
            (DetectLocal::BridgeInterface("b".to_owned()), v4(), all),
        ] {
            let lines = logged(detect_local, node, families);
            assert_eq!(lines, [""; 0]);
        }
    }

    #[test]
    fn what_depends_on_the_object_is_named_until_it_is_known() {
        let dependents = NodeDependents {
            node_ports: Some("node ports are not served".to_owned()),
            ..nothing()
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
        assert!(!this.logged.end(), "it is logged again when it goes again");
        let mut this = ThisNode::new("here", nothing());
        assert_eq!(this.observe(None, true), None);
    }

    #[test]
    fn what_the_object_lacks_is_named() {
        let dependents = NodeDependents {
            node_ports: Some("node ports are not served".to_owned()),
            pods: Some("pods are not distinguished from others".to_owned()),
            ..nothing()
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
