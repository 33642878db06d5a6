//! Which clients may stay on the endpoint that they were sent to.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use nftables::{Datum, Element};

use crate::modes::nftables::plan::ClientMap;

/// Endpoints by the map of the clients that are sent to them; endpoints as the data of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(BTreeMap<ClientMap, HashSet<Box<[u8]>>>);

impl Routes {
    /// Adds `endpoints` of a map.
    pub fn add(&mut self, map: &ClientMap, endpoints: impl IntoIterator<Item = Box<[u8]>>) {
        self.0.entry(map.clone()).or_default().extend(endpoints);
    }

    /// Adds the routes of `other`.
    pub fn extend(&mut self, other: Routes) {
        for (map, endpoints) in other.0 {
            self.add(&map, endpoints);
        }
    }

    /// Removes the routes of `other`.
    pub fn remove(&mut self, other: &Routes) {
        self.0.retain(|map, endpoints| {
            let others = other.0.get(map);
            endpoints.retain(|one| others.is_none_or(|others| !others.contains(one)));
            !endpoints.is_empty()
        });
    }

    /// Removes all routes of a map.
    pub fn remove_map(&mut self, map: &ClientMap) {
        self.0.remove(map);
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The maps of the clients that have these routes.
    pub fn maps(&self) -> impl Iterator<Item = &ClientMap> {
        self.0.keys()
    }

    /// Returns true if this element of `map` says that a client has one of these routes.
    pub fn contain(&self, map: &ClientMap, client: &Element) -> bool {
        let Some(Datum::Value(endpoint)) = &client.data else {
            return false;
        };
        self.0.get(map).is_some_and(|of| of.contains(endpoint))
    }

    /// Returns how many endpoints there are, of all maps together.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.values().map(HashSet::len).sum()
    }
}
