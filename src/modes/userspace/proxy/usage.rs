//! Numbers of connections and UDP clients of each Service, and of each of its clients, and their
//! limits.
//!
//! A client is an IPv4 address, or an IPv6 network, all addresses of which may belong to one host;
//! this node and its pods, which share a network, are counted by address. There is an entry for
//! each client that has something open, so there are never more entries than file descriptors.

use std::{
    collections::HashMap,
    net::IpAddr,
    num::NonZeroU32,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
};

use net::{Protocol, address};
use parking_lot::Mutex;
use prometheus::IntGauge;

use super::cluster_local::ClusterLocal;
use crate::{
    log_once::LoggedFlag,
    sched::Flow,
    services::{Preferences, ServiceName},
};

/// A Service may have this many times the free units.
const OF_FREE: usize = 3;

/// A client may have this many times the units that are left to its Service.
const TIMES: usize = 4;

/// In any case, a client may have the total divided by this.
const SMALL: usize = 64;

/// A client may have at least this many, however few there are.
const LEAST: usize = 8;

/// File descriptors of a TCP connection: the client's and the endpoint's socket.
pub const PER_CONNECTION: u32 = 2;

/// Limits of a Service and of each of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections and UDP clients of a Service; `None` if only limited by the room.
    pub service: Option<NonZeroU32>,
    /// Connections and UDP flows of one client of a Service; `None` if only limited by the room.
    pub client: Option<NonZeroU32>,
    /// Whether a client leaves some room to others.
    pub leaves_room: bool,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits {
            service: None,
            client: None,
            leaves_room: true,
        }
    }
}

impl ConnectionLimits {
    /// Neither a Service nor a client has a limit.
    pub const UNLIMITED: ConnectionLimits = ConnectionLimits {
        service: None,
        client: None,
        leaves_room: false,
    };

    /// Parses `--userspace-max-connections-per-client`. Services get no limit.
    ///
    /// # Errors
    /// The allowed values.
    pub fn per_client(word: &str) -> Result<ConnectionLimits, &'static str> {
        let limits = ConnectionLimits::default();
        match (word, word.parse()) {
            ("auto", _) => Ok(limits),
            ("none", _) => Ok(ConnectionLimits::UNLIMITED),
            (_, Ok(most)) => Ok(ConnectionLimits {
                client: Some(most),
                ..limits
            }),
            _ => Err("it must be auto, none or a whole number greater than 0"),
        }
    }

    /// These limits, overridden by those that a Service requests.
    pub fn of_service(self, asked: &Preferences) -> ConnectionLimits {
        ConnectionLimits {
            service: asked.max_connections.or(self.service),
            client: asked.max_connections_per_client.or(self.client),
            ..self
        }
    }
}

/// Size of a resource that clients share, such as open files.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Number of free units.
    pub free: usize,
    /// Total number of units, free or not.
    pub total: usize,
}

impl Room {
    /// Returns whether a quarter of the total stays free if `wanted` more units are taken.
    pub fn is_ample_for(&self, wanted: usize) -> bool {
        self.free >= wanted.saturating_add(self.total / 4)
    }

    /// Returns whether a Service that has `has` units should leave the rest to other Services: it
    /// has more than [`OF_FREE`] times the free ones.
    ///
    /// A single Service gets three quarters of all units. Several that want more than there is each
    /// get the same number, and a third of each one's units stays free (the dynamic thresholds of
    /// Choudhury and Hahne for shared buffers, IEEE/ACM Transactions on Networking 6.2, 1998).
    pub fn is_for_others(self, has: usize) -> bool {
        has > OF_FREE * self.free
    }

    /// Returns whether a client that has `has` units should leave the rest to other clients of its
    /// Service, which has `of_service` units.
    ///
    /// A client may have [`TIMES`] times the units that the Service still gets: three fifths of all
    /// if no other client wants many, and several clients each get the same number.
    pub fn is_for_other_clients(self, has: usize, of_service: usize) -> bool {
        let left = (OF_FREE * self.free).saturating_sub(of_service) / (OF_FREE + 1);
        has >= (TIMES * left).max(self.total / SMALL).max(LEAST)
    }
}

/// Connections and flows of a client of one Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    connections: u32,
    udp: u32,
}

impl Has {
    /// Number of connections and UDP flows.
    pub fn all(self) -> u32 {
        self.connections + self.udp
    }

    /// Number of UDP flows.
    pub fn udp(self) -> usize {
        self.udp as usize
    }

    /// Number of file descriptors.
    pub fn descriptors(self) -> usize {
        (self.connections * PER_CONNECTION + self.udp) as usize
    }

    fn of(&mut self, protocol: Protocol) -> &mut u32 {
        match protocol {
            Protocol::Udp => &mut self.udp,
            Protocol::Tcp | Protocol::Sctp => &mut self.connections,
        }
    }
}

/// Open connections and flows of one Service, of all its ports and addresses.
#[derive(Debug)]
pub struct Usage {
    all: AtomicUsize,
    clients: Mutex<Clients>,
    /// The gauge that counts the clients of all Services.
    shown: IntGauge,
    /// Whether the Service was at its limit the last time that a connection was to be accepted.
    pub waits: AtomicBool,
    /// How often the Service was at its limit.
    pub service_limited: AtomicU64,
    /// How often a client was at its limit.
    pub client_limited: AtomicU64,
    /// Whether it was logged that the Service is at its limit.
    pub full_logged: LoggedFlag,
    /// Whether it was logged that a client of it is at its limit.
    pub client_logged: LoggedFlag,
}

/// Uses the hasher of the standard library, which has random keys, so that clients cannot choose
/// addresses with equal hashes.
#[derive(Debug, Default)]
struct Clients {
    has: HashMap<IpAddr, Has>,
    together: Has,
}

impl Usage {
    /// Takes one of the `most` places of the Service, if one is free.
    pub fn take(&self, most: Option<NonZeroU32>) -> bool {
        let most = most.map_or(usize::MAX, |most| most.get() as usize);
        let more = |all| (all < most).then_some(all + 1);
        self.all.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives a place that was taken to `client` if it `may` have another one, given its own usage
    /// and that of all clients of the Service.
    pub fn add(
        &self,
        client: IpAddr,
        protocol: Protocol,
        may: impl FnOnce(Has, Has) -> bool,
    ) -> bool {
        let mut clients = self.clients.lock();
        let has = clients.has.get(&client).copied().unwrap_or_default();
        if !may(has, clients.together) {
            return false;
        }
        *clients.together.of(protocol) += 1;
        *clients.has.entry(client).or_default().of(protocol) += 1;
        if has == Has::default() {
            self.shown.inc();
        }
        true
    }

    /// Gives back a place, and that of `client` if it has got it.
    pub fn give_back(&self, client: Option<IpAddr>, protocol: Protocol) {
        self.all.fetch_sub(1, Relaxed);
        let Some(client) = client else {
            return;
        };
        let mut clients = self.clients.lock();
        *clients.together.of(protocol) -= 1;
        let Some(has) = clients.has.get_mut(&client) else {
            return;
        };
        *has.of(protocol) -= 1;
        if *has == Has::default() {
            clients.has.remove(&client);
            self.shown.dec();
        }
    }

    /// Number of connections and UDP clients of the Service.
    pub fn all(&self) -> usize {
        self.all.load(Relaxed)
    }
}

/// The usage of each Service.
#[derive(Debug)]
pub struct Usages {
    services: Mutex<HashMap<ServiceName, Weak<Usage>>>,
    shown: IntGauge,
}

impl Usages {
    /// Counts clients in `shown`.
    pub fn new(shown: IntGauge) -> Usages {
        Usages {
            services: Mutex::default(),
            shown,
        }
    }

    /// The usage of `service`: the same value for all callers while one of them keeps it.
    pub fn of(&self, service: &ServiceName) -> Arc<Usage> {
        let mut services = self.services.lock();
        if let Some(usage) = services.get(service).and_then(Weak::upgrade) {
            return usage;
        }
        if services.len() == services.capacity() {
            services.retain(|_, usage| usage.strong_count() > 0);
        }
        let usage = Arc::new(Usage {
            all: AtomicUsize::new(0),
            clients: Mutex::default(),
            shown: self.shown.clone(),
            waits: AtomicBool::default(),
            service_limited: AtomicU64::default(),
            client_limited: AtomicU64::default(),
            full_logged: LoggedFlag::default(),
            client_logged: LoggedFlag::default(),
        });
        services.insert(service.clone(), Arc::downgrade(&usage));
        usage
    }
}

/// The address under which the client of `flow` is counted.
pub fn client(flow: &Flow, known: &ClusterLocal) -> IpAddr {
    let ip = flow.client.ip().to_canonical();
    if known.is_node(flow) || known.has_pod(&ip) {
        return ip;
    }
    address::client(ip)
}

#[cfg(test)]
mod tests;
