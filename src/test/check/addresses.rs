//! Calls addresses of Services: those of this node, and node ports and health-check node ports of
//! others.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use futures_util::future::join_all;

use super::{
    super::{
        call::Seen,
        cluster::existing::{compare, kind},
        report::Outcome,
    },
    attempt::{attempt, health_check, words},
    calls::{Calls, Doubt, Judged},
    sample::{Target, name},
};
use crate::{
    ask::check::Finding,
    status_api::{Address, Endpoint, ServicePort},
};

/// Number of connections to an address that forwards them.
const CONNECTIONS: usize = 3;

/// Number of connections of which none gets through, where one may be sent to an endpoint that does
/// not answer this node.
const MORE: usize = 8;

/// Number of node ports of another node after which it counts as unreachable, if none answers.
const FIRST: usize = 3;

impl Calls<'_> {
    /// Calls these addresses, and node ports at other nodes.
    pub async fn addresses(&self, ports: &[ServicePort], sample: &[Target<'_>]) -> Vec<Judged> {
        let own = join_all(sample.iter().map(async |Target { port, address }| {
            let call = async |_: &[_], port: &_| self.address(port, address).await;
            self.judged(ports, port, call).await
        }));
        let nodes = ["IPv4", "IPv6"].into_iter().flat_map(|family| {
            let own = self.own_ip(family).map(|ip| (self.node, ip));
            own.into_iter().chain(self.others(family))
        });
        let at_nodes = join_all(nodes.map(|node| self.at_node(node, ports, sample)));
        let (mut judged, at_nodes) = tokio::join!(own, at_nodes);
        judged.extend(at_nodes.into_iter().flatten());
        judged
    }

    /// Calls node ports of another node, and health-check node ports of any; only a few, if none
    /// answers.
    async fn at_node(
        &self,
        node: (&str, IpAddr),
        ports: &[ServicePort],
        sample: &[Target<'_>],
    ) -> Vec<Judged> {
        let family = if node.1.is_ipv4() { "IPv4" } else { "IPv6" };
        let of_family = sample.iter().filter(|one| one.port.family == family);
        let is_other = node.0 != self.node;
        let node_ports = of_family.clone();
        let node_ports = node_ports.filter(|one| one.address.ip.is_none() && is_other);
        let node_ports: Vec<&Target<'_>> = node_ports.collect();
        let call = async |target: &&Target<'_>| {
            let Target { port, address } = **target;
            let call = async |_: &[_], port: &_| self.node_port(port, address, node).await;
            self.judged(ports, port, call).await
        };
        let (first, rest) = node_ports.split_at(FIRST.min(node_ports.len()));
        let mut judged = join_all(first.iter().map(call)).await;
        let is_wrong = |one: &Judged| matches!(one, Err(Doubt::Wrong(_)));
        if judged.len() == FIRST && judged.iter().all(is_wrong) {
            let remedy = "is the node up? Allow node ports in its packet filters, and between the \
                          nodes";
            let object = format!("node ports of {}", node.1);
            let finding = Finding::new(node.0, object, "none of those called answers", remedy);
            return vec![Err(Doubt::Wrong(finding.seen_from(self.node)))];
        }
        judged.extend(join_all(rest.iter().map(call)).await);
        let checked = of_family.filter(|one| one.port.health_check.is_some());
        let checked: BTreeMap<_, _> = checked.map(|one| (service(one.port), one.port)).collect();
        let checks = checked.into_values().map(async |port| {
            let call = async |ports: &[_], port: &_| self.health_check(ports, port, node).await;
            self.judged(ports, port, call).await
        });
        judged.extend(join_all(checks).await);
        judged
    }

    /// Calls an address of this node.
    async fn address(&self, port: &ServicePort, address: &Address) -> Judged {
        let to = self.destination(port, address);
        let Some(to) = to.filter(|_| port.addresses.contains(address)) else {
            return Ok(());
        };
        let explained = self.explain(to, &port.protocol).await?;
        let is_forwarded = explained.verdict == "forwarded";
        let mut seen = Vec::new();
        for _ in 0..if is_forwarded { CONNECTIONS } else { 1 } {
            seen.push(attempt(to, &port.protocol).await);
            if compare(&seen, &explained).outcome != Outcome::Passed {
                break;
            }
        }
        if compare(&seen, &explained).outcome != Outcome::Failed {
            return Ok(());
        }
        let mut remedy = "another program answers, or drops the refusal: tripod trace to this \
                          address shows the rule";
        if is_forwarded {
            remedy = "its endpoints answer, so a rule of this node is in the way: tripod trace to \
                      this address shows which";
            let candidates = explained.candidates.iter();
            let candidates = candidates
                .filter_map(|one| Some((one.address.parse().ok()?, one.share.unwrap_or(1.0))));
            if !self.all_answer(candidates.collect(), port).await? {
                seen.extend(join_all((0..MORE).map(|_| attempt(to, &port.protocol))).await);
                if seen.contains(&Seen::Open) {
                    return Ok(());
                }
            }
        }
        let finding = compare(&seen, &explained);
        let kind = kind(address);
        let object = format!("{kind} {to} {} of {}", port.protocol, name(port));
        let problem = format!("promised: {}; {}", finding.promised, finding.seen);
        Err(Doubt::Wrong(Finding::new(
            self.node, object, problem, remedy,
        )))
    }

    fn destination(&self, port: &ServicePort, address: &Address) -> Option<SocketAddr> {
        let ip = match &address.ip {
            Some(ip) => ip.parse().ok(),
            None => self.own_ip(&port.family),
        };
        Some((ip?, address.port).into())
    }

    /// Calls a node port at another node, if an endpoint must answer there.
    async fn node_port(
        &self,
        port: &ServicePort,
        address: &Address,
        (other, ip): (&str, IpAddr),
    ) -> Judged {
        let own = self.destination(port, address);
        let Some(own) = own.filter(|_| port.addresses.contains(address)) else {
            return Ok(());
        };
        if self.explain(own, &port.protocol).await?.verdict == "notServed" {
            return Ok(());
        }
        let is_local = port.external_traffic_policy == "Local";
        let takes =
            |one: &&Endpoint| one.in_use && (!is_local || one.node.as_deref() == Some(other));
        let endpoints = port.endpoints.iter().filter(takes);
        let endpoints = endpoints.filter_map(|one| Some((one.address.parse().ok()?, 1.0)));
        let endpoints: Vec<_> = endpoints.collect();
        if endpoints.is_empty() {
            return Ok(());
        }
        let to = SocketAddr::new(ip, address.port);
        // From there, an endpoint may be out of reach that answers here: that is another fault.
        let mut seen = attempt(to, &port.protocol).await;
        if seen != Seen::Open {
            let more = join_all((1..MORE).map(|_| attempt(to, &port.protocol))).await;
            let open = more.into_iter().find(|seen| *seen == Seen::Open);
            seen = open.unwrap_or(seen);
        }
        if seen == Seen::Open {
            return Ok(());
        }
        self.all_answer(endpoints, port).await?;
        let object = format!("node port {to} {} of {}", port.protocol, name(port));
        let remedy = "its endpoints answer: allow node ports in the packet filters of the node, and \
                      between the nodes";
        let finding = Finding::new(other, object, words(&seen), remedy);
        Err(Doubt::Wrong(finding.seen_from(self.node)))
    }

    /// Asks the health-check node port of a Service, one of whose `ports` this is.
    async fn health_check(
        &self,
        ports: &[ServicePort],
        port: &ServicePort,
        (node, ip): (&str, IpAddr),
    ) -> Judged {
        let (Some(check), Some(own)) = (port.health_check, self.own_ip(&port.family)) else {
            return Ok(());
        };
        let own = SocketAddr::new(own, check.port);
        if self.explain(own, "tcp").await?.verdict != "answered" {
            return Ok(());
        }
        let mut all = ports.iter().filter(|one| service(one) == service(port));
        let is_here = |one: &ServicePort| {
            let check = one.health_check.filter(|_| one.family == port.family);
            check.is_some_and(|check| check.local_endpoints > 0)
        };
        let here = (node == self.node).then(|| all.any(is_here));
        let to = SocketAddr::new(ip, check.port);
        let Some((problem, remedy)) = health_check(to, here).await else {
            return Ok(());
        };
        let (namespace, name) = service(port);
        let object = format!("health-check node port {to} of {namespace}/{name}");
        let finding = Finding::new(node, object, problem, remedy);
        Err(Doubt::Wrong(finding.seen_from(self.node)))
    }
}

fn service(port: &ServicePort) -> (&str, &str) {
    (&port.namespace, &port.name)
}
