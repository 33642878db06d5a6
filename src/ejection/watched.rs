//! The endpoints that are watched, and for which Services.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
};

use hashbrown::{HashMap, HashSet};
use net::{Family, Frontend, Protocol};

use super::evidence::Target;
use crate::services::{
    CalledAt, Changes, ExternalAddresses, ServiceMap, ServiceName, ServicePort, ServicePortName,
};

/// The endpoints of the ServicePorts that request ejection.
#[derive(Debug, Default)]
pub struct Watched {
    ports: HashMap<ServicePortName, WatchedPort>,
    /// The ServicePorts of each endpoint.
    endpoints: HashMap<SocketAddr, HashSet<ServicePortName>>,
    /// The addresses at which the kernel also translates packets of this process.
    translated: ExternalAddresses,
    /// Endpoints that get no new connections any more, until they are taken.
    newly_ejected: HashSet<SocketAddr>,
}

/// The endpoints of a ServicePort.
#[derive(Debug, Default, PartialEq, Eq)]
struct WatchedPort {
    all: Box<[SocketAddr]>,
    at: CalledAt,
    /// Those that get no new connections, because they are ejected and others are left.
    ejected: HashSet<SocketAddr>,
}

impl Watched {
    /// Applies the `changes` of `family`. Returns true if the set of watched endpoints changed, or
    /// some get no new connections any more.
    pub fn update(&mut self, family: Family, map: &ServiceMap, changes: &Changes) -> bool {
        self.translated.update(family, map, changes);
        let mut changed = false;
        let known = self.ports.keys();
        for name in changes.concerned(family, map, known, ServicePort::is_ejecting) {
            changed |= self.set(&name, map.get(&name).map(|port| &**port));
        }
        changed
    }

    fn set(&mut self, name: &ServicePortName, port: Option<&ServicePort>) -> bool {
        let port = port.filter(|port| port.is_ejecting());
        let new = port.map(WatchedPort::of).unwrap_or_default();
        let none = WatchedPort::default();
        let old = self.ports.get(name).unwrap_or(&none);
        if *old == new {
            return false;
        }
        self.newly_ejected
            .extend(new.ejected.difference(&old.ejected));
        let old = self.ports.remove(name).unwrap_or_default();
        for endpoint in old.all {
            if let Some(names) = self.endpoints.get_mut(&endpoint) {
                names.remove(name);
                if names.is_empty() {
                    self.endpoints.remove(&endpoint);
                }
            }
        }
        for endpoint in &new.all {
            let names = self.endpoints.entry(*endpoint).or_default();
            names.insert(name.clone());
        }
        if !new.all.is_empty() {
            self.ports.insert(name.clone(), new);
        }
        true
    }

    /// Takes the endpoints that stopped getting new connections since the last call.
    pub fn take_newly_ejected(&mut self) -> HashSet<SocketAddr> {
        mem::take(&mut self.newly_ejected)
    }

    /// Returns whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Returns whether `target` is watched.
    pub fn has(&self, target: &Target) -> bool {
        let names = self.endpoints.get(&target.endpoint);
        names.is_some_and(|names| names.iter().any(|name| name.service == target.service))
    }

    /// Returns the Service through which a client reached `endpoint` at the address `called`, if
    /// that Service requests ejection. Other addresses than the node's `own` are no node port.
    pub fn called(
        &self,
        called: SocketAddr,
        endpoint: &SocketAddr,
        own: &HashSet<IpAddr>,
    ) -> Option<&ServiceName> {
        let mut names = self.endpoints.get(endpoint)?.iter();
        let is_called = |name: &&ServicePortName| {
            let port = self.ports.get(*name);
            port.is_some_and(|port| port.at.has(called, own))
        };
        names.find(is_called).map(|name| &name.service)
    }

    /// Returns whether packets of this process to `endpoint` are translated, so that they do not
    /// show whether it answers.
    pub fn is_translated(&self, endpoint: SocketAddr) -> bool {
        let at = Frontend::service(Protocol::Tcp, endpoint.ip(), endpoint.port());
        self.translated.owner(&at).is_some()
    }

    /// Returns the Services that request ejection.
    pub fn all_services(&self) -> HashSet<&ServiceName> {
        self.ports.keys().map(|name| &name.service).collect()
    }
}

impl WatchedPort {
    fn of(port: &ServicePort) -> WatchedPort {
        let endpoints = &port.endpoints;
        WatchedPort {
            all: endpoints
                .all
                .iter()
                .map(|endpoint| endpoint.address)
                .collect(),
            at: CalledAt::of(port),
            ejected: endpoints.ejected().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::services::{
        AddressKind, Conflict, Preferences,
        service_ports::{endpoint, endpoints, port_name, service_port},
    };

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    fn port(name: &str, addresses: &[&str], eject: bool) -> ServicePort {
        let mut port = service_port(name, [10, 96, 0, 1]);
        port.endpoints = endpoints(addresses.iter().map(|address| endpoint(at(address))));
        let preferences = Preferences {
            eject,
            ..Preferences::default()
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
            let has = ["10.1.0.1:80", "10.1.0.2:80"].map(|endpoint| {
                let called = at("10.96.0.1:80");
                let own = HashSet::new();
                let service = watched.called(called, &at(endpoint), &own).cloned();
                let elsewhere = watched.called(at("10.96.0.2:80"), &at(endpoint), &own);
                assert_eq!(elsewhere, None);
                service.is_some_and(|service| {
                    watched.has(&Target {
                        service,
                        endpoint: at(endpoint),
                    })
                })
            });
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

    #[test]
    fn a_node_port_is_called_at_addresses_of_the_node_that_no_other_service_has() {
        let mut web = port("web:http", &["10.1.0.1:80"], true);
        web.node_port = Some(30080);
        web.conflicts = [Conflict {
            kind: AddressKind::NodePort,
            ip: Some([192, 0, 2, 2].into()),
            protocol: Protocol::Tcp,
            port: 30080,
            last_port: None,
            owner: port_name("other:http"),
            owner_kind: AddressKind::ExternalIp,
        }]
        .into();
        let mut other = service_port("other:http", [10, 96, 0, 2]);
        other.external_ips = [[10, 1, 0, 2].into()].into();
        let map: ServiceMap = [web, other].into_iter().collect();
        let mut watched = Watched::default();
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        watched.update(Family::V4, &map, &full);
        let own = ["192.0.2.1", "192.0.2.2"].map(|ip| ip.parse().unwrap());
        let own = HashSet::from(own);
        for (called, expected) in [
            ("192.0.2.1:30080", true),
            // Another Service has it as its external IP.
            ("192.0.2.2:30080", false),
            // The cluster IP of another Service whose port has the same number.
            ("10.96.0.2:30080", false),
        ] {
            let service = watched.called(at(called), &at("10.1.0.1:80"), &own);
            assert_eq!(service.is_some(), expected, "{called}");
        }
        assert!(watched.is_translated(at("10.1.0.2:80")));
        assert!(!watched.is_translated(at("10.1.0.1:80")));
    }

    #[test]
    fn endpoints_that_get_no_new_connections_any_more_are_reported_once() {
        let mut watched = Watched::default();
        let both = ["10.1.0.1:80", "10.1.0.2:80"];
        let name = || [port_name("web:http")].into();
        let mut sync = |ejected: &[u32]| {
            let mut port = port("web:http", &both, true);
            Arc::make_mut(&mut port.endpoints).ejected = ejected.into();
            let map: ServiceMap = [port].into_iter().collect();
            let changes = Changes {
                ports: name(),
                ..Changes::default()
            };
            let changed = watched.update(Family::V4, &map, &changes);
            let mut newly: Vec<_> = watched.take_newly_ejected().into_iter().collect();
            newly.sort();
            (changed, newly)
        };
        assert_eq!(sync(&[]), (true, vec![]));
        assert_eq!(sync(&[0]), (true, vec![at(both[0])]));
        assert_eq!(sync(&[0]), (false, vec![]));
        assert_eq!(sync(&[0, 1]), (true, vec![at(both[1])]));
        assert_eq!(sync(&[1]), (true, vec![]));
        assert_eq!(sync(&[0, 1]), (true, vec![at(both[0])]));
    }
}
