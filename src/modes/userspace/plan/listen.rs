//! Where a service group listens, and what is captured for it: pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    super::capture::{Frontend, Method},
    GroupPlan,
};
use crate::{
    net::{Family, PerFamily},
    node::Served,
};

/// What of the node decides where service groups listen.
#[derive(Clone, Debug)]
pub struct NodeContext {
    /// How each family is captured.
    pub methods: PerFamily<Method>,
    /// The node's own addresses.
    pub addresses: Vec<IpAddr>,
    /// Those of them that serve node ports.
    pub node_ports: Arc<Served>,
    /// Listeners are opened here; otherwise a successor opens what is missing.
    pub opens_listeners: bool,
}

/// Whose address a listener binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The node's, or the wildcard.
    Node,
    /// A Service's, which is not in the kernel's local table: binding it, and
    /// answering from it, takes IP_TRANSPARENT (`ip(7)`) or its IPv6 twin.
    Service,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bind {
    /// Address and port.
    pub address: SocketAddr,
    /// Whose address it is.
    pub owner: Owner,
}

impl Bind {
    /// Returns the bind of an address of the node, or of the wildcard.
    pub fn of_node(address: SocketAddr) -> Bind {
        Bind {
            address,
            owner: Owner::Node,
        }
    }
}

/// Returns where to listen for `frontend` of `plan` where routes lead packets to
/// the service addresses themselves.
pub fn binds(frontend: &Frontend, plan: &GroupPlan, node: &NodeContext) -> Vec<Bind> {
    let address = |ip: IpAddr| SocketAddr::new(ip, frontend.port);
    let Some(ip) = frontend.address else {
        let serves = |ip: &&IpAddr| {
            Family::of(ip) == frontend.family
                && !plan.not_at.contains(ip)
                && node.node_ports.contains(ip)
        };
        let served = node.addresses.iter().filter(serves);
        return served.map(|ip| Bind::of_node(address(*ip))).collect();
    };
    if node.addresses.contains(&ip) {
        return vec![Bind::of_node(address(ip))];
    }
    vec![Bind {
        address: address(ip),
        owner: Owner::Service,
    }]
}
