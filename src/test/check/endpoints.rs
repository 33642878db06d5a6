//! Endpoints that do not answer when they are called directly; pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use net::Family;

use super::{super::call::Seen, attempt::words};
use crate::ask::check::{CheckReport, Finding};

/// Number of silent pods of a node from which on the network is at fault, and not the pods.
const SEVERAL: usize = 2;

/// An endpoint that was called.
#[derive(Clone, Debug)]
pub struct Called {
    /// `namespace/name:port` of a ServicePort that uses it.
    pub service_port: String,
    pub namespace: String,
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

    /// Returns whether its node is reached.
    fn answers(&self) -> bool {
        matches!(self.seen, Seen::Open | Seen::Refused)
    }

    fn of_service(&self) -> (&str, Family) {
        (&self.service_port, self.family())
    }

    fn family(&self) -> Family {
        Family::of(&self.address.ip())
    }
}

/// Adds the endpoints that did not answer `node`. NetworkPolicies let a node call its own pods, for
/// the kubelet's probes, but may forbid it to call those of other nodes. So each endpoint is judged
/// by its own node. A node cannot be reached if none of its pods answers whose Services answer on a
/// further node, since NetworkPolicies apply to the pods of a Service alike.
/// `hosts` are addresses of nodes: programs there answer without the pod network.
pub fn add(node: &str, hosts: &BTreeSet<IpAddr>, called: &[Called], report: &mut CheckReport) {
    let is_other =
        |one: &&Called| one.other_than(node).is_some() && !hosts.contains(&one.address.ip());
    let answering = called.iter().filter(is_other).filter(|one| one.answers());
    let answering: BTreeSet<_> = answering.map(Called::of_service).collect();
    let mut others: BTreeMap<(&str, Family), Pods<'_>> = BTreeMap::new();
    let mut families: BTreeMap<Family, Pods<'_>> = BTreeMap::new();
    for one in called.iter().filter(is_other) {
        families.entry(one.family()).or_default().add(one);
        let other = one.other_than(node).unwrap_or_default();
        if answering.contains(&one.of_service()) {
            others.entry((other, one.family())).or_default().add(one);
        }
    }
    let alone = families
        .iter()
        .filter(|(_, pods)| pods.are_silent() && pods.namespaces.len() > 1);
    let alone: BTreeSet<Family> = alone.map(|(family, _)| *family).collect();
    let unreachable = others.iter().filter(|(_, pods)| pods.are_silent());
    let unreachable: BTreeSet<(&str, Family)> = unreachable.map(|(of, _)| *of).collect();
    let remedy = "check the pod network between the nodes, and the policy of chain FORWARD on them; \
                  a NetworkPolicy may forbid it as well";
    for family in &alone {
        let problem = "none of those called answers this node";
        let object = format!("{family} pods of other nodes");
        report.fault(node, object, problem, remedy);
    }
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
        let what = words(&one.seen);
        match one.other_than(node) {
            Some(other) if unreachable.contains(&(other, one.family())) => {}
            Some(_) if alone.contains(&one.family()) => {}
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
                report.fault(node, object, problem, remedy);
            }
        }
    }
}

/// Endpoints that were called.
#[derive(Default)]
struct Pods<'a> {
    called: BTreeSet<IpAddr>,
    namespaces: BTreeSet<&'a str>,
    answer: bool,
}

impl<'a> Pods<'a> {
    fn add(&mut self, one: &'a Called) {
        self.called.insert(one.address.ip());
        self.namespaces.insert(&one.namespace);
        self.answer |= one.answers();
    }

    /// Returns whether the network is at fault, and not a pod.
    fn are_silent(&self) -> bool {
        !self.answer && self.called.len() >= SEVERAL
    }
}
