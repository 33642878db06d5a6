//! Where a ServicePort is called.

use std::net::IpAddr;

use super::{chains::Called, sets::SetId};
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

/// The purposes of maps and sets. For each there is one for addresses and one for node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// What becomes of a packet, whoever sends it.
    All,
    /// What becomes of a packet from pods here and from the node.
    FromCluster,
    /// What becomes of a packet from others.
    FromOutside,
    /// Endpoints by slot.
    Endpoints,
    /// What is refused.
    Refused,
    /// How long clients stay on their endpoint.
    Timeouts,
    /// What is counted.
    Counter(Counter),
}

/// What of a ServicePort is counted, each in sets of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    /// First packets of connections.
    Connections,
    /// Packets from clients.
    ToEndpoints,
    /// Packets to clients.
    FromEndpoints,
}

impl Counter {
    /// All of them.
    pub const ALL: [Counter; 3] = [
        Counter::Connections,
        Counter::ToEndpoints,
        Counter::FromEndpoints,
    ];
}

impl Role {
    /// Returns the map or set for that.
    pub(super) fn set(self, called: Called) -> SetId {
        match (self, called) {
            (Role::All, Called::Address) => SetId::Services,
            (Role::All, Called::NodePort) => SetId::NodePorts,
            (Role::FromCluster, Called::Address) => SetId::FromCluster,
            (Role::FromCluster, Called::NodePort) => SetId::NodePortsFromCluster,
            (Role::FromOutside, Called::Address) => SetId::FromOutside,
            (Role::FromOutside, Called::NodePort) => SetId::NodePortsFromOutside,
            (Role::Endpoints, Called::Address) => SetId::Endpoints,
            (Role::Endpoints, Called::NodePort) => SetId::NodePortEndpoints,
            (Role::Refused, Called::Address) => SetId::Refused,
            (Role::Refused, Called::NodePort) => SetId::RefusedNodePorts,
            (Role::Timeouts, Called::Address) => SetId::AffinityTimeouts,
            (Role::Timeouts, Called::NodePort) => SetId::NodePortAffinityTimeouts,
            (Role::Counter(counter), called) => match (counter, called) {
                (Counter::Connections, Called::Address) => SetId::Connections,
                (Counter::Connections, Called::NodePort) => SetId::NodePortConnections,
                (Counter::ToEndpoints, Called::Address) => SetId::ToEndpoints,
                (Counter::ToEndpoints, Called::NodePort) => SetId::NodePortToEndpoints,
                (Counter::FromEndpoints, Called::Address) => SetId::FromEndpoints,
                (Counter::FromEndpoints, Called::NodePort) => SetId::NodePortFromEndpoints,
            },
        }
    }
}

impl Frontend {
    /// Returns a key that begins with this frontend.
    pub(super) fn key(&self, rest: &[Value]) -> Vec<u8> {
        let mut values = Vec::with_capacity(5);
        values.extend(self.ip.map(Value::Ip));
        values.push(Value::Protocol(self.protocol.number()));
        values.push(Value::Port(self.port));
        values.extend_from_slice(rest);
        concat(&values)
    }

    /// Returns the set for `role`, of those for addresses or those for node ports.
    pub(super) fn set(&self, role: Role) -> SetId {
        role.set(self.called())
    }

    /// Returns which kind of address it is.
    pub(super) fn called(&self) -> Called {
        match self.ip {
            Some(_) => Called::Address,
            None => Called::NodePort,
        }
    }
}
