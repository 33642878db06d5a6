//! The configuration of node ports.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use net::Family;

/// Which of the node's addresses serve node ports: all of them where nothing is
/// named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The addresses of the Node object, one of each family.
    pub primary: bool,
    /// Those within one of these.
    pub networks: Vec<IpNet>,
    /// Whether modes of the kernel serve none of them on loopback addresses.
    pub not_relayed: bool,
    /// Whether nftables mode refuses calls of node ports at loopback addresses even if none of
    /// these is named, as kube-proxy does with the same feature gate (KEP-6032).
    pub refused_unnamed: bool,
}

impl NodePortAddresses {
    /// The networks that the word `localhost` stands for.
    pub fn loopback() -> [IpNet; 2] {
        Family::ALL.map(Family::loopback)
    }

    /// The networks that the word `all` stands for.
    pub fn every() -> [IpNet; 2] {
        [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())]
    }

    /// The addresses to which `localhost` resolves (RFC 6761) and on which modes of the kernel
    /// relay node ports: those within a network of loopback addresses alone. A network of all
    /// addresses of a family does not name them (KEP-6032).
    pub fn relayed(&self) -> Vec<IpAddr> {
        let is_named = |ip: &IpAddr| {
            let mut networks = self.networks.iter();
            networks.any(|network| network.addr().is_loopback() && network.contains(ip))
        };
        let all = Family::ALL.map(Family::localhost).into_iter();
        all.filter(|ip| !self.not_relayed && is_named(ip)).collect()
    }
}
