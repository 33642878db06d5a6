//! The addresses of the node on which node ports are served.

use std::{net::IpAddr, sync::Arc};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use net::Family;

use crate::{config::NodePortAddresses, services::Node};

/// The addresses that serve node ports now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// All addresses of the node.
    All,
    /// The addresses within one of these networks; none, if there is no
    /// network.
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

    /// Returns whether all addresses of both families are served.
    pub fn is_whole(&self) -> bool {
        let is_whole = |family| self.of(family) == Served::All;
        Family::ALL.into_iter().all(is_whole)
    }

    /// The served addresses of `family`: all if one of the networks covers the family.
    pub fn of(&self, family: Family) -> Served {
        let Served::Within(networks) = self else {
            return Served::All;
        };
        let networks = networks.iter().copied();
        let networks: Vec<IpNet> = networks
            .filter(|network| Family::of(&network.addr()) == family)
            .collect();
        if networks.iter().any(|network| network.prefix_len() == 0) {
            Served::All
        } else {
            Served::Within(networks)
        }
    }
}

/// The addresses on which one follower of [`NodePorts`] has acted: each follower must act on a
/// change, whichever of them notices it first.
#[derive(Debug)]
pub struct ActedOn(Arc<Served>);

impl ActedOn {
    /// Returns whether `node_ports` serve other addresses than when this was called last, and
    /// counts that as acted on.
    pub fn differs(&mut self, node_ports: &NodePorts) -> bool {
        let before = std::mem::replace(&mut self.0, node_ports.served());
        before != self.0
    }
}

/// `nodePortAddresses`, resolved as far as possible for this node.
#[derive(Debug)]
pub struct NodePorts {
    /// `None`: `primary` is not configured; else the address that `bindAddress` names, if it names
    /// one.
    primary: Option<Option<IpAddr>>,
    /// The networks that are served regardless of the Node object.
    networks: Vec<IpNet>,
    loopback: Vec<IpAddr>,
    served: ArcSwap<Served>,
}

impl NodePorts {
    /// Resolves the configuration. A family without a named network is served completely, as in
    /// kube-proxy (`NewNodePortAddresses` of its `pkg/proxy/util`), unless the primary addresses
    /// are named, which are of both families. `node_ip` is `bindAddress`, if that names an address.
    pub fn new(configured: &NodePortAddresses, node_ip: Option<IpAddr>) -> Self {
        let loopback = configured.relayed();
        let NodePortAddresses {
            primary,
            mut networks,
            ..
        } = configured.clone();
        let served = if !primary && networks.is_empty() {
            Served::All
        } else {
            if !primary {
                let named = networks.clone();
                networks.extend(NodePortAddresses::every().into_iter().filter(|every| {
                    let of_family = |n: &IpNet| n.addr().is_ipv4() == every.addr().is_ipv4();
                    !named.iter().any(of_family)
                }));
            }
            Served::Within(networks.clone())
        };
        let ports = NodePorts {
            primary: primary.then_some(node_ip),
            networks,
            loopback,
            served: ArcSwap::from_pointee(served),
        };
        ports.update(None);
        ports
    }

    /// Applies this node's object. Until the object is known, `primary` serves no address, because
    /// it means fewer than all.
    pub fn update(&self, node: Option<&Node>) {
        let Some(node_ip) = self.primary else {
            return;
        };
        let known = node.map(|n| &*n.addresses).unwrap_or_default();
        let mut networks = self.networks.clone();
        networks.extend(Family::ALL.into_iter().filter_map(|family| {
            let of_family = |ip: &IpAddr| Family::of(ip) == family;
            let listed = known.iter().copied().find(of_family);
            node_ip.filter(of_family).or(listed).map(IpNet::from)
        }));
        let served = Served::Within(networks);
        if **self.served.load() != served {
            self.served.store(Arc::new(served));
        }
    }

    /// Makes the state of a follower that starts with the addresses served now.
    pub fn acted_on(&self) -> ActedOn {
        ActedOn(self.served())
    }

    /// Returns the families whose node ports are served at the address in this node's object.
    pub fn of_node_object(&self) -> Vec<Family> {
        let Some(node_ip) = self.primary else {
            return Vec::new();
        };
        let of_bind_address = node_ip.map(|ip| Family::of(&ip));
        let all = Family::ALL.into_iter();
        all.filter(|family| of_bind_address != Some(*family))
            .collect()
    }

    /// Returns the loopback addresses on which modes of the kernel relay node ports
    /// ([`NodePortAddresses::relayed`]).
    pub fn loopback(&self) -> &[IpAddr] {
        &self.loopback
    }

    /// Returns the addresses that serve node ports now.
    pub fn served(&self) -> Arc<Served> {
        self.served.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn primary() -> NodePortAddresses {
        NodePortAddresses {
            primary: true,
            ..NodePortAddresses::default()
        }
    }

    fn within(networks: &str) -> NodePortAddresses {
        let networks = networks.split(',').map(|text| text.parse().unwrap());
        NodePortAddresses {
            networks: networks.collect(),
            ..NodePortAddresses::default()
        }
    }

    #[test]
    fn primary_addresses_are_served_beside_networks() {
        let configured = NodePortAddresses {
            networks: NodePortAddresses::loopback().to_vec(),
            ..primary()
        };
        let ports = NodePorts::new(&configured, Some(ip("192.0.2.2")));
        for (address, served) in [
            ("192.0.2.2", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(ports.served().contains(&ip(address)), served, "{address}");
        }
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
        let ports = NodePorts::new(&primary(), None);
        assert!(!ports.served().contains(&ip("192.0.2.1")), "not known yet");
        let mut followers = [ports.acted_on(), ports.acted_on()];
        ports.update(Some(&node));
        for follower in &mut followers {
            assert!(follower.differs(&ports), "each has to act on it");
            ports.update(Some(&node));
            assert!(!follower.differs(&ports), "nothing new");
        }
        for (address, served) in [
            ("192.0.2.1", true),
            ("2001:db8::1", true),
            ("192.0.2.2", false),
        ] {
            assert_eq!(ports.served().contains(&ip(address)), served, "{address}");
        }
        let bound = NodePorts::new(&primary(), Some(ip("192.0.2.2")));
        bound.update(Some(&node));
        assert!(bound.served().contains(&ip("192.0.2.2")));
        assert!(!bound.served().contains(&ip("192.0.2.1")));
        assert!(bound.served().contains(&ip("2001:db8::1")));
    }

    #[test]
    fn what_is_configured_needs_no_node() {
        let all = NodePorts::new(&NodePortAddresses::default(), None);
        assert!(all.served().contains(&ip("192.0.2.1")));
        let within = within("192.0.2.0/24");
        let within = NodePorts::new(&within, None);
        within.update(None);
        assert!(within.served().contains(&ip("192.0.2.1")));
        assert!(!within.served().contains(&ip("198.51.100.1")));
        assert!(within.served().contains(&ip("2001:db8::1")), "unnamed");
    }

    #[test]
    fn loopback_is_asked_for_by_name() {
        for (networks, expected) in [
            ("127.0.0.0/8,::1/128", &["127.0.0.1", "::1"] as &[&str]),
            ("0.0.0.0/0,127.0.0.1/32", &["127.0.0.1"]),
            ("::1/128", &["::1"]),
            ("127.0.0.2/32", &[]),
            ("0.0.0.0/0,::/0", &[]),
            ("192.0.2.0/24", &[]),
        ] {
            let ports = NodePorts::new(&within(networks), None);
            let expected: Vec<IpAddr> = expected.iter().map(|text| ip(text)).collect();
            assert_eq!(ports.loopback(), expected, "{networks}");
        }
        let all = NodePorts::new(&NodePortAddresses::default(), None);
        assert!(all.loopback().is_empty());
        let disabled = NodePortAddresses {
            not_relayed: true,
            ..within("127.0.0.0/8,::1/128")
        };
        assert!(NodePorts::new(&disabled, None).loopback().is_empty());
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
            let ports = NodePorts::new(&within(networks), None);
            let found = ports.served().contains(&ip(address));
            assert_eq!(found, served, "{address}");
        }
    }
}
