//! Endpoints that do not answer when they are called directly; pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use net::Family;

use super::super::cluster::existing::Seen;
use crate::ask::check::{CheckReport, Finding};

/// Number of silent pods of a node from which on the network is at fault, and not the pods.
const SEVERAL: usize = 2;

/// An endpoint that was called.
#[derive(Clone, Debug)]
pub struct Called {
    /// `namespace/name:port` of a ServicePort that uses it.
    pub service_port: String,
    /// Its protocol.
    pub protocol: String,
    pub address: SocketAddr,
    /// The node on which it runs.
    pub node: Option<String>,
    pub seen: Seen,
}

impl Called {
    /// Returns its node, if that is another one.
    fn other_than(&self, node: &str) -> Option<&str> {
        self.node.as_deref().filter(|other| *other != node)
    }

    fn family(&self) -> Family {
        Family::of(&self.address.ip())
    }
}

/// Adds the endpoints that did not answer `node`. NetworkPolicies let a node call its own pods, for
/// the kubelet's probes, but may forbid it to call those of other nodes. So each endpoint is judged
/// by its own node; a node on which no pod answers cannot be reached.
pub fn add(node: &str, called: &[Called], report: &mut CheckReport) {
    let mut others: BTreeMap<(&str, Family), Pods> = BTreeMap::new();
    for one in called {
        if let Some(other) = one.other_than(node) {
            let pods = others.entry((other, one.family())).or_default();
            pods.called.insert(one.address.ip());
            pods.answers |= one.seen == Seen::Open;
        }
    }
    let is_unreachable = |pods: &Pods| !pods.answers && pods.called.len() >= SEVERAL;
    let unreachable = others.iter().filter(|(_, pods)| is_unreachable(pods));
    let unreachable: BTreeSet<(&str, Family)> = unreachable.map(|(of, _)| *of).collect();
    let remedy = "check the pod network between the nodes, and the policy of chain FORWARD on them; \
                  a NetworkPolicy may forbid it as well";
    for (other, family) in &unreachable {
        let problem = "none of its endpoints answers another node";
        let object = format!("{family} pods of node {other}");
        let finding = Finding::new(other, object, problem, remedy);
        report.faults.push(finding.seen_from(node));
    }
    for one in called.iter().filter(|one| one.seen != Seen::Open) {
        let object = format!(
            "endpoint {} {} of {}",
            one.address, one.protocol, one.service_port
        );
        let what = one.seen.words();
        match one.other_than(node) {
            Some(other) if unreachable.contains(&(other, one.family())) => {}
            Some(other) => {
                let problem = format!("{what}, when another node calls it");
                let remedy = "a NetworkPolicy may forbid it; if its own node reports it as well, \
                              see there";
                let finding = Finding::new(other, object, problem, remedy);
                report.notes.push(finding.seen_from(node));
            }
            None => {
                let problem = format!("{what}, when it is called directly");
                let remedy = "see the log of the pod; a readiness probe would take it out of use";
                report
                    .faults
                    .push(Finding::new(node, object, problem, remedy));
            }
        }
    }
}

/// Endpoints of one node and IP family.
#[derive(Default)]
struct Pods {
    called: BTreeSet<IpAddr>,
    answers: bool,
}
