//! Where a ServicePort is called.

use std::net::IpAddr;

use super::sets::SetId;
use crate::{
    kernel::nftables::{Value, concat},
    net::Protocol,
};

/// Where a ServicePort is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frontend {
    /// One of its addresses; `None`: any of the node's, at the node port.
    pub ip: Option<IpAddr>,
    /// The transport protocol that is called.
    pub protocol: Protocol,
    /// The port there.
    pub port: u16,
}

/// What maps there are, once for addresses and once for node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// What becomes of a packet.
    All,
    /// What becomes of it from pods here and the node.
    FromCluster,
    /// What becomes of it from others.
    FromOutside,
    /// Endpoints by slot.
    Endpoints,
    /// What is refused.
    Refused,
    /// How long clients stay on their endpoint.
    Timeouts,
}

impl Frontend {
    /// The values of a key that begins with this frontend.
    pub(super) fn key(&self, rest: &[Value]) -> Vec<u8> {
        let mut values = Vec::with_capacity(5);
        values.extend(self.ip.map(Value::Ip));
        values.push(Value::Protocol(self.protocol.number()));
        values.push(Value::Port(self.port));
        values.extend_from_slice(rest);
        concat(&values)
    }

    /// The set for that, of those for addresses or those for node ports.
    pub(super) fn set(&self, role: Role) -> SetId {
        match (role, self.ip) {
            (Role::All, Some(_)) => SetId::Services,
            (Role::All, None) => SetId::NodePorts,
            (Role::FromCluster, Some(_)) => SetId::FromCluster,
            (Role::FromCluster, None) => SetId::NodePortsFromCluster,
            (Role::FromOutside, Some(_)) => SetId::FromOutside,
            (Role::FromOutside, None) => SetId::NodePortsFromOutside,
            (Role::Endpoints, Some(_)) => SetId::Endpoints,
            (Role::Endpoints, None) => SetId::NodePortEndpoints,
            (Role::Refused, Some(_)) => SetId::Refused,
            (Role::Refused, None) => SetId::RefusedNodePorts,
            (Role::Timeouts, Some(_)) => SetId::AffinityTimeouts,
            (Role::Timeouts, None) => SetId::NodePortAffinityTimeouts,
        }
    }
}
