//! Current loads of endpoints, for status requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hashbrown::{HashMap, HashSet};
use parking_lot::Mutex;

use super::{
    plan::{GroupKind, GroupName},
    proxy::{captured::Captured, dials::DialLog, group::ServiceGroup},
};
use crate::{
    sched,
    services::ServicePortName,
    status_api::{Limited, Traffic},
};

/// The existing service groups, shared with the readers of their loads.
#[derive(Clone, Debug)]
pub struct Loads {
    groups: Arc<Mutex<HashMap<GroupName, Weak<ServiceGroup>>>>,
    dials: Arc<DialLog>,
    captured: Arc<Captured>,
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
    /// still has open connections, in each group.
    pub fn of(&self, port: &ServicePortName) -> Vec<(SocketAddr, Traffic)> {
        let groups = self.groups_of(port).into_iter();
        let loads = groups.flat_map(|group| group.routing().loads());
        let loads = loads.map(|(address, load)| {
            let so_far = load.traffic_so_far();
            let sum = |of: fn(&sched::Traffic) -> &AtomicU64| {
                Some(so_far.map_or(0, |traffic| of(traffic).load(Relaxed)))
            };
            let (active, half_closed) = (load.active.load(Relaxed), load.inactive.load(Relaxed));
            let traffic = Traffic {
                active: Some(u64::from(active) + u64::from(half_closed)),
                connections: sum(|traffic| &traffic.connections),
                bytes_in: sum(|traffic| &traffic.from_clients),
                bytes_out: sum(|traffic| &traffic.to_clients),
            };
            (address, traffic)
        });
        loads.collect()
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
