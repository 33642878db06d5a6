//! What becomes of a packet.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashSet;
use ipnet::IpNet;

use super::{
    Behaviour, Caller, Candidate, Explanation, Loopback, Origin, OtherPorts, Packet, Pods,
    Selection, Verdict,
    frontend::{self, Frontend, is_own},
};
use crate::{
    net::{Family, ModeName, Protocol},
    services::{
        AddressKind, Endpoint, Reach, ServiceMap, ServicePort, SessionAffinity, TrafficPolicy,
    },
};

/// Why packets are dropped that would be refused elsewhere.
const NO_REFUSAL: &str = "rules on this kernel cannot refuse";

/// Returns what becomes of `packet` where the mode behaves so, and chooses endpoints by
/// that `selection`; without the objects that bring it about.
pub fn decide(
    map: &ServiceMap,
    behaviour: &Behaviour,
    selection: &dyn Fn(&ServicePort) -> Selection,
    packet: &Packet,
) -> Explanation {
    let mut way = Way {
        behaviour,
        selection,
        packet,
        explanation: Explanation {
            origin: origin(behaviour, packet),
            served_by: None,
            verdict: Verdict::NotServed,
            steps: Vec::new(),
            candidates: Vec::new(),
            no_endpoints: None,
            objects: Vec::new(),
        },
    };
    way.name_caller();
    match frontend::of(map, behaviour, packet) {
        Frontend::Of(port, role) => way.service(port, role),
        Frontend::OtherPort(port, role) => way.other_port(port, role),
        Frontend::HealthCheck(port) => way.health_check(port),
        Frontend::None => way.unowned(),
    }
    way.name_dead_ends(map);
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
    if is_own(behaviour, ip) {
        return Origin::Node;
    }
    match &behaviour.pods {
        Pods::Within(networks) if networks.iter().any(|network| network.contains(&ip)) => {
            Origin::Pod
        }
        Pods::Within(_) | Pods::Through(_) => Origin::Outside,
    }
}

/// The way of a packet, as far as it is known.
struct Way<'a> {
    behaviour: &'a Behaviour,
    selection: &'a dyn Fn(&ServicePort) -> Selection,
    packet: &'a Packet,
    explanation: Explanation,
}

impl Way<'_> {
    fn step(&mut self, words: impl Into<String>) {
        self.explanation.steps.push(words.into());
    }

    /// Names the candidates that are addresses of Services themselves: the kernel's modes
    /// translate a packet once, and userspace mode does not call itself.
    fn name_dead_ends(&mut self, map: &ServiceMap) {
        let protocol = self.packet.protocol;
        let candidates = self.explanation.candidates.iter();
        let candidates: HashSet<SocketAddr> = candidates.map(|one| one.address).collect();
        if candidates.is_empty() {
            return;
        }
        for port in map.iter().filter(|port| port.name.protocol == protocol) {
            let addresses = port.addresses().map(|ip| SocketAddr::new(ip, port.port));
            for address in addresses.filter(|address| candidates.contains(address)) {
                let name = &port.name;
                self.step(format!(
                    "endpoint {address} is itself an address of {name}: calls that are sent there \
                     do not reach its endpoints"
                ));
            }
        }
    }

    fn end(&mut self, verdict: Verdict, why: impl Into<String>) {
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
            (Origin::Outside, Caller::Pod, _) => "a pod, which counts as a host outside the \
                 cluster: nothing tells them apart here (clusterCIDR)"
                .to_owned(),
            (Origin::Outside, ..) => "outside the cluster".to_owned(),
        };
        self.step(format!("the caller is {who}"));
    }

    /// No Service has the address.
    fn unowned(&mut self) {
        let ip = self.packet.to.ip();
        if is_own(self.behaviour, ip) {
            let why = "it is an address of the node, and no Service has that port there: what \
                       listens on the node answers, or it is refused";
            return self.end(Verdict::NotServed, why);
        }
        let mut dropped = self.behaviour.dropped_networks.iter();
        if let Some(network) = dropped.find(|network| network.contains(&ip)) {
            let why = format!("no Service has it, and {network} is for cluster IPs alone");
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
        let mode = self.behaviour.mode;
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

    /// The health-check node port of `port`'s Service: a socket of this process listens
    /// where node ports are served, in every mode.
    fn health_check(&mut self, port: &ServicePort) {
        let service = &port.name.service;
        self.step(format!("it is the health-check node port of {service}"));
        if self.behaviour.served.contains(&self.packet.to.ip()) {
            let why = "Tripod itself answers over HTTP how many endpoints are on this node";
            self.end(Verdict::Answered, why);
        } else {
            let why = "health checks are not served at this address (nodePortAddresses)";
            self.end(Verdict::Refused, why);
        }
    }

    fn service(&mut self, port: &ServicePort, role: AddressKind) {
        self.explanation.served_by = Some((port.name.clone(), role));
        let name = &port.name;
        self.step(format!("it is the {role} of {name} ({})", name.protocol));
        if self.behaviour.mode == ModeName::Userspace && name.protocol == Protocol::Sctp {
            let verdict = match role {
                AddressKind::NodePort => Verdict::Refused,
                _ => Verdict::Dropped,
            };
            return self.end(verdict, "userspace mode does not carry SCTP");
        }
        if role == AddressKind::NodePort && !self.serves_node_port() {
            return;
        }
        if role == AddressKind::LoadBalancerIp && !self.is_let_in(port) {
            return;
        }
        let policy = match role {
            AddressKind::ClusterIp => port.internal_traffic_policy,
            _ => port.external_traffic_policy,
        };
        let is_local = policy == TrafficPolicy::Local;
        let local = endpoints(port, &port.endpoints.local);
        let (reach, chosen) = if is_local && self.stays_here(role, &local) {
            (Reach::Local, local)
        } else {
            (Reach::Any, endpoints(port, &port.endpoints.cluster))
        };
        if chosen.is_empty() {
            let why = port.endpoints.none_in_use(reach).unwrap_or_default();
            self.explanation.no_endpoints = Some(why.clone());
            self.without_endpoints(port, role, is_local, &why);
        } else {
            self.choose(port, &chosen);
        }
    }

    /// Returns whether a policy of Local leaves such a packet the `local` endpoints alone.
    fn stays_here(&mut self, role: AddressKind, local: &[&Endpoint]) -> bool {
        let is_of_all = self.behaviour.mode == ModeName::Ipvs && !local.is_empty();
        let (stays, why) = if role == AddressKind::ClusterIp {
            (
                true,
                "internalTrafficPolicy is Local: endpoints on this node alone",
            )
        } else if self.is_relayed() {
            (
                true,
                "externalTrafficPolicy is Local: what is relayed goes to endpoints on this node",
            )
        } else if self.explanation.origin == Origin::Outside {
            (
                true,
                "externalTrafficPolicy is Local, and the caller is outside: endpoints on this node alone",
            )
        } else if is_of_all {
            (
                true,
                "externalTrafficPolicy is Local, and IPVS has one virtual server for all callers: \
                 endpoints on this node alone, while there are any",
            )
        } else {
            (
                false,
                "externalTrafficPolicy is Local, which is not for pods and the node: any endpoint",
            )
        };
        self.step(why);
        stays
    }

    /// Returns whether a node port is served at the destination, which is the node's.
    fn serves_node_port(&mut self) -> bool {
        let ip = self.packet.to.ip();
        let served = self.behaviour.served.contains(&ip);
        let known = self.behaviour.rules.known.as_ref();
        let why_not = if !ip.is_loopback() {
            if known.is_some_and(|known| !known.contains(&ip)) {
                Some(
                    "rules on this kernel know of the node's addresses those of its Node object alone, \
                     which does not name this one",
                )
            } else {
                (!served).then_some("node ports are not served at this address (nodePortAddresses)")
            }
        } else {
            match &self.behaviour.loopback {
                Loopback::Sockets => (!served).then_some(
                    "node ports are not served at loopback addresses (nodePortAddresses)",
                ),
                Loopback::Rules { .. } if Family::of(&ip) == Family::V6 => {
                    Some("rules cannot serve node ports at ::1")
                }
                Loopback::Rules { served } => {
                    (!served).then_some("node ports are not served at loopback addresses")
                }
                Loopback::Relayed(addresses) if !addresses.contains(&ip) => Some(
                    "node ports are served at loopback addresses only if nodePortAddresses names them",
                ),
                Loopback::Relayed(_) => (self.packet.protocol != Protocol::Tcp)
                    .then_some("at loopback addresses only TCP is relayed"),
            }
        };
        if let Some(why) = why_not {
            self.end(Verdict::Refused, why);
        }
        why_not.is_none()
    }

    /// Returns whether sockets of this process relay the packet in a mode of the kernel.
    fn is_relayed(&self) -> bool {
        matches!(self.behaviour.loopback, Loopback::Relayed(_)) && self.packet.to.ip().is_loopback()
    }

    /// Returns whether the source ranges of `port` let the caller in.
    fn is_let_in(&mut self, port: &ServicePort) -> bool {
        let ranges = &port.load_balancer_source_ranges;
        if ranges.is_empty() {
            return true;
        }
        let within = |ip: IpAddr| ranges.iter().any(|range: &IpNet| range.contains(&ip));
        let family = port.name.family;
        let is_in = match (self.packet.from, self.explanation.origin) {
            // The node calls with any of its addresses.
            (Caller::Node, _) | (Caller::At(_), Origin::Node) => {
                let mut own = self.behaviour.own.iter().copied();
                Some(own.any(|ip| Family::of(&ip) == family && within(ip)))
            }
            (Caller::At(ip), _) => Some(within(ip)),
            _ if ranges.iter().any(|range| range.prefix_len() == 0) => Some(true),
            (Caller::Pod, Origin::Pod) => match &self.behaviour.pods {
                Pods::Within(networks) => {
                    let of_family = |network: &&IpNet| Family::of(&network.addr()) == family;
                    all_within(ranges, networks.iter().filter(of_family))
                }
                Pods::Through(_) => None,
            },
            (Caller::Pod | Caller::Outside, _) => None,
        };
        match is_in {
            Some(true) => self.step("the caller is in loadBalancerSourceRanges"),
            Some(false) => {
                let why = "the caller is not in loadBalancerSourceRanges";
                self.end(Verdict::Dropped, why);
            }
            None => {
                let why = "loadBalancerSourceRanges let some callers in: give --from an address";
                self.end(Verdict::Depends, why);
            }
        }
        is_in == Some(true)
    }

    /// No endpoint gets the packet, for the reason `none`.
    fn without_endpoints(
        &mut self,
        port: &ServicePort,
        role: AddressKind,
        is_local: bool,
        none: &str,
    ) {
        let mode = self.behaviour.mode;
        let elsewhere = is_local && port.endpoints.any_takes_connections();
        let is_internal = role == AddressKind::ClusterIp;
        let is_refused = is_internal && matches!(mode, ModeName::Ipvs | ModeName::Userspace);
        if elsewhere && !is_refused && !self.is_relayed() {
            let why = format!("no endpoint is on this node, so that it gets no answer: {none}");
            return self.end(Verdict::Dropped, why);
        }
        let passes = mode == ModeName::Iptables
            && self.explanation.origin == Origin::Node
            && matches!(role, AddressKind::ExternalIp | AddressKind::LoadBalancerIp);
        if passes {
            let why = format!(
                "no endpoint takes connections: {none}; rules that refuse are for packets that \
                 come to the node, and what it sends itself is routed as usual"
            );
            return self.end(Verdict::NotServed, why);
        }
        let by_rules =
            matches!(mode, ModeName::Iptables | ModeName::Nftables) && !self.is_relayed();
        if by_rules && !self.behaviour.rules.refuse {
            let why = format!("no endpoint takes connections: {none}; {NO_REFUSAL}");
            return self.end(Verdict::Dropped, why);
        }
        let why = format!("no endpoint takes connections: {none}");
        self.end(Verdict::Refused, why);
    }

    fn choose(&mut self, port: &ServicePort, chosen: &[&Endpoint]) {
        let selection = (self.selection)(port);
        let weight = |endpoint: &Endpoint| match selection {
            Selection::Equal => 1.0,
            _ => f64::from(endpoint.weight),
        };
        let whole: f64 = chosen.iter().map(|endpoint| weight(endpoint)).sum();
        let is_known = matches!(selection, Selection::Equal | Selection::Weighted);
        let candidates = chosen.iter().map(|endpoint| Candidate {
            address: endpoint.address,
            share: is_known.then(|| weight(endpoint) / whole),
        });
        self.explanation.candidates = candidates.collect();
        let count = match chosen.len() {
            1 => "1 endpoint takes connections".to_owned(),
            count => format!("{count} endpoints take connections: {}", selection.words()),
        };
        self.end(Verdict::Forwarded, count);
        let SessionAffinity::ClientIp { timeout } = port.session_affinity else {
            return;
        };
        self.step(match (self.behaviour.rules.remember, selection) {
            (true, _) => format!(
                "sessionAffinity is ClientIP: who called within {} s stays on the same endpoint",
                timeout.as_secs()
            ),
            (false, Selection::Hashed) => "sessionAffinity is ClientIP: rules on this kernel cannot \
                 remember who called, so that the client's address chooses, however long ago it called"
                .to_owned(),
            (false, _) => "sessionAffinity is ClientIP, which rules on this kernel cannot keep"
                .to_owned(),
        });
    }
}

/// Returns whether all addresses of `networks` are in `ranges`, or none; `None`: some are.
fn all_within<'a>(ranges: &[IpNet], networks: impl IntoIterator<Item = &'a IpNet>) -> Option<bool> {
    let (mut all, mut none) = (true, true);
    for network in networks {
        all &= ranges.iter().any(|range| range.contains(network));
        // Of two networks that overlap one has the other.
        none &= !(ranges.iter()).any(|range| range.contains(network) || network.contains(range));
    }
    match (all, none) {
        (true, false) => Some(true),
        (false, true) => Some(false),
        _ => None,
    }
}

/// Returns those of `indices` that take new connections.
fn endpoints<'a>(port: &'a ServicePort, indices: &[u32]) -> Vec<&'a Endpoint> {
    let all = &port.endpoints.all;
    let named = indices.iter().filter_map(|at| all.get(*at as usize));
    named.filter(|endpoint| endpoint.weight > 0).collect()
}
