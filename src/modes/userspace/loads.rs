//! Current loads of endpoints, for status requests.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use super::{
    plan::{GroupKind, GroupName},
    proxy::{captured::Captured, dials::DialLog, group::ServiceGroup},
};
use crate::services::ServicePortName;

/// The existing service groups, shared with the readers of their loads.
#[derive(Clone, Debug)]
pub struct Loads {
    groups: Arc<Mutex<HashMap<GroupName, Weak<ServiceGroup>>>>,
    dials: Arc<DialLog>,
    captured: Arc<Captured>,
}

/// The current load of an endpoint, and its totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointLoad {
    /// Number of open TCP connections, or of UDP clients.
    pub active: u64,
    /// Number of TCP connections, or of UDP clients, since the process began to serve the endpoint.
    pub connections: u64,
    /// Number of bytes that clients sent.
    pub from_clients: u64,
    /// Number of bytes that were sent to clients.
    pub to_clients: u64,
    /// Whether it is ejected: it did not answer, and gets no new connections while others are
    /// available.
    pub ejected: bool,
}

/// Number of connections that the limits of a Service refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limited {
    /// Refused because of the Service's limit.
    pub service: u64,
    /// Refused because of the client's limit.
    pub client: u64,
}

impl Loads {
    /// Loads without any groups yet. `dials` has the attempts to reach endpoints; connections to
    /// addresses that are `captured` come back to this process.
    pub(super) fn new(dials: &Arc<DialLog>, captured: &Arc<Captured>) -> Loads {
        Loads {
            groups: Arc::default(),
            dials: Arc::clone(dials),
            captured: Arc::clone(captured),
        }
    }

    /// Recent attempts to reach endpoints, for those who follow some.
    pub fn dials(&self) -> &DialLog {
        &self.dials
    }

    /// The groups of `port`.
    fn groups_of(&self, port: &ServicePortName) -> Vec<Arc<ServiceGroup>> {
        let groups = self.groups.lock();
        let names = GroupKind::ALL.map(|kind| GroupName::of(port, kind));
        let groups = names.iter().filter_map(|name| groups.get(name)?.upgrade());
        groups.collect()
    }

    /// Number of connections that the limits of the Service of `port` refused, at any of its ports;
    /// `None` if the port is not served.
    pub fn limited(&self, port: &ServicePortName) -> Option<Limited> {
        // All groups of a Service share it.
        let groups = self.groups_of(port);
        groups.first().map(|group| Limited {
            service: group.usage.service_limited.load(Relaxed),
            client: group.usage.client_limited.load(Relaxed),
        })
    }

    /// The load of each endpoint of `port` that clients may reach, and of each removed one that
    /// still has open connections.
    pub fn of(&self, port: &ServicePortName) -> HashMap<SocketAddr, EndpointLoad> {
        let mut loads: HashMap<SocketAddr, EndpointLoad> = HashMap::new();
        for group in self.groups_of(port) {
            for (address, counted) in group.routing().loads() {
                let (active, half_closed) = (&counted.active, &counted.inactive);
                let load = loads.entry(address).or_default();
                load.active +=
                    u64::from(active.load(Relaxed)) + u64::from(half_closed.load(Relaxed));
                if let Some(traffic) = counted.traffic_so_far() {
                    load.connections += traffic.connections.load(Relaxed);
                    load.from_clients += traffic.from_clients.load(Relaxed);
                    load.to_clients += traffic.to_clients.load(Relaxed);
                }
                load.ejected |= group.passes_over(&address);
            }
        }
        loads
    }

    /// The endpoints of `port` that get no new connections while others are available, because they
    /// did not answer recently.
    pub fn ejected(&self, port: &ServicePortName) -> HashSet<SocketAddr> {
        let groups = self.groups_of(port).into_iter();
        groups.flat_map(|group| group.passed_over()).collect()
    }

    /// The ServicePort for which connections of `port` to `endpoint` come back to this process;
    /// `None` if they do not.
    pub fn comes_back(
        &self,
        port: &ServicePortName,
        endpoint: SocketAddr,
    ) -> Option<ServicePortName> {
        let to = self
            .captured
            .mark_to(&port.to_string(), port.protocol, endpoint);
        to.err()
    }

    pub(super) fn add(&self, name: &GroupName, group: &Arc<ServiceGroup>) {
        let mut groups = self.groups.lock();
        groups.insert(name.clone(), Arc::downgrade(group));
    }

    pub(super) fn remove(&self, name: &GroupName) {
        self.groups.lock().remove(name);
    }
}
