//! Cluster-local clients: pods and the node itself. Their traffic to a Service's external addresses
//! is short-circuited: it may reach every endpoint, whatever `externalTrafficPolicy` says (KEP-1669
//! and the KUBE-EXT chains of kube-proxy).

use std::net::IpAddr;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use netlink::{
    Protocol, Socket,
    next_hop::{self, NextHop},
};
use nix::net::if_::if_indextoname;
use parking_lot::Mutex;

use crate::{config::DetectLocal, sched::Flow, services::Node};

/// Distinguishes cluster-local clients from others.
#[derive(Debug)]
pub struct ClusterLocal {
    detect: DetectLocal,
    known: ArcSwap<Known>,
    /// Socket for route lookups; opened when first needed.
    routes: Mutex<Option<Socket>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    addresses: Box<[IpAddr]>,
    networks: Box<[IpNet]>,
}

impl ClusterLocal {
    /// Knows the configured networks, and nothing about the node yet.
    pub fn new(detect: DetectLocal) -> Self {
        let clients = ClusterLocal {
            detect,
            known: ArcSwap::default(),
            routes: Mutex::new(None),
        };
        clients.update(None, &[]);
        clients
    }

    /// Records the node's object and its own addresses. Returns whether that makes a difference.
    pub fn update(&self, node: Option<&Node>, addresses: &[IpAddr]) -> bool {
        let networks = match &self.detect {
            DetectLocal::ClusterCidr(networks) => networks.clone().into(),
            DetectLocal::NodeCidr => node.map(|n| n.pod_cidrs.clone()).unwrap_or_default(),
            DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_) => Box::default(),
        };
        let known = Known {
            addresses: addresses.into(),
            networks,
        };
        let differs = **self.known.load() != known;
        if differs {
            self.known.store(known.into());
        }
        differs
    }

    /// Returns whether the client of `flow` is cluster-local.
    pub fn contains(&self, flow: &Flow) -> bool {
        let known = self.known.load();
        let peer = flow.client.ip();
        is_the_node(flow)
            || known.addresses.contains(&peer)
            || known.networks.iter().any(|network| network.contains(&peer))
            || match &self.detect {
                DetectLocal::ClusterCidr(_) | DetectLocal::NodeCidr => false,
                DetectLocal::BridgeInterface(name) => self.is_behind(peer, |link| link == name),
                DetectLocal::InterfaceNamePrefix(prefix) => {
                    self.is_behind(peer, |link| link.starts_with(prefix.as_str()))
                }
            }
    }

    /// Returns whether packets to `peer` leave through a link whose name `is_ours`, so that packets
    /// from it arrive there: a socket does not know the link, but a route does. Only called for
    /// Services whose external policy distinguishes between callers. If the route cannot be
    /// determined, the peer counts as external.
    fn is_behind(&self, peer: IpAddr, is_ours: impl Fn(&str) -> bool) -> bool {
        let mut routes = self.routes.lock();
        if routes.is_none() {
            *routes = Socket::open(Protocol::Route).ok();
        }
        let hop = match routes.as_mut().map(|socket| next_hop::to(socket, &peer)) {
            Some(Ok(hop)) => hop,
            Some(Err(_)) => {
                *routes = None;
                return false;
            }
            None => return false,
        };
        let name = hop.and_then(NextHop::link).map(if_indextoname);
        matches!(name, Some(Ok(name)) if name.to_str().is_ok_and(is_ours))
    }

    /// Networks that contain all cluster-local clients, except for the node calling itself; `None`
    /// if clients are not recognised by their addresses.
    pub fn networks(&self) -> Option<Vec<IpNet>> {
        if let DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_) = self.detect {
            return None;
        }
        let known = self.known.load();
        let addresses = known.addresses.iter().copied().map(IpNet::from);
        Some(addresses.chain(known.networks.iter().copied()).collect())
    }

    /// Returns whether one of `ranges` contains an address of this node.
    pub fn is_node_within(&self, ranges: &[IpNet]) -> bool {
        let known = self.known.load();
        let within = |address| ranges.iter().any(|range| range.contains(address));
        known.addresses.iter().any(within)
    }

    /// Returns whether the client of `flow` is this node.
    pub fn is_node(&self, flow: &Flow) -> bool {
        is_the_node(flow) || self.known.load().addresses.contains(&flow.client.ip())
    }

    /// Returns whether the pods' networks, as far as known, contain the address.
    pub fn has_pod(&self, address: &IpAddr) -> bool {
        let known = self.known.load();
        known.networks.iter().any(|net| net.contains(address))
    }

    /// Returns whether `predicate` holds for the client's address or, if the client is the node,
    /// for any of the node's own addresses.
    pub fn any_address(&self, flow: &Flow, predicate: impl Fn(&IpAddr) -> bool) -> bool {
        let known = || self.known.load();
        predicate(&flow.client.ip()) || is_the_node(flow) && known().addresses.iter().any(predicate)
    }
}

/// The node calls an address that is routed to itself from that very address
/// (`ip_route_output_key_hash_rcu` in net/ipv4/route.c uses the destination as the source of
/// packets to RTN_LOCAL); from another machine, such a packet is a martian.
fn is_the_node(flow: &Flow) -> bool {
    let peer = flow.client.ip();
    peer.is_loopback() || peer == flow.destination
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(client: &str, destination: &str) -> Flow {
        Flow {
            client: (client.parse::<IpAddr>().unwrap(), 40_000).into(),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn pods_and_the_node_are_cluster_local() {
        let pods: IpNet = "10.244.0.0/16".parse().unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let node = Node {
            name: "here".into(),
            zone: None,
            pod_cidrs: ["10.244.7.0/24".parse().unwrap()].into(),
            addresses: Box::default(),
            deleting: false,
            to_be_deleted: false,
            weight: None,
        };
        for (detect, pod_here, pod_there) in [
            (DetectLocal::ClusterCidr(vec![pods]), true, true),
            (DetectLocal::NodeCidr, true, false),
            (DetectLocal::BridgeInterface("none".into()), false, false),
        ] {
            let clients = ClusterLocal::new(detect.clone());
            clients.update(Some(&node), &[ip("192.0.2.1")]);
            for (peer, local) in [
                ("10.244.7.3", pod_here),
                ("10.244.8.3", pod_there),
                ("192.0.2.1", true),
                ("192.0.2.2", false),
                ("127.0.0.1", true),
                ("::1", true),
            ] {
                let flow = flow(peer, "10.96.0.1");
                assert_eq!(clients.contains(&flow), local, "{detect:?} {peer}");
            }
            assert!(clients.contains(&flow("10.96.0.1", "10.96.0.1")));
            let is_node = |ip: &IpAddr| ip.to_string() == "192.0.2.1";
            for (peer, is) in [
                ("10.96.0.1", true),
                ("192.0.2.1", true),
                ("192.0.2.9", false),
            ] {
                let flow = flow(peer, "10.96.0.1");
                assert_eq!(clients.any_address(&flow, is_node), is, "{peer}");
            }
        }
    }

    #[test]
    fn pods_behind_a_link_are_cluster_local() {
        use testing::{in_namespace, ip};

        in_namespace(|| {
            for line in [
                "link add cni0 type bridge",
                "link set cni0 up",
                "addr add 10.244.0.1/24 dev cni0",
                "link add eth0 type veth peer name far",
                "link set eth0 up",
                "addr add 192.0.2.1/24 dev eth0",
                "addr add fd00:244::1/64 dev cni0 nodad",
            ] {
                ip(line);
            }
            for (links, behind) in [
                (DetectLocal::BridgeInterface("cni0".into()), true),
                (DetectLocal::InterfaceNamePrefix("cni".into()), true),
                (DetectLocal::BridgeInterface("cni".into()), false),
                (DetectLocal::InterfaceNamePrefix("veth".into()), false),
            ] {
                let clients = ClusterLocal::new(links.clone());
                for pod in ["10.244.0.9", "fd00:244::9"] {
                    let flow = flow(pod, "203.0.113.1");
                    assert_eq!(clients.contains(&flow), behind, "{links:?} {pod}");
                }
                for other in ["192.0.2.9", "198.51.100.1"] {
                    let flow = flow(other, "203.0.113.1");
                    assert!(!clients.contains(&flow), "{links:?} {other}");
                }
            }
        });
    }
}
