//! The addresses on which a service group listens: pure.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use net::{Family, Frontend, PerFamily};

use super::{super::capture::Method, GroupPlan};
use crate::{
    kernel::socket::listening::{Bind, Owner},
    node::Served,
};

/// State of the node on which the addresses of listeners depend.
#[derive(Clone, Debug)]
pub struct NodeContext {
    /// How each family is captured.
    pub methods: PerFamily<Method>,
    /// The node's own addresses.
    pub addresses: Vec<IpAddr>,
    /// The addresses that serve node ports.
    pub node_ports: Arc<Served>,
    /// Whether this process opens listeners; otherwise a successor opens missing ones.
    pub opens_listeners: bool,
}

/// Number of addresses on which the group of `plan` listens once it has endpoints.
pub fn addresses(plan: &GroupPlan, node: &NodeContext) -> usize {
    match node.methods.get(plan.name.port.family) {
        Method::Redirect => 1,
        Method::Local => {
            let frontends = plan.frontends.iter();
            frontends
                .map(|frontend| binds(frontend, plan, node).len())
                .sum()
        }
    }
}

/// The addresses to bind for `frontend` of `plan` if routes deliver packets to the service
/// addresses themselves.
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
        owner: Owner::Other,
    }]
}
