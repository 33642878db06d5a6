//! The endpoints that can never answer, and their connections. Pure.

use std::{
    mem,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use hashbrown::{HashMap, HashSet};
use net::Family;
use netlink::conntrack::flows::Flow;

use crate::services::{CalledAt, Changes, ServiceMap, ServicePort, ServicePortName};

/// The ServicePorts that request resets, and their endpoints that went.
#[derive(Debug, Default)]
pub struct Followed {
    ports: HashMap<ServicePortName, Port>,
    /// Their endpoints that went, each with the time.
    gone: HashMap<ServicePortName, HashMap<SocketAddr, Instant>>,
    /// Those that did not request it before.
    new: HashSet<ServicePortName>,
}

/// A ServicePort that requests resets.
#[derive(Debug, PartialEq, Eq)]
struct Port {
    at: CalledAt,
    endpoints: HashSet<SocketAddr>,
    addresses: HashSet<IpAddr>,
    /// Those that get no new connections because they do not answer.
    ejected: HashSet<SocketAddr>,
}

/// Endpoints of a ServicePort that cannot answer any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    at: CalledAt,
    pub endpoints: HashSet<SocketAddr>,
}

/// Endpoints that went.
#[derive(Debug, Default)]
pub struct Taken {
    /// Those that have left all EndpointSlices.
    pub left: HashMap<ServicePortName, Gone>,
    /// Those that are ejected.
    pub ejected: HashMap<ServicePortName, Gone>,
    /// When the first of those went that are not settled.
    pub next: Option<Instant>,
}

impl Followed {
    /// Applies the `changes` of `family`, which were applied `now`. Returns true if endpoints went, or
    /// a ServicePort is new.
    pub fn update(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        now: Instant,
    ) -> bool {
        let known = self.ports.keys();
        let names = changes.concerned(family, map, known, ServicePort::is_resetting);
        let names = names.iter();
        names.fold(false, |any, name| any | self.set(name, map, now))
    }

    fn set(&mut self, name: &ServicePortName, map: &ServiceMap, now: Instant) -> bool {
        let port = map.get(name).filter(|port| port.is_resetting());
        let new = port.map(|port| (Port::of(port), port.knows_endpoints()));
        let Some((new, is_known)) = new else {
            // What its author no longer asks for is not done.
            self.ports.remove(name);
            self.gone.remove(name);
            self.new.remove(name);
            return false;
        };
        if !is_known {
            self.gone.remove(name);
            return false;
        }
        let old = self.ports.insert(name.clone(), new);
        let (Some(old), Some(new)) = (old, self.ports.get(name)) else {
            return self.new.insert(name.clone());
        };
        if let Some(gone) = self.gone.get_mut(name) {
            gone.retain(|at, _| new.has_lost(at));
        }
        let went = old.endpoints.iter();
        let went = went.filter(|at| new.has_lost(at) && !old.has_lost(at));
        let went: Vec<_> = went.map(|at| (*at, now)).collect();
        if went.is_empty() {
            return false;
        }
        self.gone.entry(name.clone()).or_default().extend(went);
        true
    }

    /// Takes the ServicePorts that are new since the last call.
    pub fn take_new(&mut self) -> HashSet<ServicePortName> {
        mem::take(&mut self.new)
    }

    /// Takes the endpoints that went before `settled` and have not come back.
    pub fn take_gone(&mut self, settled: Instant) -> Taken {
        let mut taken = Taken::default();
        self.gone.retain(|name, gone| {
            let Some(port) = self.ports.get(name) else {
                return false;
            };
            for (endpoint, _) in gone.extract_if(|_, went| *went <= settled) {
                let of = match port.ejected.contains(&endpoint) {
                    true => &mut taken.ejected,
                    false => &mut taken.left,
                };
                let of = of.entry(name.clone()).or_insert_with(|| Gone {
                    at: port.at.clone(),
                    ..Gone::default()
                });
                of.endpoints.insert(endpoint);
            }
            let next = taken.next.into_iter();
            taken.next = next.chain(gone.values().copied()).min();
            !gone.is_empty()
        });
        taken
    }
}

impl Port {
    fn of(port: &ServicePort) -> Port {
        let endpoints = &port.endpoints;
        Port {
            at: CalledAt::of(port),
            endpoints: endpoints.all.iter().map(|one| one.address).collect(),
            addresses: endpoints.all.iter().map(|one| one.address.ip()).collect(),
            ejected: endpoints.ejected().collect(),
        }
    }

    /// Returns whether nothing is at the address of `endpoint`, which was one of its endpoints. If
    /// the Service only names another port there, the pod still serves its connections.
    fn has_lost(&self, endpoint: &SocketAddr) -> bool {
        self.ejected.contains(endpoint) || !self.addresses.contains(&endpoint.ip())
    }
}

/// Endpoints that are gone, on a node with these addresses.
#[derive(Debug)]
pub struct Lost<'a> {
    /// For each endpoint, where the connections were made that it does not answer any more.
    endpoints: HashMap<SocketAddr, Vec<&'a CalledAt>>,
    node: HashSet<IpAddr>,
}

impl<'a> Lost<'a> {
    /// Returns the endpoints of all ServicePorts together.
    pub fn new(gone: &'a HashMap<ServicePortName, Gone>, node: HashSet<IpAddr>) -> Lost<'a> {
        let mut endpoints = HashMap::<SocketAddr, Vec<&CalledAt>>::new();
        for gone in gone.values() {
            for endpoint in &gone.endpoints {
                endpoints.entry(*endpoint).or_default().push(&gone.at);
            }
        }
        Lost { endpoints, node }
    }

    /// Returns whether `flow` is an established connection to one of them, through its Service.
    pub fn has(&self, flow: &Flow) -> bool {
        let (called, endpoint) = (flow.original.destination, flow.reply.source);
        let through = |at: &&CalledAt| at.has(called, &self.node);
        let services = self.endpoints.get(&endpoint);
        called != endpoint
            && flow.state.is_established()
            && services.is_some_and(|services| services.iter().any(through))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netlink::conntrack::flows::{State, TCP, Tuple};

    use super::*;
    use crate::services::{
        Preferences,
        service_ports::{endpoint, endpoints, port_name, service_port},
    };

    fn at(address: &str) -> SocketAddr {
        address.parse().unwrap()
    }

    /// The ServicePort `web` at 10.96.0.1:80 and node port 30080.
    fn web(addresses: &[&str], resets: bool) -> ServicePort {
        let preferences = Preferences {
            reset: resets,
            ..Preferences::default()
        };
        ServicePort {
            node_port: Some(30_080),
            endpoints: endpoints(addresses.iter().map(|address| endpoint(at(address)))),
            preferences: Some(preferences.into()),
            ..service_port("web", [10, 96, 0, 1])
        }
    }

    fn flow(called: &str, endpoint: &str, of_protocol: u8) -> Flow {
        let client = at("192.0.2.1:40000");
        let tuple = |source, destination| Tuple {
            source,
            destination,
        };
        Flow {
            protocol: TCP,
            original: tuple(client, at(called)),
            reply: tuple(at(endpoint), client),
            state: State {
                // IPS_SEEN_REPLY
                status: 1 << 1,
                of_protocol: Some(of_protocol),
            },
            tuple: Vec::new(),
            id: None,
            zone: None,
        }
    }

    #[test]
    fn endpoints_that_left_and_stayed_away_are_gone() {
        let all = ["10.1.0.1:80", "10.1.0.2:80"];
        for (case, steps, gone) in [
            ("it leaves", vec![web(&all[1..], true)], true),
            ("it stays", vec![web(&all, true)], false),
            ("another leaves", vec![web(&all[..1], true)], false),
            ("its port changes", vec![web(&["10.1.0.1:81"], true)], false),
            (
                "it comes back",
                vec![web(&[], true), web(&all, true)],
                false,
            ),
            ("not asked for", vec![web(&all[1..], false)], false),
            (
                "no longer asked for",
                vec![web(&all[1..], true), web(&all[1..], false)],
                false,
            ),
        ] {
            let mut followed = Followed::default();
            let now = Instant::now();
            for port in [web(&all, true)].into_iter().chain(steps) {
                let changes = Changes {
                    ports: [port.name.clone()].into(),
                    ..Changes::default()
                };
                followed.update(Family::V4, &[port].into_iter().collect(), &changes, now);
            }
            let earlier = now - Duration::from_secs(1);
            assert_eq!(followed.take_gone(earlier).left, HashMap::new(), "{case}");
            let Taken { left, next, .. } = followed.take_gone(now);
            let endpoints = left.get(&port_name("web")).map(|gone| &gone.endpoints);
            let has_first = endpoints.is_some_and(|all| all.contains(&at("10.1.0.1:80")));
            assert_eq!((has_first, next), (gone, None), "{case}");
            assert_eq!(followed.take_gone(now).left, HashMap::new(), "{case}");
        }
    }

    #[test]
    fn connections_through_the_service_alone_are_lost() {
        const ESTABLISHED: u8 = 3;
        const CLOSE_WAIT: u8 = 5;
        let port = web(&[], true);
        let gone = Gone {
            at: Port::of(&port).at,
            endpoints: [at("10.1.0.1:80")].into(),
        };
        let all = [(port.name, gone)].into();
        let lost = Lost::new(&all, [IpAddr::from([192, 0, 2, 10])].into());
        for (called, endpoint, state, is_lost) in [
            ("10.96.0.1:80", "10.1.0.1:80", ESTABLISHED, true),
            ("10.96.0.1:80", "10.1.0.1:80", CLOSE_WAIT, false),
            ("10.96.0.1:80", "10.1.0.2:80", ESTABLISHED, false),
            ("10.96.0.2:80", "10.1.0.1:80", ESTABLISHED, false),
            ("192.0.2.10:30080", "10.1.0.1:80", ESTABLISHED, true),
            ("10.96.0.2:30080", "10.1.0.1:80", ESTABLISHED, false),
            ("10.1.0.1:80", "10.1.0.1:80", ESTABLISHED, false),
        ] {
            let flow = flow(called, endpoint, state);
            assert_eq!(lost.has(&flow), is_lost, "{called} {endpoint} {state}");
        }
    }
}
