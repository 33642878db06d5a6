//! Which clients may stay on the endpoint that they were sent to.

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

/// Pairs of a frontend and an endpoint, as [`SetId::Affinity`] has them, by the kind of caller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Those for pods of this node, and for the node itself.
    of_cluster: Pairs,
    /// Those for other callers: with an external policy of Local they are sent to endpoints
    /// of this node alone.
    of_outside: Pairs,
    /// Those for anyone. Among routes that are gone: those that neither pods nor others may use any
    /// more.
    of_anyone: Pairs,
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
    /// Adds the routes of a ServicePort's elements.
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
            self.of_anyone.insert(*set, &pair);
            if !differ || is_local {
                self.of_outside.insert(*set, &pair);
            }
            // Endpoints of this node that serve others may not be used for its pods: while all of
            // them terminate, and one elsewhere is ready.
            if !differ || !is_local {
                self.of_cluster.insert(*set, &pair);
            }
        }
    }

    /// Adds the routes of `other`.
    pub fn extend(&mut self, other: Routes) {
        self.of_cluster.extend(other.of_cluster);
        self.of_outside.extend(other.of_outside);
        self.of_anyone.extend(other.of_anyone);
    }

    /// Removes the routes of `other`.
    pub fn remove(&mut self, other: &Routes) {
        self.of_cluster.remove(&other.of_cluster);
        self.of_outside.remove(&other.of_outside);
        self.of_anyone.remove(&other.of_anyone);
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.of_cluster.len() + self.of_outside.len() == 0
    }

    /// Returns how many there are for pods of this node, and for others.
    #[cfg(test)]
    pub fn len(&self) -> [usize; 2] {
        [self.of_cluster.len(), self.of_outside.len()]
    }

    /// Returns true if a client with this element of [`SetId::Affinity`] may go on with one of
    /// these routes; `node` are addresses of the node. A client counts as one from outside unless
    /// its address says that it is a pod of this node, or the node.
    pub fn may_stay(&self, element: &Element, options: &Options, node: &[IpAddr]) -> bool {
        let Some(route) = Route::of(element, options.family) else {
            return false;
        };
        let is_node = route.client.is_some_and(|ip| node.contains(&ip));
        if is_node || route.is_of_pod(options) {
            route.is_in(&self.of_cluster)
        } else {
            route.is_in(&self.of_outside)
        }
    }

    /// Returns true if a client with this element of [`SetId::Affinity`] must not go on when these
    /// routes are gone. A client that is not known to be a pod may be one all the same (which
    /// interface it calls through the element does not say), or the node itself.
    pub fn are_of(&self, element: &Element, options: &Options) -> bool {
        let Some(route) = Route::of(element, options.family) else {
            return false;
        };
        if route.is_of_pod(options) {
            route.is_in(&self.of_cluster)
        } else {
            route.is_in(&self.of_outside) || route.is_in(&self.of_anyone)
        }
    }
}

/// What an element of [`SetId::Affinity`] says.
struct Route {
    client: Option<IpAddr>,
    /// The pairs that it may be, as keys.
    service: Vec<u8>,
    node_port: Vec<u8>,
}

impl Route {
    fn of(element: &Element, family: Family) -> Option<Route> {
        let Some(Datum::Value(endpoint)) = &element.data else {
            return None;
        };
        // The client comes first, then the service address.
        let address = usize::from(family.bits() / 8);
        let client = element.key.get(..address)?;
        let pair = |from: usize| Some([element.key.get(from..)?, endpoint].concat());
        Some(Route {
            client: match family {
                Family::V4 => <[u8; 4]>::try_from(client).ok().map(IpAddr::from),
                Family::V6 => <[u8; 16]>::try_from(client).ok().map(IpAddr::from),
            },
            service: pair(address)?,
            node_port: pair(2 * address)?,
        })
    }

    fn is_of_pod(&self, options: &Options) -> bool {
        match &options.detect_local {
            DetectLocal::Within(network) => self.client.is_some_and(|ip| network.contains(&ip)),
            DetectLocal::Unknown | DetectLocal::Through(_) => false,
        }
    }

    fn is_in(&self, pairs: &Pairs) -> bool {
        pairs.services.contains(&*self.service) || pairs.node_ports.contains(&*self.node_port)
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
