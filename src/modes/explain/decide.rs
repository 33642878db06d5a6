//! The decision on a packet.

use std::net::SocketAddr;

use hashbrown::HashSet;
use net::{Family, Protocol};

use super::{
    Behaviour, Caller, Candidate, Carrier, Explanation, Loopback, Origin, OtherPorts, Packet, Pods,
    Properties, Selection, Verdict, endpoints,
    frontend::{self, Frontend, is_own},
    ranges::{self, Admission},
};
use crate::services::{
    AddressKind, Endpoint, Preferences, Reach, ServiceAddresses, ServiceMap, ServicePort,
    TrafficPolicy,
};

/// Why packets are dropped that would be refused elsewhere.
pub(super) const NO_REFUSAL: &str = "rules on this kernel cannot refuse";

/// What happens at ports of the node that Tripod leaves to it.
const LISTENERS: &str = "what listens on the node answers, or it is refused";

/// Decides on `packet` in a mode with this `behaviour`, which chooses endpoints by this
/// `selection`, among those that are not `ejected`. The objects that implement the decision are not
/// filled in.
pub fn decide(
    map: &ServiceMap,
    behaviour: &Behaviour,
    selection: &dyn Fn(&ServicePort) -> Selection,
    ejected: &dyn Fn(&ServicePort) -> HashSet<SocketAddr>,
    packet: &Packet,
) -> Explanation {
    let asked = packet;
    let packet = &Packet {
        to: asked.destination(),
        ..*asked
    };
    let mut way = Way {
        map,
        behaviour,
        selection,
        ejected,
        packet,
        explanation: Explanation {
            properties: behaviour.properties,
            origin: origin(behaviour, packet),
            served_by: None,
            verdict: Verdict::NotServed,
            steps: Vec::new(),
            candidates: Vec::new(),
            passed_over: Vec::new(),
            no_endpoints: None,
            objects: Vec::new(),
        },
    };
    way.name_caller();
    if way.is_for_the_caller_itself(asked) {
        return way.explanation;
    }
    let frontend = frontend::of(map, behaviour, packet);
    // This process answers health checks itself, independent of the kernel's abilities.
    if let (Some(why), false) = (
        &behaviour.unserved,
        matches!(frontend, Frontend::HealthCheck(_)),
    ) {
        let family = Family::of(&packet.to.ip());
        let mode = behaviour.properties.mode;
        let why = format!("{mode} mode serves no {family} Services on this node: {why}");
        way.end(Verdict::NotServed, why);
        return way.explanation;
    }
    match frontend {
        Frontend::Of(port, role) => way.service(port, role),
        Frontend::OtherPort(port, role) => way.other_port(port, role),
        Frontend::HealthCheck(port) => way.health_check(port),
        Frontend::None => way.unowned(),
    }
    way.name_dead_ends();
    way.explanation
}

fn origin(behaviour: &Behaviour, packet: &Packet) -> Origin {
    let ip = match packet.from {
        // Pods that are not distinguished are treated as everybody.
        Caller::Pod if behaviour.pods == Pods::Within(Vec::new()) => return Origin::Outside,
        Caller::Pod => return Origin::Pod,
        Caller::Node => return Origin::Node,
        Caller::Outside => return Origin::Outside,
        Caller::At(ip) => ip,
    };
    // No other host calls an address from that very one: it would be a martian.
    if is_own(behaviour, ip) || ip == packet.to.ip() {
        return Origin::Node;
    }
    match &behaviour.pods {
        Pods::Within(networks) if networks.iter().any(|network| network.contains(&ip)) => {
            Origin::Pod
        }
        Pods::Within(_) | Pods::Through(_) => Origin::Outside,
    }
}

/// The endpoints of `port` that take connections, those on this node alone if it `is_local`.
fn reached(port: &ServicePort, is_local: bool) -> (Reach, Vec<&Endpoint>) {
    if is_local {
        (Reach::Local, endpoints(port, &port.endpoints.local))
    } else {
        (Reach::Any, endpoints(port, &port.endpoints.cluster))
    }
}

/// The way of a packet, as far as it is known.
pub(super) struct Way<'a> {
    pub(super) map: &'a ServiceMap,
    pub(super) behaviour: &'a Behaviour,
    selection: &'a dyn Fn(&ServicePort) -> Selection,
    pub(super) ejected: &'a dyn Fn(&ServicePort) -> HashSet<SocketAddr>,
    pub(super) packet: &'a Packet,
    pub(super) explanation: Explanation,
}

impl Way<'_> {
    pub(super) fn step(&mut self, words: impl Into<String>) {
        self.explanation.steps.push(words.into());
    }

    /// Names the candidates that are addresses of Services themselves: the kernel's modes translate
    /// a packet once, and userspace mode marks packets that it must not capture.
    fn name_dead_ends(&mut self) {
        if self.explanation.candidates.is_empty() {
            return;
        }
        let addresses = ServiceAddresses::of(self.map.iter());
        let asked = self.explanation.served_by.clone();
        for Candidate { address, .. } in self.explanation.candidates.clone() {
            let owner = addresses.owner(self.packet.protocol, address);
            let owner = owner.or_else(|| self.node_port_at(address));
            // An external IP of the Service itself is where its endpoint is.
            if let Some((name, _)) = owner
                && asked.as_ref().is_none_or(|(asked, _)| asked != name)
            {
                self.step(format!(
                    "endpoint {address} is itself an address of {name}: calls that are sent there \
                     do not reach its endpoints"
                ));
            }
        }
    }

    pub(super) fn end(&mut self, verdict: Verdict, why: impl Into<String>) {
        self.explanation.verdict = verdict;
        self.step(why);
    }

    fn name_caller(&mut self) {
        let who = match (
            self.explanation.origin,
            self.packet.from,
            &self.behaviour.pods,
        ) {
            (Origin::Node, ..) => "the node itself".to_owned(),
            (Origin::Pod, ..) => "a pod of the cluster".to_owned(),
            (Origin::Outside, Caller::At(_), Pods::Through(link)) => {
                format!("outside the cluster, unless it comes through {link}: then give --from=pod")
            }
            (Origin::Outside, Caller::Pod, _) => {
                "a pod, which counts as a host outside the cluster: nothing distinguishes them \
                 here (clusterCIDR)"
                    .to_owned()
            }
            (Origin::Outside, ..) => "outside the cluster".to_owned(),
        };
        self.step(format!("the caller is {who}"));
    }

    /// Returns whether the packet, `asked` about in this form, stays with its caller, which
    /// is not this node.
    fn is_for_the_caller_itself(&mut self, asked: &Packet) -> bool {
        let to = self.packet.to.ip();
        let any = asked.to.ip();
        if any.is_unspecified() {
            self.step(format!("{any} stands for the caller's own host"));
        }
        let is_loopback = to.is_loopback() || any.is_unspecified();
        if !is_loopback || self.explanation.origin == Origin::Node {
            if any.is_unspecified() {
                self.step(format!("so that it is sent to {to}"));
            }
            return false;
        }
        let what = if any.is_unspecified() {
            "so that it never reaches this node"
        } else {
            "it is a loopback address, which is the caller's own: it never reaches this node"
        };
        self.end(Verdict::NotServed, what);
        true
    }

    /// No Service has the address.
    fn unowned(&mut self) {
        let ip = self.packet.to.ip();
        if is_own(self.behaviour, ip) {
            let why = "it is an address of the node, and no Service has that port there";
            return self.end(Verdict::NotServed, format!("{why}: {LISTENERS}"));
        }
        let mut dropped = self.behaviour.dropped_networks.iter();
        if let Some(network) = dropped.find(|network| network.contains(&ip)) {
            let why = format!("no Service has it, and {network} is only for cluster IPs");
            return self.end(Verdict::Dropped, why);
        }
        self.end(
            Verdict::NotServed,
            "no Service has this address: it is routed as usual",
        );
    }

    fn other_port(&mut self, port: &ServicePort, role: AddressKind) {
        let service = &port.name.service;
        self.step(format!(
            "it is the {role} of {service}, which does not name this port"
        ));
        let is_refused = match self.behaviour.other_ports {
            OtherPorts::PassOn => false,
            OtherPorts::RefusedAtClusterIps => role == AddressKind::ClusterIp,
            OtherPorts::RefusedEverywhere => true,
        };
        let mode = self.behaviour.properties.mode;
        if is_refused && !self.behaviour.rules.refuse {
            let why = format!("{mode} mode drops what is sent to other ports of it: {NO_REFUSAL}");
            self.end(Verdict::Dropped, why);
        } else if is_refused {
            self.end(
                Verdict::Refused,
                format!("{mode} mode refuses other ports of it"),
            );
        } else {
            self.end(Verdict::NotServed, "it is routed as usual");
        }
    }

    /// Decides about the health-check node port of `port`'s Service: a socket of this
    /// process listens where node ports are served, in every mode.
    fn health_check(&mut self, port: &ServicePort) {
        let service = &port.name.service;
        self.step(format!("it is the health-check node port of {service}"));
        let (served, ip) = (&self.behaviour.served, self.packet.to.ip());
        // Its sockets listen at each of the node's addresses that is served, or at all of them.
        if served.is_whole() || served.contains(&ip) && self.behaviour.own.contains(&ip) {
            let why = "Tripod itself answers over HTTP how many endpoints are on this node";
            self.end(Verdict::Answered, why);
        } else {
            let why = "health checks are not served at this address (nodePortAddresses)";
            self.end(Verdict::NotServed, format!("{why}: {LISTENERS}"));
        }
    }

    fn service(&mut self, port: &ServicePort, role: AddressKind) {
        self.explanation.served_by = Some((port.name.clone(), role));
        let name = &port.name;
        self.step(format!("it is the {role} of {name} ({})", name.protocol));
        if port.is_range() {
            self.step("its port is in a range, which is forwarded port for port");
        }
        if role == AddressKind::NodePort {
            self.name_unserved_check(port);
            if let Some(why) = self.node_port_unserved() {
                return self.at_unserved_node_port(port, why);
            }
        }
        let Properties { mode, carrier, .. } = self.behaviour.properties;
        if *carrier == Carrier::Sockets && name.protocol == Protocol::Sctp {
            let verdict = match role {
                AddressKind::NodePort => Verdict::Refused,
                _ => Verdict::Dropped,
            };
            return self.end(verdict, format!("{mode} mode does not carry SCTP"));
        }
        if !self.is_let_in(port, role) {
            return;
        }
        let policy = match role {
            AddressKind::ClusterIp => port.internal_traffic_policy,
            _ => port.external_traffic_policy,
        };
        let is_local = policy == TrafficPolicy::Local && self.stays_here(role, port);
        let (reach, chosen) = reached(port, is_local);
        if chosen.is_empty() {
            self.without_endpoints(port, role, policy, reach);
        } else if let Some(chosen) = self.leave_out(port, &chosen) {
            self.choose(port, &chosen);
        }
    }

    /// Returns whether a policy of Local leaves such a packet the endpoints of `port` on this node
    /// alone.
    fn stays_here(&mut self, role: AddressKind, port: &ServicePort) -> bool {
        let is_ipvs = self.behaviour.properties.carrier == Carrier::Ipvs;
        let is_of_all = is_ipvs && !port.endpoints.local.is_empty();
        let (stays, why) = if role == AddressKind::ClusterIp {
            (
                true,
                "internalTrafficPolicy is Local: only endpoints on this node",
            )
        } else if self.is_relayed() {
            (
                true,
                "externalTrafficPolicy is Local: relayed connections go to endpoints on this node",
            )
        } else if is_ipvs && !is_of_all && self.explanation.origin == Origin::Outside {
            (
                false,
                "externalTrafficPolicy is Local, and no endpoint is on this node: IPVS sends to \
                 any, which sees the caller's own address and does not answer through this node",
            )
        } else if self.explanation.origin == Origin::Outside {
            (
                true,
                "externalTrafficPolicy is Local, and the caller is outside: only endpoints on this \
                 node",
            )
        } else if is_of_all {
            (
                true,
                "externalTrafficPolicy is Local, and IPVS has one virtual server for all callers: \
                 only endpoints on this node, if there are any",
            )
        } else {
            (
                false,
                "externalTrafficPolicy is Local, which does not apply to pods and the node: any \
                 endpoint",
            )
        };
        self.step(why);
        stays
    }

    /// Names the Service whose health-check node port is the node port of `port`.
    fn name_unserved_check(&mut self, port: &ServicePort) {
        let lost = self.map.iter().find(|other| {
            let mut lost = other.conflicts.iter();
            lost.any(|lost| {
                lost.kind == AddressKind::HealthCheckNodePort && lost.owner == port.name
            })
        });
        if let Some(other) = lost {
            let service = &other.name.service;
            self.step(format!(
                "{service} has it as its health-check node port, which is not answered: node ports \
                 take precedence over health checks"
            ));
        }
    }

    /// Returns why no node port is served at the destination, which is the node's; `None`: they are.
    fn node_port_unserved(&self) -> Option<&'static str> {
        let ip = self.packet.to.ip();
        let served = self.behaviour.served.contains(&ip);
        let known = self.behaviour.rules.known.as_ref();
        if !ip.is_loopback() {
            if known.is_some_and(|known| !known.contains(&ip)) {
                Some(
                    "rules on this kernel know only the node's addresses that its Node object \
                     lists, and it does not list this one",
                )
            } else {
                (!served).then_some("node ports are not served at this address (nodePortAddresses)")
            }
        } else {
            match &self.behaviour.loopback {
                Loopback::Sockets | Loopback::Redirected if !served => {
                    Some("node ports are not served at loopback addresses (nodePortAddresses)")
                }
                Loopback::Sockets => (!self.behaviour.own.contains(&ip))
                    .then_some("sockets listen at the node's own addresses, of which this is none"),
                Loopback::Redirected => None,
                Loopback::Rules { .. } if Family::of(&ip) == Family::V6 => {
                    Some("rules cannot serve node ports at ::1")
                }
                Loopback::Rules { served: at_all } => (!at_all || !served).then_some(
                    "node ports are not served at this loopback address (nodePortAddresses, \
                     iptables.localhostNodePorts)",
                ),
                Loopback::Relayed(addresses) if !addresses.contains(&ip) => Some(
                    "node ports are served at loopback addresses only if nodePortAddresses names them",
                ),
                Loopback::Relayed(_) => (self.packet.protocol != Protocol::Tcp)
                    .then_some("at loopback addresses only TCP is relayed"),
            }
        }
    }

    /// Decides about a node port at an address that serves none, for the reason `why`.
    fn at_unserved_node_port(&mut self, port: &ServicePort, why: &str) {
        let Behaviour {
            properties, rules, ..
        } = self.behaviour;
        let ip = self.packet.to.ip();
        let is_known = rules.known.as_ref().is_none_or(|known| known.contains(&ip));
        let policy = port.external_traffic_policy;
        let (reach, chosen) = reached(port, policy == TrafficPolicy::Local);
        if properties.refuses_unserved && (is_known || ip.is_loopback()) && chosen.is_empty() {
            self.step(why);
            return self.without_endpoints(port, AddressKind::NodePort, policy, reach);
        }
        if ip.is_loopback() && rules.refused_on_loopback.contains(&self.packet.protocol) {
            return self.end(Verdict::Refused, why);
        }
        self.end(Verdict::NotServed, format!("{why}: {LISTENERS}"));
    }

    /// Returns whether sockets of this process relay the packet in a mode of the kernel.
    fn is_relayed(&self) -> bool {
        matches!(self.behaviour.loopback, Loopback::Relayed(_)) && self.packet.to.ip().is_loopback()
    }

    /// Returns whether the source ranges of `port` let the caller in.
    fn is_let_in(&mut self, port: &ServicePort, role: AddressKind) -> bool {
        let origin = self.explanation.origin;
        let mode = self.behaviour.properties.mode;
        match ranges::admission(port, role, self.behaviour, self.packet, origin) {
            Admission::Unguarded => return true,
            Admission::ExternalIpFirst => {
                self.step(format!(
                    "it is a load-balancer IP of the Service, too: in {mode} mode external IPs \
                     take precedence, and loadBalancerSourceRanges do not apply to them"
                ));
                return true;
            }
            Admission::Admitted => {
                self.step("loadBalancerSourceRanges let the caller in");
                return true;
            }
            Admission::Excluded => {
                let why = "the caller is not in loadBalancerSourceRanges";
                self.end(Verdict::Dropped, why);
            }
            Admission::From(sources) => {
                let sources: Vec<String> = sources.iter().map(ToString::to_string).collect();
                let why = format!(
                    "it depends on the source address: loadBalancerSourceRanges let this node in \
                     that calls from {}: give --from an address",
                    sources.join(", ")
                );
                self.end(Verdict::Depends, why);
            }
            Admission::Unknown => {
                let why = "loadBalancerSourceRanges let some callers in: give --from an address";
                self.end(Verdict::Depends, why);
            }
        }
        false
    }

    /// No endpoint gets the packet, of those within `reach`.
    fn without_endpoints(
        &mut self,
        port: &ServicePort,
        role: AddressKind,
        policy: TrafficPolicy,
        reach: Reach,
    ) {
        let none = port.endpoints.none_in_use(reach).unwrap_or_default();
        self.explanation.no_endpoints = Some(none.clone());
        let properties = self.behaviour.properties;
        let has_rules = properties.carrier == Carrier::Rules;
        let elsewhere = policy == TrafficPolicy::Local && port.endpoints.any_takes_connections();
        let is_refused = match properties.carrier {
            Carrier::Rules => false,
            Carrier::Ipvs => true,
            Carrier::Sockets => role == AddressKind::ClusterIp,
        };
        if elsewhere && !is_refused && !self.is_relayed() {
            let why = format!("no endpoint is on this node, so that it gets no answer: {none}");
            return self.end(Verdict::Dropped, why);
        }
        let passes = !properties.refuses_own
            && self.explanation.origin == Origin::Node
            && matches!(role, AddressKind::ExternalIp | AddressKind::LoadBalancerIp);
        if passes {
            let why = format!(
                "no endpoint takes connections: {none}; rules that refuse apply to packets that \
                 arrive at the node; what it sends itself is routed as usual"
            );
            return self.end(Verdict::NotServed, why);
        }
        if has_rules && !self.is_relayed() && !self.behaviour.rules.refuse {
            let why = format!("no endpoint takes connections: {none}; {NO_REFUSAL}");
            return self.end(Verdict::Dropped, why);
        }
        let why = format!("no endpoint takes connections: {none}");
        self.end(Verdict::Refused, why);
    }

    /// How many connections are open is not known here.
    fn limits(&mut self, asked: &Preferences) {
        let countable = self.behaviour.rules.countable;
        for (annotation, most) in asked.limits().filter(|(_, most)| most.get() <= countable) {
            let whose = match annotation {
                Preferences::MAX_CONNECTIONS => "the Service",
                _ => "a client",
            };
            let connections = match most.get() {
                1 => "connection",
                _ => "connections",
            };
            self.step(format!(
                "{whose} has at most {most} {connections} at a time on this node ({annotation})"
            ));
        }
    }

    fn choose(&mut self, port: &ServicePort, chosen: &[&Endpoint]) {
        let selection = (self.selection)(port);
        let weight = |endpoint: &Endpoint| match selection {
            Selection::Equal => 1.0,
            _ => f64::from(endpoint.share()),
        };
        let whole: f64 = chosen.iter().map(|endpoint| weight(endpoint)).sum();
        let is_known = matches!(selection, Selection::Equal | Selection::Weighted);
        let to = |endpoint: &Endpoint| match port.is_range() {
            true => SocketAddr::new(endpoint.address.ip(), self.packet.to.port()),
            false => endpoint.address,
        };
        let candidates = chosen.iter().map(|endpoint| Candidate {
            address: to(endpoint),
            share: is_known.then(|| weight(endpoint) / whole),
        });
        self.explanation.candidates = candidates.collect();
        if chosen.iter().any(|endpoint| endpoint.last_ready) {
            self.step("no endpoint is ready: those that were ready last are used".to_owned());
        }
        let count = match chosen.len() {
            1 => "1 endpoint takes connections".to_owned(),
            count => format!("{count} endpoints take connections: {}", selection.words()),
        };
        self.end(Verdict::Forwarded, count);
        if !port.is_range() {
            self.limits(port.preferences());
        }
        let Some(timeout) = port.session_affinity else {
            return;
        };
        self.step(match (self.behaviour.rules.remember, selection) {
            (_, Selection::Hashed) if self.behaviour.rules.ranges && port.has_ranges() => {
                "sessionAffinity is ClientIP: the client's address determines the endpoint, for all \
                 ports and ranges of the Service"
                    .to_owned()
            }
            (true, _) => format!(
                "sessionAffinity is ClientIP: a client that called within {} s stays on the same \
                 endpoint",
                timeout.as_secs()
            ),
            (false, Selection::Hashed) => {
                "sessionAffinity is ClientIP: rules on this kernel cannot remember clients, so that \
                 the client's address determines the endpoint, however long ago it called"
                    .to_owned()
            }
            (false, _) => {
                "sessionAffinity is ClientIP, which rules on this kernel cannot keep".to_owned()
            }
        });
    }
}
