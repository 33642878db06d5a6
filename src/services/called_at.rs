//! Where clients call a ServicePort.

use std::net::{IpAddr, SocketAddr};

use hashbrown::HashSet;
use net::{Family, Frontend, Protocol};

use super::ServicePort;

/// The addresses at which clients call a ServicePort of TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CalledAt {
    frontends: HashSet<Frontend>,
    /// The node's addresses at which its node port is another's.
    not_at: HashSet<IpAddr>,
}

impl CalledAt {
    /// Returns those of `port`.
    pub fn of(port: &ServicePort) -> CalledAt {
        CalledAt {
            frontends: port.frontends().collect(),
            not_at: port.node_port_excluded().collect(),
        }
    }

    /// Returns whether a client that called `to` called the ServicePort. Its node port is on
    /// addresses of the `node` alone.
    pub fn has(&self, to: SocketAddr, node: &HashSet<IpAddr>) -> bool {
        let (ip, port) = (to.ip(), to.port());
        let service = Frontend::service(Protocol::Tcp, ip, port);
        let node_port = Frontend::node_port(Protocol::Tcp, Family::of(&ip), port);
        let is_nodes = node.contains(&ip) && !self.not_at.contains(&ip);
        self.frontends.contains(&service) || is_nodes && self.frontends.contains(&node_port)
    }
}
