//! Where a ServicePort is called, as maps and sets of nf_tables have it.

use net::Frontend;
use nftables::{Value, concat};

use super::{chains::Called, sets::SetId};

/// The purposes of maps and sets. For each there is one for addresses and one for node ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// Verdicts on packets of any sender.
    All,
    /// Verdicts on packets from pods here and from the node.
    FromCluster,
    /// Verdicts on packets from others.
    FromOutside,
    /// Endpoints by slot.
    Endpoints,
    /// Refused packets.
    Refused,
    /// Where clients are remembered.
    Affinity,
    /// Counted packets.
    Counter(Counter),
}

/// Packets of a ServicePort that are counted, each kind in sets of its own.
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
    /// Returns the map or set for that, of those for addresses or those for node ports.
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
            (Role::Affinity, Called::Address) => SetId::AffinityServices,
            (Role::Affinity, Called::NodePort) => SetId::AffinityNodePorts,
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

/// Returns a key that begins with `frontend`.
pub(super) fn key(frontend: &Frontend, rest: &[Value]) -> Vec<u8> {
    let mut values = Vec::with_capacity(5);
    values.extend(frontend.address.map(Value::Ip));
    values.push(Value::Protocol(frontend.protocol.number()));
    values.push(Value::Port(frontend.port));
    values.extend_from_slice(rest);
    concat(&values)
}

impl Called {
    /// Returns which kind of address `frontend` is.
    pub(super) fn of(frontend: &Frontend) -> Called {
        match frontend.address {
            Some(_) => Called::Address,
            None => Called::NodePort,
        }
    }
}
