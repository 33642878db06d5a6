//! The contents of Services and EndpointSlices, independent of the proxy's own interpretation: the
//! promises of the proxy must follow from them as well.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use net::{Family, Protocol};

use crate::services::{
    AddressKind, EndpointSlice, Event, Node, Object, Owner, Preferences, Service, ServicePortName,
    SliceEndpoint, TrafficPolicy,
};

/// The objects of the folder, reduced as the proxy reduces them.
#[derive(Debug, Default)]
pub(super) struct Objects {
    services: Vec<Arc<Service>>,
    slices: Vec<Arc<EndpointSlice>>,
    nodes: Vec<Arc<Node>>,
}

/// An address at which clients reach a ServicePort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frontend {
    /// The kind of that address.
    pub(super) kind: AddressKind,
    /// The address; `None`: those of the node.
    pub(super) ip: Option<IpAddr>,
    /// The port at that address.
    pub(super) port: u16,
}

/// An endpoint of a ServicePort. Several slices may have its address: while it moves from one to
/// another, or while a pod that ends and a new pod share the address. The entry with the greatest
/// state counts, see [`EndpointState`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// The nodes on which it runs according to the entries that count: more than one if these
    /// differ.
    pub(super) nodes: BTreeSet<Arc<str>>,
    /// The state in these entries.
    pub(super) state: EndpointState,
}

/// Whether an endpoint takes connections. The greatest state of an address counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndpointState {
    /// It takes none.
    Closed,
    /// It is being shut down and still serves: it takes connections if no endpoint is ready.
    Ending,
    /// It is being shut down but takes connections.
    ReadyAndEnding,
    /// It takes connections.
    Ready,
}

/// A port of a Service in one IP family.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    /// Service, port, protocol and IP family.
    pub(super) name: ServicePortName,
    /// The addresses at which clients reach it.
    pub(super) frontends: Vec<Frontend>,
    /// All endpoints of its slices by address, whether they take connections or not.
    pub(super) endpoints: BTreeMap<SocketAddr, Endpoint>,
    /// Whether readiness, nodes and policies alone decide which endpoints get connections:
    /// neither hints nor weights exclude any.
    pub(super) is_plain: bool,
    /// Whether only some clients may reach its load-balancer IPs.
    pub(super) has_source_ranges: bool,
    /// Policy for the cluster IP.
    pub(super) internal: TrafficPolicy,
    /// Policy for its other addresses.
    pub(super) external: TrafficPolicy,
    /// How long clients stay on their endpoint; `None` if they do not.
    pub(super) affinity: Option<Duration>,
    /// Its requests under `tripod.proxy/`.
    pub(super) preferences: Option<Arc<Preferences>>,
}

impl Objects {
    /// Collects the objects in `events`.
    pub(super) fn new(events: Vec<Event>) -> Objects {
        let mut objects = Objects::default();
        for event in events {
            match event {
                Event::Changed(Object::Service(service)) => objects.services.push(service),
                Event::Changed(Object::EndpointSlice(slice)) => objects.slices.push(slice),
                Event::Changed(Object::Node(node)) => objects.nodes.push(node),
                _ => {}
            }
        }
        objects
    }

    /// Returns the node to test if none is requested: `own`, this machine's name, if an object
    /// names it, else the first by name that an object names.
    pub(super) fn node(&self, own: String) -> String {
        let endpoints = self.slices.iter().flat_map(|slice| &slice.endpoints);
        let of_endpoints = endpoints.filter_map(|endpoint| endpoint.node_name.as_deref());
        let mut names: Vec<&str> = self.nodes.iter().map(|node| &*node.name).collect();
        names.extend(of_endpoints);
        match names.iter().min() {
            Some(first) if !names.contains(&&*own) => (*first).to_owned(),
            _ => own,
        }
    }

    /// Returns the ServicePorts, sorted by name.
    pub(super) fn service_ports(&self) -> Vec<Declared> {
        let mut found: Vec<Declared> = self
            .services
            .iter()
            .flat_map(|service| self.ports_of(service))
            .collect();
        found.sort_by(|one, other| one.name.cmp(&other.name));
        found
    }

    fn ports_of(&self, service: &Service) -> Vec<Declared> {
        let Ok(serving) = &service.serving else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for cluster_ip in &serving.cluster_ips {
            let family = Family::of(cluster_ip);
            // A server need not listen at all ports of a range.
            for port in serving.ports.iter().filter(|port| port.last_port.is_none()) {
                let name = ServicePortName::new(&service.name, port, family);
                let at = |kind, ip| Frontend {
                    kind,
                    ip: Some(ip),
                    port: port.port,
                };
                let mut frontends = vec![at(AddressKind::ClusterIp, *cluster_ip)];
                let external = match serving.is_closed(family) {
                    true => AddressKind::LoadBalancerIp,
                    false => AddressKind::ExternalIp,
                };
                for (kind, ips) in [
                    (external, &serving.external_ips),
                    (AddressKind::LoadBalancerIp, &serving.load_balancer_ips),
                ] {
                    let ips = ips.iter().filter(|ip| Family::of(ip) == family);
                    frontends.extend(ips.map(|ip| at(kind, *ip)));
                }
                frontends.extend(port.node_port.map(|port| Frontend {
                    kind: AddressKind::NodePort,
                    ip: None,
                    port,
                }));
                let (endpoints, is_plain) = self.endpoints_of(&name);
                found.push(Declared {
                    name,
                    frontends,
                    endpoints,
                    is_plain,
                    has_source_ranges: !serving.load_balancer_source_ranges.is_empty(),
                    internal: serving.internal_traffic_policy,
                    external: serving.external_traffic_policy,
                    affinity: serving.session_affinity,
                    preferences: service.preferences.clone(),
                });
            }
        }
        found
    }

    /// The endpoints of `name`, and whether neither hints nor weights apply.
    fn endpoints_of(&self, name: &ServicePortName) -> (BTreeMap<SocketAddr, Endpoint>, bool) {
        let mut found = BTreeMap::<SocketAddr, Endpoint>::new();
        let mut is_plain = self.nodes.iter().all(|node| node.weight.is_none());
        let owner = Owner::Service(name.service.clone());
        for slice in self.slices.iter().filter(|slice| slice.owner == owner) {
            is_plain &= slice.weight.is_none();
            let ports = slice.ports.iter();
            let ports =
                ports.filter(|port| port.name == name.port && port.protocol == name.protocol);
            for port in ports {
                for endpoint in &slice.endpoints {
                    if Family::of(&endpoint.address) != name.family {
                        continue;
                    }
                    is_plain &= endpoint.hints.is_none();
                    let address = SocketAddr::new(endpoint.address, port.port);
                    let known = found.entry(address).or_insert_with(|| Endpoint {
                        nodes: BTreeSet::new(),
                        state: EndpointState::Closed,
                    });
                    known.add(endpoint);
                }
            }
        }
        (found, is_plain)
    }
}

impl Endpoint {
    /// Adds an entry of a slice.
    fn add(&mut self, entry: &SliceEndpoint) {
        let state = match (entry.ready, entry.terminating) {
            (true, false) => EndpointState::Ready,
            (true, true) => EndpointState::ReadyAndEnding,
            (false, true) if entry.serving => EndpointState::Ending,
            (false, _) => EndpointState::Closed,
        };
        if state > self.state {
            self.state = state;
            self.nodes.clear();
        }
        if state == self.state {
            self.nodes.extend(entry.node_name.clone());
        }
    }

    /// Returns whether it runs on this node.
    pub(super) fn is_on(&self, node: &str) -> bool {
        self.nodes.contains(node)
    }
}

impl Declared {
    /// Returns the endpoints that take new connections: those that are ready, or if there are none,
    /// those that are being shut down and still serve; with `node`, only those on that node.
    pub(super) fn taking(&self, node: Option<&str>) -> Vec<SocketAddr> {
        let of = |is: fn(EndpointState) -> bool| -> Vec<SocketAddr> {
            let here = self.endpoints.iter().filter(|(_, endpoint)| {
                is(endpoint.state) && node.is_none_or(|node| endpoint.is_on(node))
            });
            here.map(|(address, _)| *address).collect()
        };
        let ready = of(|state| state >= EndpointState::ReadyAndEnding);
        if ready.is_empty() {
            of(|state| state == EndpointState::Ending)
        } else {
            ready
        }
    }

    /// Returns the policy for callers of an address of that kind.
    pub(super) fn policy(&self, kind: AddressKind) -> TrafficPolicy {
        match kind {
            AddressKind::ClusterIp => self.internal,
            _ => self.external,
        }
    }

    /// Returns whether it is of this protocol.
    pub(super) fn is_of(&self, protocol: Protocol) -> bool {
        self.name.protocol == protocol
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Identity;

    /// Returns the address's entry if slices have these `(node, [ready, serving, terminating])`.
    fn endpoint(entries: &[(&str, [bool; 3])]) -> (Vec<String>, EndpointState) {
        let mut endpoint = Endpoint {
            nodes: BTreeSet::new(),
            state: EndpointState::Closed,
        };
        for (node, [ready, serving, terminating]) in entries {
            endpoint.add(&SliceEndpoint {
                address: IpAddr::from([10, 1, 0, 1]),
                identity: Identity::of(None, IpAddr::from([10, 1, 0, 1])),
                node_name: Some((*node).into()),
                ready: *ready,
                serving: *serving,
                terminating: *terminating,
                hints: None,
            });
        }
        let nodes = endpoint.nodes.iter().map(|node| node.to_string());
        (nodes.collect(), endpoint.state)
    }

    #[test]
    fn of_entries_with_one_address_the_live_one_counts() {
        use EndpointState::{Closed, Ending, Ready, ReadyAndEnding};
        let live = ("here", [true, true, false]);
        for (other, alone) in [
            (("there", [false, false, true]), Closed),
            (("there", [false, true, false]), Closed),
            (("there", [false, true, true]), Ending),
            (("there", [true, true, true]), ReadyAndEnding),
        ] {
            let here = (vec!["here".to_owned()], Ready);
            assert_eq!(endpoint(&[other, live]), here, "{other:?}");
            assert_eq!(endpoint(&[live, other]), here, "{other:?}");
            assert_eq!(endpoint(&[other]), (vec!["there".to_owned()], alone));
        }
        let both = [live, ("there", [true, true, false])];
        let nodes = vec!["here".to_owned(), "there".to_owned()];
        assert_eq!(endpoint(&both), (nodes, Ready));
    }
}
