//! A node with its neighbours, as network namespaces: the callers of the simulation, a server at
//! each endpoint, and other hosts, to which the node forwards calls that it does not serve.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    sync::atomic::{AtomicU16, Ordering},
};

use net::Family;
use netlink::{Protocol as Netlink, Socket, isolation::NetworkNamespace, veth};
use testing::{block_on, sh};

use super::call;
use crate::simulation::world::{PORT, SERVICES, TARGET, ip, node_address};

/// The first port that callers call from. None is used twice, since the connection
/// tracking entry of one call would apply to another.
const FIRST_PORT: u16 = 20_000;

/// A neighbour of the node: the name of the node's link to it, and the addresses that it has,
/// each as its network and its last part ([`ip`]).
type Neighbour = (&'static str, &'static [(u8, u16)]);

/// Callers from outside; other nodes with their endpoints; pods of this node.
const NEIGHBOURS: [Neighbour; 6] = [
    ("eth0", &[(9, 1), (8, 1)]),
    ("eth1", &[(244, 1), (244, 3), (244, 5), (244, 7)]),
    ("cni0", &[(244, 100)]),
    ("cni2", &[(244, 2)]),
    ("cni4", &[(244, 4)]),
    ("cni6", &[(244, 6)]),
];
/// The index of other nodes among these. They have all service addresses as well: they answer
/// packets that the node does not translate.
const ELSEWHERE: usize = 1;
/// The networks of service addresses.
const SERVICE_NETWORKS: [u8; 3] = [96, 51, 113];

/// A host that makes calls, or the node itself.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) name: &'static str,
    /// Its address: the network and the last part.
    address: (u8, u16),
    /// The index of its neighbour; `None`: the node itself.
    at: Option<usize>,
}

/// The callers that call each address of each Service.
pub(super) const CALLERS: [Caller; 5] = [
    Caller::new("outside", (9, 1), Some(0)),
    Caller::new("a stranger", (8, 1), Some(0)),
    Caller::new("a pod", (244, 100), Some(2)),
    Caller::new("an endpoint", (244, 2), Some(3)),
    Caller::new("the node", (7, 1), None),
];

impl Caller {
    const fn new(name: &'static str, address: (u8, u16), at: Option<usize>) -> Caller {
        Caller { name, address, at }
    }

    /// Returns its address.
    pub(super) fn ip(&self, family: Family) -> IpAddr {
        ip(family, self.address.0, self.address.1)
    }

    /// The interface by which the node gets packets of this caller.
    pub(super) fn input(&self) -> Option<&'static str> {
        self.at.map(|at| NEIGHBOURS[at].0)
    }
}

/// The network; the node itself is the namespace of the calling thread.
pub(super) struct Network {
    neighbours: Vec<NetworkNamespace>,
    port: AtomicU16,
}

/// Returns an end of the link to a neighbour.
fn end(family: Family, neighbour: usize, last: u16) -> IpAddr {
    ip(family, 6, 256 * (neighbour as u16 + 1) + last)
}

/// Returns the command `ip` with the flag for a family.
fn program(family: Family) -> &'static str {
    match family {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    }
}

/// Returns the prefix lengths of a link's addresses and of a single address.
fn lengths(family: Family) -> (u8, u8) {
    match family {
        Family::V4 => (24, 32),
        Family::V6 => (120, 128),
    }
}

/// Commands that let the thread's namespace forward packets with any source, and refuse
/// without a rate limit.
const SETTINGS: &str = "
    sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 \
        net.ipv4.conf.default.rp_filter=0 net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_ratemask=0 \
        net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0 \
        net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.accept_dad=0 \
        net.ipv6.conf.default.accept_dad=0 net.ipv6.icmp.ratelimit=0
";

impl Network {
    /// Creates the neighbours, from the namespace of the node.
    pub(super) fn new() -> Network {
        // The sockets that Tokio keeps for signals belong to the namespace of the first runtime.
        block_on(async {});
        sh(SETTINGS);
        let mut socket = Socket::open(Netlink::Route).expect("a socket");
        let mut neighbours = Vec::new();
        for (number, (link, addresses)) in NEIGHBOURS.iter().enumerate() {
            let there = NetworkNamespace::new(link).expect("a namespace");
            veth::add(&mut socket, link, "eth0", there.namespace().as_fd()).expect("a link");
            let script = at_neighbour(number, addresses);
            block_on(there.run(async move { sh(&script) })).expect("a neighbour");
            sh(&at_node(number, link, addresses));
            neighbours.push(there);
        }
        for (number, neighbour) in neighbours.iter().enumerate() {
            let at = servers(number);
            block_on(neighbour.run(call::serve(at))).expect("servers");
        }
        Network {
            neighbours,
            port: AtomicU16::new(FIRST_PORT),
        }
    }

    /// The node's own addresses.
    pub(super) fn own(&self) -> Vec<IpAddr> {
        let of_family = |family| {
            let ends = (0..NEIGHBOURS.len()).map(move |number| end(family, number, 1));
            ends.chain([node_address(family)])
        };
        Family::ALL.into_iter().flat_map(of_family).collect()
    }

    /// Returns an address from which `caller` has not called yet.
    pub(super) fn source(&self, caller: &Caller, family: Family) -> SocketAddr {
        let port = self.port.fetch_add(1, Ordering::Relaxed);
        assert!(port > FIRST_PORT - 1, "all ports were used");
        (caller.ip(family), port).into()
    }

    /// Runs `work` where `caller` is.
    pub(super) async fn at<T: Send + 'static>(
        &self,
        caller: &Caller,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match caller.at {
            Some(at) => self.neighbours[at].run(work).await.expect("it ends"),
            None => work.await,
        }
    }

    /// Starts `work` where `caller` is, from within a runtime of the node.
    pub(super) fn begin(&self, caller: &Caller, work: impl Future<Output = ()> + Send + 'static) {
        match caller.at {
            Some(at) => self.neighbours[at].begin(work),
            None => drop(tokio::spawn(work)),
        }
    }
}

/// Returns the script that gives a neighbour its addresses, and has it send everything to the node.
fn at_neighbour(number: usize, addresses: &[(u8, u16)]) -> String {
    let mut script = format!("{SETTINGS}ip link set eth0 up\n");
    for family in Family::ALL {
        let tool = program(family);
        let (prefix, host) = lengths(family);
        let add = |address: IpAddr, length| {
            let nodad = if family == Family::V6 { " nodad" } else { "" };
            format!("{tool} addr add {address}/{length} dev eth0{nodad}\n")
        };
        script += &add(end(family, number, 2), prefix);
        for (network, last) in addresses {
            script += &add(ip(family, *network, *last), host);
        }
        if number == ELSEWHERE {
            for address in service_addresses(family) {
                script += &add(address, host);
            }
        }
        let node = end(family, number, 1);
        script += &format!("{tool} route add default via {node}\n");
    }
    script
}

/// Returns the script that joins the node with a neighbour.
fn at_node(number: usize, link: &str, addresses: &[(u8, u16)]) -> String {
    let mut script = format!("ip link set {link} up\n");
    for family in Family::ALL {
        let tool = program(family);
        let (prefix, host) = lengths(family);
        let nodad = if family == Family::V6 { " nodad" } else { "" };
        let own = end(family, number, 1);
        script += &format!("{tool} addr add {own}/{prefix} dev {link}{nodad}\n");
        let there = end(family, number, 2);
        for (network, last) in addresses {
            let to = ip(family, *network, *last);
            script += &format!("{tool} route add {to}/{host} via {there}\n");
        }
        if number == ELSEWHERE {
            script += &format!("{tool} route add default via {there}\n");
            // Not on a link to a neighbour, so that it shows where callers are masqueraded.
            let node = node_address(family);
            script += &format!("{tool} addr add {node}/{host} dev lo{nodad}\n");
        }
    }
    script
}

/// Returns the addresses that Services may have.
fn service_addresses(family: Family) -> impl Iterator<Item = IpAddr> {
    let of_network =
        move |network| (1..=SERVICES as u16).map(move |last| ip(family, network, last));
    SERVICE_NETWORKS.into_iter().flat_map(of_network)
}

/// Returns where servers of a neighbour listen.
fn servers(number: usize) -> Vec<SocketAddr> {
    let mut at = Vec::new();
    for family in Family::ALL {
        let endpoints = NEIGHBOURS[number].1.iter();
        let endpoints = endpoints.filter(|(network, last)| *network == 244 && *last < 100);
        let endpoints = endpoints.map(|(network, last)| (ip(family, *network, *last), TARGET));
        at.extend(endpoints.map(SocketAddr::from));
        if number == ELSEWHERE {
            let services = service_addresses(family).map(|ip| (ip, PORT));
            at.extend(services.map(SocketAddr::from));
        }
    }
    at
}
