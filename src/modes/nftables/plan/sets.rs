//! The sets and maps of a table, which hold everything that differs from Service to Service.

use std::{collections::BTreeMap, sync::Arc};

use enumset::EnumSet;
use net::Family;
use nftables::{Comment, Data, DataType, Field, Meta, Numgen, Set, Type};

use super::{
    Options,
    frontend::{Called, Role},
};
use crate::kernel::probe::NftPart;

/// A set or a map of the table. They are added in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetId {
    /// That for a role, of those for addresses or those for node ports.
    Of(Role, Called),
    /// Load-balancer addresses, protocols and ports with source ranges.
    Filtered,
    /// Those with the ranges that may call them.
    SourceRanges,
    /// Protocols and node ports that are refused on loopback addresses.
    LoopbackNodePorts,
    /// Addresses, protocols and ranges of ports, and the chains of these ranges.
    Ranges,
    /// A slot of a range: an endpoint. The number of the slot says which range it is of.
    RangeEndpoints,
    /// Ranges of ports without endpoints.
    RefusedRanges,
    /// Load-balancer addresses, protocols and ranges of ports, with the ranges that may call them.
    RangeSources,
    /// Cluster IPs, whose other ports are refused.
    ClusterIps,
    /// Networks that cluster IPs are allocated from; packets to their unused addresses and ports
    /// are dropped.
    ServiceCidrs,
    /// Endpoints that may be sent to themselves, twice each.
    Hairpin,
    /// Networks whose addresses serve node ports.
    NodePortAddresses,
    /// The node's addresses, where the kernel does not say which they are.
    NodeAddresses,
}

/// The sets that are there only while a Service has ranges of ports.
const OF_RANGES: [SetId; 4] = [
    SetId::Ranges,
    SetId::RangeEndpoints,
    SetId::RefusedRanges,
    SetId::RangeSources,
];

impl SetId {
    fn all() -> impl Iterator<Item = SetId> {
        let called =
            |role| [Called::Address, Called::NodePort].map(|called| SetId::Of(role, called));
        EnumSet::all().into_iter().flat_map(called).chain([
            SetId::Filtered,
            SetId::SourceRanges,
            SetId::LoopbackNodePorts,
            SetId::Ranges,
            SetId::RangeEndpoints,
            SetId::RefusedRanges,
            SetId::RangeSources,
            SetId::ClusterIps,
            SetId::ServiceCidrs,
            SetId::Hairpin,
            SetId::NodePortAddresses,
            SetId::NodeAddresses,
        ])
    }

    /// Its name, and a comment that `nft list` shows.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            SetId::Of(role, called) => role.words(called),
            SetId::Filtered => (
                "filtered",
                "load-balancer addresses with loadBalancerSourceRanges",
            ),
            SetId::SourceRanges => ("source-ranges", "who may call them"),
            SetId::LoopbackNodePorts => (
                "loopback-node-ports",
                "node ports that are not relayed on loopback addresses",
            ),
            SetId::Ranges => ("ranges", "ranges of ports (tripod.proxy/ports)"),
            SetId::RangeEndpoints => (
                "range-endpoints",
                "the first port of a range and a slot: an endpoint",
            ),
            SetId::RefusedRanges => ("refused-ranges", "ranges of ports without endpoints"),
            SetId::RangeSources => ("range-sources", "who may call load-balancer addresses"),
            SetId::ClusterIps => ("cluster-ips", "their other ports are refused"),
            SetId::ServiceCidrs => ("service-cidrs", "where no other address answers"),
            SetId::Hairpin => ("hairpin", "endpoints that call themselves are masqueraded"),
            SetId::NodePortAddresses => ("node-port-addresses", "where node ports are served"),
            SetId::NodeAddresses => ("node-addresses", "the node's own, by its Node"),
        }
    }
}

/// The sets of a family's table.
#[derive(Clone, Debug)]
pub struct Sets(BTreeMap<SetId, Arc<Set>>);

impl Sets {
    /// All sets of a family.
    pub fn new(family: Family) -> Sets {
        Sets(
            SetId::all()
                .map(|id| (id, Arc::new(set(id, family))))
                .collect(),
        )
    }

    /// The set with that id.
    pub fn get(&self, id: SetId) -> &Arc<Set> {
        &self.0[&id]
    }

    /// Returns those that are there only while a Service has ranges of ports.
    pub fn of_ranges(&self) -> impl Iterator<Item = (SetId, &Arc<Set>)> {
        OF_RANGES.into_iter().map(|id| (id, self.get(id)))
    }

    /// Returns all of them that the options ask for.
    pub fn of<'a>(&'a self, options: &'a Options) -> impl Iterator<Item = (SetId, &'a Arc<Set>)> {
        let all = self.0.iter().map(|(id, set)| (*id, set));
        all.filter(|(id, _)| match id {
            SetId::NodePortAddresses => options.node_ports.is_some(),
            SetId::LoopbackNodePorts => !options.refused_on_loopback.is_empty(),
            SetId::NodeAddresses => !options.features.contains(NftPart::Fib),
            SetId::ServiceCidrs => !options.service_cidrs.is_empty(),
            id if OF_RANGES.contains(id) => false,
            SetId::Of(role, _) if Role::COUNTERS.contains(role) => !options.counted.is_empty(),
            _ => true,
        })
    }
}

/// Fields of a key: service address, protocol and port of a packet; of a node port, the last two.
pub(super) fn fields(called: Called, family: Family) -> Vec<Field> {
    let address = match called {
        Called::Address => Some(Field::DestinationAddress(family)),
        Called::NodePort => None,
    };
    let port = [Field::Meta(Meta::L4Proto), Field::DestinationPort];
    address.into_iter().chain(port).collect()
}

/// The fields by which the endpoint of a range in a slot is found.
pub(super) fn slot_of_range(family: Family, slot: Field) -> Vec<Field> {
    vec![
        Field::DestinationAddress(family),
        Field::Meta(Meta::L4Proto),
        slot,
    ]
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
    let ((name, comment), address) = (id.words(), address(family));
    let of = |called| match called {
        Called::Address => vec![address, DataType::Protocol, DataType::Port],
        Called::NodePort => vec![DataType::Protocol, DataType::Port],
    };
    let keys = |key| Set::new(name, Type::Named(key));
    let ranges = |key| Set {
        interval: true,
        ..keys(key)
    };
    let set = match id {
        SetId::Of(Role::Endpoints, called) => {
            let mut key = fields(called, family);
            key.push(slot());
            Set::map(
                name,
                Type::Of(key),
                Data::Values(Type::Of(endpoint(family))),
            )
        }
        SetId::Of(Role::Refused, called) => keys(of(called)),
        SetId::Of(role, called) if Role::COUNTERS.contains(&role) => Set {
            counter: true,
            ..keys([of(called), of_endpoint(address)].concat())
        },
        SetId::Of(Role::Affinity | Role::Limits, Called::NodePort) => {
            let key = [of(Called::NodePort), of_endpoint(address)].concat();
            Set::map(name, Type::Named(key), Data::Verdict)
        }
        SetId::Of(_, called) => Set::map(name, Type::Named(of(called)), Data::Verdict),
        SetId::Filtered => keys(of(Called::Address)),
        SetId::LoopbackNodePorts => keys(of(Called::NodePort)),
        SetId::SourceRanges => ranges([of(Called::Address), vec![address]].concat()),
        SetId::Ranges => Set {
            interval: true,
            ..Set::map(name, Type::Named(of(Called::Address)), Data::Verdict)
        },
        SetId::RangeEndpoints => {
            // Packets keep their port.
            let data = Type::Of(vec![Field::DestinationAddress(family)]);
            let key = Type::Of(slot_of_range(family, slot()));
            Set::map(name, key, Data::Values(data))
        }
        SetId::RefusedRanges => ranges(of(Called::Address)),
        SetId::RangeSources => ranges([of(Called::Address), vec![address]].concat()),
        SetId::NodePortAddresses | SetId::ServiceCidrs => ranges(vec![address]),
        SetId::ClusterIps | SetId::NodeAddresses => keys(vec![address]),
        SetId::Hairpin => keys(vec![address, address]),
    };
    Set {
        comment: Some(Comment::new(comment)),
        ..set
    }
}

pub(super) fn address(family: Family) -> DataType {
    match family {
        Family::V4 => DataType::Ipv4,
        Family::V6 => DataType::Ipv6,
    }
}
