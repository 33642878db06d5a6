//! Who calls from inside the cluster: pods and the node itself. Their traffic
//! to a Service's outside addresses takes the short way: it may reach every
//! endpoint, whatever `externalTrafficPolicy` says (KEP-1669 and the KUBE-EXT
//! chains of kube-proxy).

use std::net::IpAddr;

use arc_swap::ArcSwap;
use ipnet::IpNet;

use crate::{sched::Flow, services::Node};

/// How pods are told from others (`detectLocalMode`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// They are in one of these networks.
    Within(Vec<IpNet>),
    /// They are in a pod CIDR of this Node.
    PodCidrs,
    /// By the link that packets come through, which a socket does not tell:
    /// only the node itself is known to be inside.
    Unknown,
}

/// Tells insiders from others.
#[derive(Debug)]
pub struct Insiders {
    detect: DetectLocal,
    known: ArcSwap<Known>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    addresses: Box<[IpAddr]>,
    networks: Box<[IpNet]>,
}

impl Insiders {
    /// Nobody is known yet but who is within given networks.
    pub fn new(detect: DetectLocal) -> Self {
        let insiders = Insiders {
            detect,
            known: ArcSwap::default(),
        };
        insiders.update(None, &[]);
        insiders
    }

    /// Learns the node's object and its own addresses.
    pub fn update(&self, node: Option<&Node>, addresses: &[IpAddr]) {
        let networks = match &self.detect {
            DetectLocal::Within(networks) => networks.clone().into(),
            DetectLocal::PodCidrs => node.map(|n| n.pod_cidrs.clone()).unwrap_or_default(),
            DetectLocal::Unknown => Box::default(),
        };
        let known = Known {
            addresses: addresses.into(),
            networks,
        };
        if **self.known.load() != known {
            self.known.store(known.into());
        }
    }

    /// Whether the client of `flow` calls from inside.
    pub fn contains(&self, flow: &Flow) -> bool {
        let known = self.known.load();
        let peer = flow.client.ip();
        is_the_node(flow)
            || known.addresses.contains(&peer)
            || known.networks.iter().any(|network| network.contains(&peer))
    }

    /// Whether the client of `flow` is this node.
    pub fn is_node(&self, flow: &Flow) -> bool {
        is_the_node(flow) || self.known.load().addresses.contains(&flow.client.ip())
    }

    /// Whether the address is in the pods' networks, as far as they are known.
    pub fn has_pod(&self, address: &IpAddr) -> bool {
        let known = self.known.load();
        known.networks.iter().any(|net| net.contains(address))
    }

    /// Whether `wanted` holds for the client's address: for one of the node's
    /// own, if the client is the node by whatever address it calls.
    pub fn any_address(&self, flow: &Flow, wanted: impl Fn(&IpAddr) -> bool) -> bool {
        let known = || self.known.load();
        wanted(&flow.client.ip()) || is_the_node(flow) && known().addresses.iter().any(wanted)
    }
}

/// The node calls an address that is routed to itself from that very address
/// (`ip_route_output_key_hash_rcu` in net/ipv4/route.c takes the destination
/// for the source of what goes to RTN_LOCAL); from outside, such a packet is a
/// martian.
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
    fn pods_and_the_node_are_inside() {
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
            (DetectLocal::Within(vec![pods]), true, true),
            (DetectLocal::PodCidrs, true, false),
            (DetectLocal::Unknown, false, false),
        ] {
            let insiders = Insiders::new(detect.clone());
            insiders.update(Some(&node), &[ip("192.0.2.1")]);
            for (peer, inside) in [
                ("10.244.7.3", pod_here),
                ("10.244.8.3", pod_there),
                ("192.0.2.1", true),
                ("192.0.2.2", false),
                ("127.0.0.1", true),
                ("::1", true),
            ] {
                let flow = flow(peer, "10.96.0.1");
                assert_eq!(insiders.contains(&flow), inside, "{detect:?} {peer}");
            }
            assert!(insiders.contains(&flow("10.96.0.1", "10.96.0.1")));
            let is_node = |ip: &IpAddr| ip.to_string() == "192.0.2.1";
            for (peer, is) in [
                ("10.96.0.1", true),
                ("192.0.2.1", true),
                ("192.0.2.9", false),
            ] {
                let flow = flow(peer, "10.96.0.1");
                assert_eq!(insiders.any_address(&flow, is_node), is, "{peer}");
            }
        }
    }
}
