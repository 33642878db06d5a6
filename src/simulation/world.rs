//! The cluster of the simulation: a few Services with endpoints, as objects, and what a client of
//! each may reach. The latter is defined independently here, not taken from the modes.

mod objects;

use std::{
    any::Any,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use net::{Family, Protocol};
use simulated::{State, packet::Packet};
use testing::Random;

pub(super) use self::objects::{gone, node, service_networks};
use crate::config::{self, Checked, KubeProxyConfiguration};

/// How many Services there may be, numbered from 0.
pub(super) const SERVICES: usize = 5;
/// The port of each Service.
pub(super) const PORT: u16 = 80;
/// The port of each endpoint.
pub(super) const TARGET: u16 = 8080;
/// How long clients stay on their endpoints: the default of the API, longer than any run
/// lasts.
pub(super) const AFFINITY: Duration = Duration::from_secs(10_800);
/// Name of this node.
pub(super) const NODE: &str = "node";

/// A Service of the simulation, from which its objects are built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spec {
    number: usize,
    node_port: bool,
    external_ip: bool,
    load_balancer: bool,
    /// Which of [`ranges`] may call the load balancer; empty: everybody may.
    ranges: Vec<usize>,
    internal_local: bool,
    external_local: bool,
    affinity: bool,
    scheduler: Option<&'static str>,
    slow_start: bool,
    limits: bool,
    /// It has a range of ports, too, which contains the port of each Service.
    port_range: bool,
    endpoints: Vec<Endpoint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Endpoint {
    last: u16,
    state: Is,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Ready,
    Terminating,
    NotReady,
}

/// Origin of a simulated call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// From outside, within the first of [`ranges`].
    Outside,
    /// From outside, within the second.
    Stranger,
    /// A pod of this node.
    Pod,
    /// The node itself.
    Node,
}

/// The kind of address that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    ClusterIp,
    ExternalIp,
    LoadBalancer,
    NodePort,
}

impl Called {
    /// All of them.
    pub(super) const ALL: [Called; 4] = [
        Called::ClusterIp,
        Called::ExternalIp,
        Called::LoadBalancer,
        Called::NodePort,
    ];
}

/// Which callers of a Service whose external policy is Local reach only endpoints of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExternalPolicy {
    /// Callers from outside.
    OfOutside,
    /// All callers, if this node has endpoints. Otherwise no caller from outside gets an
    /// answer, but packets are sent to endpoints elsewhere.
    OfAll,
}

/// A call of a Service.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) service: usize,
    pub(super) called: Called,
    pub(super) caller: Caller,
    pub(super) packet: Packet,
}

/// Keeps a connection open in the process.
#[derive(Clone)]
pub(super) struct Open(#[expect(dead_code, reason = "it is dropped")] Arc<dyn Any + Send + Sync>);

impl Open {
    pub(super) fn new(connection: Arc<dyn Any + Send + Sync>) -> Open {
        Open(connection)
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Open")
    }
}

/// A connection that continues.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) service: usize,
    pub(super) called: Called,
    pub(super) caller: Caller,
    pub(super) packet: Packet,
    /// Keeps it open in the process.
    #[expect(dead_code, reason = "it is dropped")]
    pub(super) open: Option<Open>,
}

pub(super) fn family(number: usize) -> Family {
    if number < 3 { Family::V4 } else { Family::V6 }
}

/// The protocol of a Service: TCP for even numbers.
pub(super) fn protocol(number: usize) -> Protocol {
    if number.is_multiple_of(2) {
        Protocol::Tcp
    } else {
        Protocol::Udp
    }
}

/// Returns an address in one of the networks of the cluster.
pub(super) fn ip(family: Family, network: u8, last: u16) -> IpAddr {
    let [high, low] = last.to_be_bytes();
    match family {
        Family::V4 => [10, network, high, low].into(),
        Family::V6 => [0xfd00, u16::from(network), 0, 0, 0, 0, 0, last].into(),
    }
}

/// The networks of callers from outside.
fn ranges(family: Family) -> [IpNet; 2] {
    let prefix = match family {
        Family::V4 => 16,
        Family::V6 => 32,
    };
    [9, 8].map(|network| IpNet::new_assert(ip(family, network, 0), prefix))
}

/// The checked configuration of the process.
pub(super) fn configuration() -> Checked {
    let configuration = KubeProxyConfiguration {
        cluster_cidr: "10.244.0.0/16,fd00:f4::/32".to_owned(),
        ..KubeProxyConfiguration::default()
    };
    config::check(configuration, Vec::new()).expect("the configuration is valid")
}

/// Returns this node's address.
pub(super) fn node_address(family: Family) -> IpAddr {
    ip(family, 7, 1)
}

/// Gives the node a link with its addresses.
pub(super) fn add_link(state: &mut State) {
    let addresses = [(Family::V4, 24), (Family::V6, 64)];
    let addresses = addresses.map(|(family, length)| (node_address(family), length));
    state.links.add("eth0", &addresses);
}

/// An address and port of an endpoint, from its last number.
fn endpoint(family: Family, last: u16) -> SocketAddr {
    (ip(family, 244, last), TARGET).into()
}

/// Returns whether the endpoint is on this node.
fn is_local(last: u16) -> bool {
    last.is_multiple_of(2)
}

/// Returns the cluster IP of a Service.
pub(super) fn cluster_ip(number: usize) -> IpAddr {
    ip(family(number), 96, number as u16 + 1)
}

/// Returns the first bytes of the keys of elements that are only for the cluster IP of a
/// Service: address and protocol.
pub(super) fn at_cluster_ip(number: usize) -> Box<[u8]> {
    let mut octets = net::octets(&cluster_ip(number));
    octets.push(protocol(number).number());
    octets.into()
}

pub(super) fn node_port(number: usize) -> u16 {
    30_000 + number as u16
}

impl Spec {
    /// Returns a random Service of that number.
    pub(super) fn random(number: usize, random: &mut Random) -> Spec {
        let count = random.one(&[0, 1, 1, 2, 2, 3, 5]);
        let mut all: Vec<u16> = (1..8).collect();
        let endpoints = (0..count).map(|_| Endpoint {
            last: all.swap_remove(random.below(all.len())),
            state: random.one(&[
                Is::Ready,
                Is::Ready,
                Is::Ready,
                Is::Terminating,
                Is::NotReady,
            ]),
        });
        let mut endpoints: Vec<Endpoint> = endpoints.collect();
        endpoints.sort_by_key(|one| one.last);
        Spec {
            number,
            node_port: random.chance(500),
            external_ip: random.chance(500),
            load_balancer: random.chance(600),
            ranges: random.one(&[&[][..], &[], &[0], &[1], &[0, 1]]).to_vec(),
            internal_local: random.chance(150),
            external_local: random.chance(400),
            affinity: random.chance(250),
            scheduler: random.one(&[None, None, None, Some("rr"), Some("sh")]),
            slow_start: random.chance(250),
            limits: random.chance(250),
            port_range: random.chance(250),
            endpoints,
        }
    }

    /// Returns the Service with something changed, mostly an endpoint.
    pub(super) fn changed(&self, random: &mut Random) -> Spec {
        let other = Spec::random(self.number, random);
        let mut next = self.clone();
        match random.below(8) {
            0 => next.load_balancer = other.load_balancer,
            1 => next.ranges = other.ranges,
            2 => {
                next.external_local = other.external_local;
                next.internal_local = other.internal_local;
            }
            3 => {
                next.affinity = other.affinity;
                next.scheduler = other.scheduler;
                next.slow_start = other.slow_start;
                next.limits = other.limits;
                next.port_range = other.port_range;
            }
            4 => {
                next.node_port = other.node_port;
                next.external_ip = other.external_ip;
            }
            _ => {
                let last = 1 + random.below(7) as u16;
                let before = next.endpoints.len();
                next.endpoints.retain(|one| one.last != last);
                if next.endpoints.len() == before {
                    let state = random.one(&[Is::Ready, Is::Ready, Is::Terminating]);
                    next.endpoints.push(Endpoint { last, state });
                    next.endpoints.sort_by_key(|one| one.last);
                }
            }
        }
        next
    }

    /// Returns the endpoints that a call may reach; empty: it must reach none.
    pub(super) fn reachable(
        &self,
        called: Called,
        caller: Caller,
        external: ExternalPolicy,
    ) -> Vec<SocketAddr> {
        if !self.admits(called, caller) {
            return Vec::new();
        }
        let usable = self.usable(self.is_local(called, caller, external));
        match external {
            ExternalPolicy::OfAll if called != Called::ClusterIp && usable.is_empty() => {
                self.usable(false)
            }
            _ => usable,
        }
    }

    /// Returns whether a call may reach endpoints of the node alone.
    pub(super) fn is_local(
        &self,
        called: Called,
        caller: Caller,
        external: ExternalPolicy,
    ) -> bool {
        let from_outside = [Caller::Outside, Caller::Stranger].contains(&caller);
        match (called, external) {
            (Called::ClusterIp, _) => self.internal_local,
            (_, ExternalPolicy::OfOutside) => self.external_local && from_outside,
            (_, ExternalPolicy::OfAll) => self.external_local,
        }
    }

    /// Returns whether only some callers may call its load balancer.
    pub(super) fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// Returns whether the Service may be called in this way, if it has endpoints.
    pub(super) fn admits(&self, called: Called, caller: Caller) -> bool {
        match called {
            Called::ClusterIp => true,
            Called::ExternalIp => self.external_ip,
            Called::LoadBalancer => self.load_balancer && self.may_call(caller),
            Called::NodePort => self.node_port,
        }
    }

    /// Returns whether the Service has the address, or node port, that is called.
    pub(super) fn has_address(&self, called: Called) -> bool {
        match called {
            Called::LoadBalancer => self.load_balancer,
            other => self.admits(other, Caller::Outside),
        }
    }

    /// Returns whether endpoints see an address of the node instead of the caller's: answers
    /// to callers outside the networks of the pods might take another route, as might those
    /// of endpoints on other nodes. The node itself calls only cluster IPs.
    pub(super) fn masquerades(&self, called: Called, caller: Caller) -> bool {
        match called {
            Called::ClusterIp => caller != Caller::Pod,
            Called::ExternalIp | Called::LoadBalancer | Called::NodePort => !self.external_local,
        }
    }

    /// Returns the endpoints that new connections reach: all, or those of this node.
    fn usable(&self, local: bool) -> Vec<SocketAddr> {
        let of = |state| {
            let all = self.endpoints.iter();
            let all = all.filter(|one| one.state == state && (!local || is_local(one.last)));
            let of_family = family(self.number);
            all.map(|one| endpoint(of_family, one.last)).collect()
        };
        let ready: Vec<SocketAddr> = of(Is::Ready);
        if ready.is_empty() {
            of(Is::Terminating)
        } else {
            ready
        }
    }

    /// Returns whether a client may have been sent to an endpoint to stay there, at a time when
    /// source ranges let it in.
    pub(super) fn has_stayed(
        &self,
        called: Called,
        caller: Caller,
        external: ExternalPolicy,
        on: &SocketAddr,
    ) -> bool {
        let open_to_all = Spec {
            ranges: Vec::new(),
            ..self.clone()
        };
        self.affinity && open_to_all.reachable(called, caller, external).contains(on)
    }

    fn may_call(&self, caller: Caller) -> bool {
        let range = match caller {
            Caller::Outside => 0,
            Caller::Stranger => 1,
            Caller::Pod | Caller::Node => return self.ranges.is_empty(),
        };
        self.ranges.is_empty() || self.ranges.contains(&range)
    }

    /// The name of its ServicePort, with the namespace.
    pub(super) fn service_port(&self) -> String {
        format!("default/web-{}:p", self.number)
    }

    /// The endpoints on which existing flows may continue.
    pub(super) fn serving(&self) -> impl Iterator<Item = SocketAddr> {
        let family = family(self.number);
        let all = self
            .endpoints
            .iter()
            .filter(|one| one.state != Is::NotReady);
        all.map(move |one| endpoint(family, one.last))
    }

    /// Returns whether some callers may reach an endpoint.
    pub(super) fn has(&self, to: &SocketAddr) -> bool {
        self.usable(false).contains(to) || self.usable(true).contains(to)
    }

    /// Returns whether a hash may assign each client a fixed endpoint.
    pub(super) fn may_hash(&self) -> bool {
        self.scheduler == Some("sh") || self.affinity && self.port_range
    }

    /// Returns whether clients stay on their endpoint.
    pub(super) fn has_affinity(&self) -> bool {
        self.affinity
    }

    /// Returns whether every mode remembers clients that stay; nftables mode hashes their addresses
    /// if there is a range of ports.
    pub(super) fn remembers(&self) -> bool {
        self.affinity && !self.port_range
    }
}
