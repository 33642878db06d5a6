//! Which endpoints are watched, and for which Services.

use std::net::SocketAddr;

use hashbrown::{HashMap, HashSet};

use crate::{
    net::Family,
    services::{Changes, ServiceMap, ServiceName, ServicePort, ServicePortName},
};

/// The endpoints of the ServicePorts that request ejection.
#[derive(Debug, Default)]
pub struct Watched {
    ports: HashMap<ServicePortName, Box<[SocketAddr]>>,
    /// The ServicePorts that have each of them.
    endpoints: HashMap<SocketAddr, HashSet<ServicePortName>>,
}

impl Watched {
    /// Follows what `changes` say of `family`. Returns true if other endpoints are
    /// watched now.
    pub fn update(&mut self, family: Family, map: &ServiceMap, changes: &Changes) -> bool {
        let mut changed = false;
        if changes.full {
            let known: Vec<_> = self.ports.keys().cloned().collect();
            let gone = known.into_iter().filter(|name| map.get(name).is_none());
            for name in gone {
                changed |= self.set(&name, None);
            }
            for port in map.of_family(family) {
                changed |= self.set(&port.name, Some(port));
            }
        } else {
            for name in changes.ports.iter().filter(|name| name.family == family) {
                changed |= self.set(name, map.get(name).map(|port| &**port));
            }
        }
        changed
    }

    fn set(&mut self, name: &ServicePortName, port: Option<&ServicePort>) -> bool {
        let port = port.filter(|port| port.is_ejecting());
        let all = port.into_iter().flat_map(|port| port.endpoints.all.iter());
        let new: Box<[SocketAddr]> = all.map(|endpoint| endpoint.address).collect();
        let old = self.ports.get(name);
        if old.map_or(&[][..], |old| old) == &*new {
            return false;
        }
        for endpoint in self.ports.remove(name).unwrap_or_default() {
            if let Some(names) = self.endpoints.get_mut(&endpoint) {
                names.remove(name);
                if names.is_empty() {
                    self.endpoints.remove(&endpoint);
                }
            }
        }
        for endpoint in &new {
            let names = self.endpoints.entry(*endpoint).or_default();
            names.insert(name.clone());
        }
        if !new.is_empty() {
            self.ports.insert(name.clone(), new);
        }
        true
    }

    /// Returns whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Returns whether `endpoint` is watched.
    pub fn has(&self, endpoint: &SocketAddr) -> bool {
        self.endpoints.contains_key(endpoint)
    }

    /// Returns the Services that request ejection.
    pub fn all_services(&self) -> HashSet<&ServiceName> {
        self.ports.keys().map(|name| &name.service).collect()
    }

    /// Returns the Services that have `endpoint`.
    pub fn services(&self, endpoint: &SocketAddr) -> HashSet<&ServiceName> {
        let names = self.endpoints.get(endpoint).into_iter().flatten();
        names.map(|name| &name.service).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::{
        Preferences,
        service_ports::{endpoint, endpoints, port_name, service_port},
    };

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    fn port(name: &str, addresses: &[&str], eject: bool) -> ServicePort {
        let mut port = service_port(name, [10, 96, 0, 1]);
        port.endpoints = endpoints(addresses.iter().map(|address| endpoint(at(address))));
        let preferences = Preferences {
            eject: Some(eject),
            ..Preferences::NONE
        };
        port.preferences = Some(preferences.into());
        port
    }

    #[test]
    fn endpoints_are_watched_as_long_as_a_service_asks_for_it() {
        let mut watched = Watched::default();
        let mut sync = |ports: Vec<ServicePort>, named: Option<&str>| {
            let map: ServiceMap = ports.into_iter().collect();
            let changes = Changes {
                full: named.is_none(),
                ports: named.into_iter().map(port_name).collect(),
                ..Changes::default()
            };
            let changed = watched.update(Family::V4, &map, &changes);
            let has = ["10.1.0.1:80", "10.1.0.2:80"].map(|endpoint| watched.has(&at(endpoint)));
            (changed, has)
        };
        let both = ["10.1.0.1:80", "10.1.0.2:80"];
        let web = || port("web:http", &both, true);
        assert_eq!(sync(vec![web()], None), (true, [true, true]));
        assert_eq!(sync(vec![web()], None), (false, [true, true]));
        let one = port("web:http", &both[..1], true);
        assert_eq!(sync(vec![one], Some("web:http")), (true, [true, false]));
        let other = || port("other:http", &both[..1], true);
        let silent = port("web:http", &both, false);
        assert_eq!(sync(vec![silent, other()], None), (true, [true, false]));
        assert_eq!(sync(vec![], Some("other:http")), (true, [false, false]));
        assert!(watched.is_empty() && watched.ports.is_empty());
    }
}
