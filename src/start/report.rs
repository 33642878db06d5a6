//! Messages of this process at its start: what it does without, and what depends on objects that
//! are not known yet.

use super::probe::Chosen;
use crate::{
    cli::Settings,
    config::{DetectLocal, Effective, ModeName},
    events::{Event, Recorder},
    node::NodePorts,
    runner::{self, NodeDependents, question::Caller},
};

/// Logs, and reports to the cluster, what this process does without.
pub(super) fn report(choice: &Chosen, settings: &Settings, recorder: &Recorder) {
    let without = &settings.own.without;
    if !without.is_empty() {
        let words: Vec<_> = without.words().into_iter().collect();
        tracing::info!("excluded by --without: {}", words.join(", "));
    }
    let mode = choice.mode;
    if let Some(notice) = mode_notice(&settings.effective) {
        tracing::info!("{notice}");
    }
    for reason in &choice.passed_over {
        tracing::warn!("running in {mode} mode, as {reason}");
        recorder.post(Event::worse_mode(format!(
            "Running in {mode} mode, as {reason}"
        )));
    }
    if let Some(hidden) = &choice.hides_clients {
        tracing::warn!("{hidden}");
        recorder.post(Event::clients_hidden(hidden.clone()));
    }
    match pods_unknown(&settings.effective) {
        Some(_) if settings.own.manifests.is_some() => tracing::info!(
            "no cluster CIDR is given (--cluster-cidr), so pods are not distinguished from other \
             callers; without a cluster, none is needed"
        ),
        Some(unknown) => tracing::warn!("{unknown}"),
        None => {}
    }
    for loss in &choice.lost {
        tracing::warn!("{loss}");
    }
}

/// The message if the configuration names no mode.
fn mode_notice(effective: &Effective) -> Option<String> {
    (!effective.is_mode_named).then(|| {
        format!(
            "no mode is named, so Tripod runs the best one for this kernel, {} mode if possible \
             (kube-proxy would run {} mode, and later versions {} mode); name one with --proxy-mode \
             or, in the configuration, mode",
            effective.mode,
            ModeName::Iptables,
            ModeName::Nftables
        )
    })
}

/// The warning that it is not known where pods are. Like kube-proxy's, it is given for the node's
/// first family only. If one family has a network, the runner reports the other one as soon as it
/// has a Service: a single-stack cluster has no network of the other.
fn pods_unknown(effective: &Effective) -> Option<String> {
    let DetectLocal::ClusterCidr(networks) = &effective.detect_local else {
        return None;
    };
    let what = "detectLocalMode is ClusterCIDR, and clusterCIDR (--cluster-cidr)";
    networks
        .is_empty()
        .then(|| runner::pods_unknown(what, effective.primary_family))
}

/// The caller of a packet if a question does not name the sender: a pod, unless it is not known
/// where pods are.
pub(super) fn caller(effective: &Effective) -> Caller {
    match pods_unknown(effective) {
        Some(_) => Caller::Node,
        None => Caller::Pod,
    }
}

/// Consequences of not knowing this node's object.
pub(super) fn node_dependents(
    node_ports: &NodePorts,
    detect_local: &DetectLocal,
) -> NodeDependents {
    let families = node_ports.of_node_object();
    let names: Vec<&str> = families.iter().map(|family| family.name()).collect();
    let node_ports = (!names.is_empty()).then(|| {
        format!(
            "node ports and health-check node ports are not served at the node's primary {} \
             addresses (nodePortAddresses is primary, the default of nftables mode; \
             --nodeport-addresses=all serves them at every address)",
            names.join(" and ")
        )
    });
    let pods = (*detect_local == DetectLocal::NodeCidr).then(|| {
        "pods of this node are not distinguished from other callers (detectLocalMode is NodeCIDR)"
            .to_owned()
    });
    NodeDependents {
        node_ports,
        pods,
        detect_local: detect_local.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn a_mode_that_is_not_named_is_noticed() {
        for (flags, noticed) in [
            (&[][..], Some("ipvs mode if possible")),
            (
                &["--feature-gates=KubeProxyIPVS=false"],
                Some("nftables mode if possible"),
            ),
            (&["--proxy-mode=ipvs"], None),
        ] {
            let words = ["tripod"].iter().chain(flags);
            let read = cli::read(words.map(Into::into), |_| unreachable!("no file"));
            let found = mode_notice(&read.expect("good flags").effective);
            match (found, noticed) {
                (Some(found), Some(noticed)) => assert!(found.contains(noticed), "{found}"),
                (found, noticed) => assert_eq!(found.as_deref(), noticed, "{flags:?}"),
            }
        }
    }

    #[test]
    fn what_depends_on_the_node_object_is_known() {
        for (flags, expected) in [
            (
                &["--proxy-mode=nftables"][..],
                &["primary IPv4 and IPv6"][..],
            ),
            (
                &["--proxy-mode=nftables", "--bind-address=192.0.2.1"],
                &["primary IPv6 addresses"],
            ),
            (
                &["--proxy-mode=nftables", "--nodeport-addresses=0.0.0.0/0"],
                &[],
            ),
            (&["--proxy-mode=iptables"], &[]),
            (
                &["--proxy-mode=iptables", "--detect-local-mode=NodeCIDR"],
                &["NodeCIDR"],
            ),
        ] {
            let words = ["tripod"].iter().chain(flags);
            let read = cli::read(words.map(Into::into), |_| unreachable!("no file"));
            let effective = read.expect("good flags").effective;
            let node_ports = NodePorts::new(&effective.node_ports, effective.node_ip);
            let found = node_dependents(&node_ports, &effective.detect_local);
            let found: Vec<String> = found.node_ports.into_iter().chain(found.pods).collect();
            assert_eq!(found.len(), expected.len(), "{flags:?}: {found:?}");
            for (found, words) in found.iter().zip(expected) {
                assert!(found.contains(words), "{flags:?}: {found:?}");
            }
        }
    }

    #[test]
    fn pods_of_the_first_family_are_to_be_known() {
        for (flags, unknown) in [
            (&[][..], Some("IPv4")),
            (&["--bind-address=::"], Some("IPv6")),
            (&["--cluster-cidr=fd00:244::/64"], None),
            (&["--cluster-cidr=10.244.0.0/16"], None),
            (&["--cluster-cidr=10.244.0.0/16", "--bind-address=::"], None),
            (
                &["--cluster-cidr=10.244.0.0/16", "--bind-address=fd00::1"],
                None,
            ),
            (&["--detect-local-mode=NodeCIDR"], None),
        ] {
            let words = ["tripod"].iter().chain(flags);
            let read = cli::read(words.map(Into::into), |_| unreachable!("no file"));
            let effective = read.expect("good flags").effective;
            let found = pods_unknown(&effective);
            let expected = match unknown {
                Some(_) => Caller::Node,
                None => Caller::Pod,
            };
            assert_eq!(caller(&effective), expected, "{flags:?}");
            let named = found.as_ref().map(|text| {
                let family = text.split_once("no network of ").expect("a family").1;
                &family[..4]
            });
            assert_eq!(named, unknown, "{flags:?}: {found:?}");
        }
    }
}
