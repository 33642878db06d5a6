//! Where clients stay that were sent somewhere.

use std::net::IpAddr;

use hashbrown::HashSet;

use crate::{
    kernel::nftables::{Datum, Element},
    modes::{
        detect_local::DetectLocal,
        nftables::plan::{LOCAL, Options, ServiceElements, SetId},
    },
    net::Family,
};

/// Pairs of a frontend and an endpoint, as [`SetId::Affinity`] has them, by who calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Of pods of this node, and of the node itself.
    of_cluster: Pairs,
    /// Of others: with an external policy of Local these are sent to endpoints of this node
    /// alone.
    of_outside: Pairs,
}

/// Pairs of a frontend and an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Pairs {
    /// Key of a service address, and the endpoint.
    services: HashSet<Box<[u8]>>,
    /// Key of a node port, and the endpoint.
    node_ports: HashSet<Box<[u8]>>,
}

impl Routes {
    /// Adds those of a ServicePort's elements.
    pub fn add(&mut self, elements: &ServiceElements) {
        let of = |sets: [SetId; 2]| {
            let own = elements.own.iter();
            own.filter(move |(set, _)| sets.contains(set))
        };
        let by_caller = of([SetId::FromOutside, SetId::NodePortsFromOutside]);
        let by_caller: HashSet<&[u8]> = by_caller.map(|(_, element)| &*element.key).collect();
        for (set, element) in of([SetId::Endpoints, SetId::NodePortEndpoints]) {
            let Some(Datum::Value(endpoint)) = &element.data else {
                continue;
            };
            // The slot is the last value of the key.
            let Some((frontend, slot)) = element.key.split_last_chunk() else {
                continue;
            };
            let pair = [frontend, endpoint].concat();
            let differ = by_caller.contains(frontend);
            let is_local = u32::from_ne_bytes(*slot) >= LOCAL;
            if !differ || is_local {
                self.of_outside.insert(*set, &pair);
            }
            // Endpoints of this node that serve others may be out of use for its pods: while all
            // of them terminate, and one elsewhere is ready.
            if !differ || !is_local {
                self.of_cluster.insert(*set, &pair);
            }
        }
    }

    /// Adds those of `other`.
    pub fn extend(&mut self, other: Routes) {
        self.of_cluster.extend(other.of_cluster);
        self.of_outside.extend(other.of_outside);
    }

    /// Takes those of `other` away.
    pub fn remove(&mut self, other: &Routes) {
        self.of_cluster.remove(&other.of_cluster);
        self.of_outside.remove(&other.of_outside);
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.of_cluster.len() + self.of_outside.len() == 0
    }

    /// Returns how many there are of pods of this node, and of others.
    #[cfg(test)]
    pub fn len(&self) -> [usize; 2] {
        [self.of_cluster.len(), self.of_outside.len()]
    }

    /// Returns true if an element of [`SetId::Affinity`] is one of them. A client counts as
    /// one from outside unless its address says that it is a pod of this node.
    pub fn contain(&self, element: &Element, options: &Options) -> bool {
        let Some(Datum::Value(endpoint)) = &element.data else {
            return false;
        };
        // The client comes first, then the service address.
        let address = usize::from(options.family.bits() / 8);
        let client = element.key.get(..address).unwrap_or_default();
        let pairs = if is_pod(client, options) {
            &self.of_cluster
        } else {
            &self.of_outside
        };
        let is_in = |pairs: &HashSet<Box<[u8]>>, from: usize| {
            let frontend = element.key.get(from..).unwrap_or_default();
            pairs.contains(&*[frontend, endpoint].concat())
        };
        is_in(&pairs.services, address) || is_in(&pairs.node_ports, 2 * address)
    }
}

fn is_pod(client: &[u8], options: &Options) -> bool {
    let ip: Option<IpAddr> = match options.family {
        Family::V4 => <[u8; 4]>::try_from(client).ok().map(IpAddr::from),
        Family::V6 => <[u8; 16]>::try_from(client).ok().map(IpAddr::from),
    };
    match &options.detect_local {
        DetectLocal::Within(network) => ip.is_some_and(|ip| network.contains(&ip)),
        DetectLocal::Unknown | DetectLocal::Through(_) => false,
    }
}

impl Pairs {
    fn insert(&mut self, set: SetId, pair: &[u8]) {
        match set {
            SetId::Endpoints => drop(self.services.insert(pair.into())),
            SetId::NodePortEndpoints => drop(self.node_ports.insert(pair.into())),
            _ => {}
        }
    }

    fn extend(&mut self, other: Pairs) {
        self.services.extend(other.services);
        self.node_ports.extend(other.node_ports);
    }

    fn remove(&mut self, other: &Pairs) {
        self.services.retain(|pair| !other.services.contains(pair));
        self.node_ports
            .retain(|pair| !other.node_ports.contains(pair));
    }

    fn len(&self) -> usize {
        self.services.len() + self.node_ports.len()
    }
}
