//! On which of the node's addresses node ports are served.

use std::{net::IpAddr, sync::Arc};

use arc_swap::ArcSwap;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::{net::NodePortAddresses, services::Node};

/// Which addresses serve node ports now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// All of the node's own.
    All,
    /// Those within one of these networks; none, if there is no network.
    Within(Vec<IpNet>),
}

impl Served {
    /// Returns whether node ports are served on `ip`, one of the node's own.
    pub fn contains(&self, ip: &IpAddr) -> bool {
        match self {
            Served::All => true,
            Served::Within(networks) => networks.iter().any(|network| network.contains(ip)),
        }
    }
}

/// `nodePortAddresses`, resolved as far as this node is known.
#[derive(Debug)]
pub struct NodePorts {
    /// The primary addresses are asked for; `Some` of the one that
    /// `bindAddress` names, if it does.
    primary: Option<Option<IpAddr>>,
    served: ArcSwap<Served>,
}

impl NodePorts {
    /// As configured; a family of which no network is named is served whole, as
    /// in kube-proxy (`NewNodePortAddresses` of its `pkg/proxy/util`). `node_ip`
    /// is `bindAddress`, where that names an address.
    pub fn new(configured: &NodePortAddresses, node_ip: Option<IpAddr>) -> Self {
        let (primary, served) = match configured {
            NodePortAddresses::All => (None, Served::All),
            NodePortAddresses::Within(networks) => {
                let unnamed = every_address().into_iter().filter(|every| {
                    let named = |n: &IpNet| n.addr().is_ipv4() == every.addr().is_ipv4();
                    !networks.iter().any(named)
                });
                let networks = networks.iter().copied().chain(unnamed);
                (None, Served::Within(networks.collect()))
            }
            NodePortAddresses::Primary => (Some(node_ip), Served::Within(Vec::new())),
        };
        let ports = NodePorts {
            primary,
            served: ArcSwap::from_pointee(served),
        };
        ports.learn(None);
        ports
    }

    /// Learns this node's object; true if that changed what is served. Until
    /// it is known nothing is: `primary` asks for less than everything.
    pub fn learn(&self, node: Option<&Node>) -> bool {
        let Some(node_ip) = self.primary else {
            return false;
        };
        let known = node.map(|n| &*n.addresses).unwrap_or_default();
        let first = |of: fn(&IpAddr) -> bool| {
            let listed = known.iter().copied().find(of);
            node_ip.filter(of).or(listed).map(IpNet::from)
        };
        let primary = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)];
        let served = Served::Within(primary.into_iter().flatten().collect());
        let changed = **self.served.load() != served;
        if changed {
            self.served.store(Arc::new(served));
        }
        changed
    }

    /// Returns the addresses that serve node ports now.
    pub fn served(&self) -> Arc<Served> {
        self.served.load_full()
    }
}

/// Returns the unspecified address of each family.
fn every_address() -> [IpNet; 2] {
    [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn primary_is_the_first_address_of_each_family() {
        let node = Node {
            name: "here".into(),
            zone: None,
            pod_cidrs: Box::default(),
            addresses: [ip("192.0.2.1"), ip("2001:db8::1"), ip("192.0.2.2")].into(),
            deleting: false,
            to_be_deleted: false,
            weight: None,
        };
        let ports = NodePorts::new(&NodePortAddresses::Primary, None);
        assert!(!ports.served().contains(&ip("192.0.2.1")), "not known yet");
        assert!(ports.learn(Some(&node)));
        assert!(!ports.learn(Some(&node)), "nothing new");
        for (address, served) in [
            ("192.0.2.1", true),
            ("2001:db8::1", true),
            ("192.0.2.2", false),
        ] {
            assert_eq!(ports.served().contains(&ip(address)), served, "{address}");
        }
        let bound = NodePorts::new(&NodePortAddresses::Primary, Some(ip("192.0.2.2")));
        bound.learn(Some(&node));
        assert!(bound.served().contains(&ip("192.0.2.2")));
        assert!(!bound.served().contains(&ip("192.0.2.1")));
        assert!(bound.served().contains(&ip("2001:db8::1")));
    }

    #[test]
    fn what_is_configured_needs_no_node() {
        let all = NodePorts::new(&NodePortAddresses::All, None);
        assert!(all.served().contains(&ip("192.0.2.1")));
        let within = NodePortAddresses::Within(vec!["192.0.2.0/24".parse().unwrap()]);
        let within = NodePorts::new(&within, None);
        assert!(!within.learn(None));
        assert!(within.served().contains(&ip("192.0.2.1")));
        assert!(!within.served().contains(&ip("198.51.100.1")));
        assert!(within.served().contains(&ip("2001:db8::1")), "unnamed");
    }

    /// Networks, an address, and whether that serves node ports.
    #[test]
    fn a_family_that_is_not_named_is_served_whole() {
        let cases = [
            ("192.0.2.0/24", "198.51.100.1", false),
            ("192.0.2.0/24", "2001:db8::1", true),
            ("2001:db8::/64", "192.0.2.1", true),
            ("2001:db8::/64", "2001:db8:1::1", false),
            ("192.0.2.0/24,2001:db8::/64", "198.51.100.1", false),
            ("192.0.2.0/24,2001:db8::/64", "2001:db8:1::1", false),
        ];
        for (networks, address, served) in cases {
            let networks = networks.split(',').map(|text| text.parse().unwrap());
            let ports = NodePorts::new(&NodePortAddresses::Within(networks.collect()), None);
            let found = ports.served().contains(&ip(address));
            assert_eq!(found, served, "{address}");
        }
    }
}
