//! The sets and maps of a table, which hold everything that differs from Service to Service.

use std::sync::Arc;

use net::Family;
use nftables::{Comment, Data, DataType, Field, Meta, Numgen, Set, Type};

use super::Options;
use crate::kernel::probe::NftPart;

/// A set or a map of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetId {
    /// Service address, protocol, port: the verdict on packets.
    Services,
    /// Protocol, node port: the verdict on packets.
    NodePorts,
    /// With an external policy of Local: the verdict on packets from this node's pods and from the
    /// node.
    FromCluster,
    /// The same for node ports.
    NodePortsFromCluster,
    /// With an external policy of Local: the verdict on other packets.
    FromOutside,
    /// The same for node ports.
    NodePortsFromOutside,
    /// Service address, protocol, port, slot: the endpoint's address and port.
    Endpoints,
    /// Protocol, node port, slot: the endpoint's address and port.
    NodePortEndpoints,
    /// Load-balancer addresses, protocols and ports with source ranges.
    Filtered,
    /// Those with the ranges that may call them.
    SourceRanges,
    /// Addresses, protocols and ports that are refused.
    Refused,
    /// Protocols and node ports that are refused.
    RefusedNodePorts,
    /// Protocols and node ports that are refused on loopback addresses.
    LoopbackNodePorts,
    /// Cluster IPs, whose other ports are refused.
    ClusterIps,
    /// Networks that cluster IPs are allocated from; packets to their unused addresses and ports
    /// are dropped.
    ServiceCidrs,
    /// Endpoints that may be sent to themselves, twice each.
    Hairpin,
    /// Service address, protocol, port: the chain that remembers where clients were sent.
    AffinityServices,
    /// The same for node ports.
    AffinityNodePorts,
    /// Service address, protocol, port, endpoint: how many connections there were.
    Connections,
    /// The same for node ports.
    NodePortConnections,
    /// Service address, protocol, port, endpoint: traffic from clients.
    ToEndpoints,
    /// The same for node ports.
    NodePortToEndpoints,
    /// Service address, protocol, port, endpoint: traffic to clients.
    FromEndpoints,
    /// The same for node ports.
    NodePortFromEndpoints,
    /// Networks whose addresses serve node ports.
    NodePortAddresses,
    /// The node's addresses, where the kernel does not say which they are.
    NodeAddresses,
}

impl SetId {
    /// All of them, in the order in which they are added.
    pub const ALL: [SetId; 26] = [
        SetId::Services,
        SetId::NodePorts,
        SetId::FromCluster,
        SetId::NodePortsFromCluster,
        SetId::FromOutside,
        SetId::NodePortsFromOutside,
        SetId::Endpoints,
        SetId::NodePortEndpoints,
        SetId::Filtered,
        SetId::SourceRanges,
        SetId::Refused,
        SetId::RefusedNodePorts,
        SetId::LoopbackNodePorts,
        SetId::ClusterIps,
        SetId::ServiceCidrs,
        SetId::Hairpin,
        SetId::AffinityServices,
        SetId::AffinityNodePorts,
        SetId::Connections,
        SetId::NodePortConnections,
        SetId::ToEndpoints,
        SetId::NodePortToEndpoints,
        SetId::FromEndpoints,
        SetId::NodePortFromEndpoints,
        SetId::NodePortAddresses,
        SetId::NodeAddresses,
    ];

    fn name(self) -> &'static str {
        match self {
            SetId::Services => "services",
            SetId::NodePorts => "node-ports",
            SetId::FromCluster => "from-cluster",
            SetId::NodePortsFromCluster => "node-ports-from-cluster",
            SetId::FromOutside => "from-outside",
            SetId::NodePortsFromOutside => "node-ports-from-outside",
            SetId::Endpoints => "endpoints",
            SetId::NodePortEndpoints => "node-port-endpoints",
            SetId::Filtered => "filtered",
            SetId::SourceRanges => "source-ranges",
            SetId::Refused => "refused",
            SetId::RefusedNodePorts => "refused-node-ports",
            SetId::LoopbackNodePorts => "loopback-node-ports",
            SetId::ClusterIps => "cluster-ips",
            SetId::ServiceCidrs => "service-cidrs",
            SetId::Hairpin => "hairpin",
            SetId::AffinityServices => "affinity-services",
            SetId::AffinityNodePorts => "affinity-node-ports",
            SetId::Connections => "connections",
            SetId::NodePortConnections => "node-port-connections",
            SetId::ToEndpoints => "to-endpoints",
            SetId::NodePortToEndpoints => "node-port-to-endpoints",
            SetId::FromEndpoints => "from-endpoints",
            SetId::NodePortFromEndpoints => "node-port-from-endpoints",
            SetId::NodePortAddresses => "node-port-addresses",
            SetId::NodeAddresses => "node-addresses",
        }
    }

    fn comment(self) -> &'static str {
        match self {
            SetId::Services => "addresses of Services",
            SetId::NodePorts => "node ports of Services",
            SetId::FromCluster | SetId::NodePortsFromCluster => {
                "externalTrafficPolicy Local: calls from pods here and from the node"
            }
            SetId::FromOutside | SetId::NodePortsFromOutside => {
                "externalTrafficPolicy Local: other calls"
            }
            SetId::Endpoints => "a slot of a Service's address: an endpoint",
            SetId::NodePortEndpoints => "a slot of a node port: an endpoint",
            SetId::Filtered => "load-balancer addresses with loadBalancerSourceRanges",
            SetId::SourceRanges => "who may call them",
            SetId::Refused => "addresses of Services without endpoints",
            SetId::RefusedNodePorts => "node ports of Services without endpoints",
            SetId::LoopbackNodePorts => "node ports that are not relayed on loopback addresses",
            SetId::ClusterIps => "their other ports are refused",
            SetId::ServiceCidrs => "where no other address answers",
            SetId::Hairpin => "endpoints that call themselves are masqueraded",
            SetId::AffinityServices | SetId::AffinityNodePorts => {
                "where clients are remembered that stay on their endpoint"
            }
            SetId::Connections | SetId::NodePortConnections => "connections to endpoints",
            SetId::ToEndpoints | SetId::NodePortToEndpoints => "bytes from clients",
            SetId::FromEndpoints | SetId::NodePortFromEndpoints => "bytes to clients",
            SetId::NodePortAddresses => "where node ports are served",
            SetId::NodeAddresses => "the node's own, by its Node",
        }
    }
}

/// The sets of a family's table.
#[derive(Clone, Debug)]
pub struct Sets(Vec<Arc<Set>>);

impl Sets {
    /// All sets of a family.
    pub fn new(family: Family) -> Sets {
        Sets(SetId::ALL.map(|id| Arc::new(set(id, family))).into())
    }

    /// The set with that id.
    pub fn get(&self, id: SetId) -> &Arc<Set> {
        // All have a place, in the order of the enumeration.
        &self.0[id as usize]
    }

    /// Returns all of them that the options ask for.
    pub fn of<'a>(&'a self, options: &'a Options) -> impl Iterator<Item = &'a Arc<Set>> {
        let all = SetId::ALL.into_iter();
        let needed = all.filter(|id| match id {
            SetId::NodePortAddresses => options.node_ports.is_some(),
            SetId::LoopbackNodePorts => !options.refused_on_loopback.is_empty(),
            SetId::NodeAddresses => !options.features.contains(NftPart::Fib),
            SetId::ServiceCidrs => !options.service_cidrs.is_empty(),
            SetId::Connections
            | SetId::NodePortConnections
            | SetId::ToEndpoints
            | SetId::NodePortToEndpoints
            | SetId::FromEndpoints
            | SetId::NodePortFromEndpoints => !options.counted.is_empty(),
            _ => true,
        });
        needed.map(|id| self.get(id))
    }
}

/// Fields of a key: service address, protocol and port of a packet.
pub(super) fn service(family: Family) -> Vec<Field> {
    let mut key = vec![Field::DestinationAddress(family)];
    key.extend(node_port());
    key
}

/// Fields of a key: protocol and node port of a packet.
pub(super) fn node_port() -> Vec<Field> {
    vec![Field::Meta(Meta::L4Proto), Field::DestinationPort]
}

/// Returns the fields that name an endpoint.
pub(super) fn endpoint(family: Family) -> Vec<Field> {
    vec![Field::DestinationAddress(family), Field::DestinationPort]
}

/// Types of the key of an endpoint with such an address.
pub(super) fn of_endpoint(address: DataType) -> Vec<DataType> {
    vec![address, DataType::Port]
}

/// A slot, as it stands in the declaration of a map: the number of slots is no
/// part of its type.
fn slot() -> Field {
    Field::Numgen(Numgen {
        random: true,
        modulus: 1,
        offset: 0,
    })
}

fn set(id: SetId, family: Family) -> Set {
    let (name, address) = (id.name(), address(family));
    let of_node_port = vec![DataType::Protocol, DataType::Port];
    let of_service = vec![address, DataType::Protocol, DataType::Port];
    let verdicts = |key| Set::map(name, Type::Named(key), Data::Verdict);
    let keys = |key| Set::new(name, Type::Named(key));
    let endpoints = || Data::Values(Type::Of(endpoint(family)));
    let slots = |mut key: Vec<Field>| {
        key.push(slot());
        Set::map(name, Type::Of(key), endpoints())
    };
    let ranges = |key| Set {
        interval: true,
        ..keys(key)
    };
    let of_endpoint = of_endpoint(address);
    let counts = |key| Set {
        counter: true,
        ..keys(key)
    };
    let set = match id {
        SetId::Services | SetId::FromCluster | SetId::FromOutside | SetId::AffinityServices => {
            verdicts(of_service)
        }
        SetId::NodePorts
        | SetId::NodePortsFromCluster
        | SetId::NodePortsFromOutside
        | SetId::AffinityNodePorts => verdicts(of_node_port),
        SetId::Endpoints => slots(service(family)),
        SetId::NodePortEndpoints => slots(node_port()),
        SetId::Filtered | SetId::Refused => keys(of_service),
        SetId::RefusedNodePorts | SetId::LoopbackNodePorts => keys(of_node_port),
        SetId::SourceRanges => ranges([of_service, vec![address]].concat()),
        SetId::NodePortAddresses | SetId::ServiceCidrs => ranges(vec![address]),
        SetId::ClusterIps | SetId::NodeAddresses => keys(vec![address]),
        SetId::Hairpin => keys(vec![address, address]),
        SetId::Connections | SetId::ToEndpoints | SetId::FromEndpoints => {
            counts([of_service, of_endpoint].concat())
        }
        SetId::NodePortConnections | SetId::NodePortToEndpoints | SetId::NodePortFromEndpoints => {
            counts([of_node_port, of_endpoint].concat())
        }
    };
    Set {
        comment: Some(Comment::new(id.comment())),
        ..set
    }
}

pub(super) fn address(family: Family) -> DataType {
    match family {
        Family::V4 => DataType::Ipv4,
        Family::V6 => DataType::Ipv6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_set_is_found_by_its_place() {
        for (at, id) in SetId::ALL.into_iter().enumerate() {
            assert_eq!(id as usize, at, "{id:?}");
        }
    }
}
