//! The endpoints behind a service group, as the data path sees them: a scheduler, and load counts
//! that outlive changes of the set.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use hashbrown::{HashMap, HashSet};

use super::{super::plan::Target, failing::Failing};
use crate::sched::{self, Candidates, Flow, Load, RealServer, Scheduler, SchedulerName, Seed};

impl RealServer {
    /// Records that the endpoint accepted a connection.
    pub fn connected(&self) {
        self.load.traffic().connections.fetch_add(1, Relaxed);
    }

    /// Counts bytes from and to the client.
    pub fn count_bytes(&self, from_client: usize, to_client: usize) {
        let traffic = self.load.traffic();
        let counts = [
            (&traffic.from_clients, from_client),
            (&traffic.to_clients, to_client),
        ];
        for (count, bytes) in counts {
            // All workers write the same counts, and most calls add nothing.
            if bytes > 0 {
                count.fetch_add(bytes as u64, Relaxed);
            }
        }
    }
}

/// The endpoints that were tried for one flow.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    endpoints: HashSet<SocketAddr>,
    /// Whether all others are ejected: then they are picked as if they were not. Saves searching
    /// them at each pick, as there may be thousands.
    ignore_failing: bool,
}

impl Tried {
    /// Records that `endpoint` was tried.
    pub fn add(&mut self, endpoint: SocketAddr) {
        self.endpoints.insert(endpoint);
    }

    /// Returns whether `endpoint` was tried.
    pub fn has(&self, endpoint: &SocketAddr) -> bool {
        !self.endpoints.is_empty() && self.endpoints.contains(endpoint)
    }

    /// Returns whether no endpoint was tried.
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// Allows all endpoints to be tried again.
    pub fn clear(&mut self) {
        self.endpoints.clear();
    }
}

pub type Loads = HashMap<SocketAddr, Arc<Load>>;

/// The real server of `target`, with its load from `loads`, to which a new one is added if needed:
/// an endpoint has one load, whichever clients reach it.
pub fn real_server(target: &Target, loads: &mut Loads) -> RealServer {
    RealServer {
        address: target.address,
        weight: target.weight,
        load: Arc::clone(loads.entry(target.address).or_default()),
    }
}

/// One immutable set of endpoints with its scheduler.
#[derive(Debug)]
pub struct Backends {
    servers: Box<[RealServer]>,
    scheduler: Box<dyn Scheduler>,
    name: SchedulerName,
}

impl Backends {
    /// The set of `targets`. Its scheduler continues from `previous`, or starts from `seed`; known
    /// `loads` are kept, and new ones added.
    pub fn new(
        name: SchedulerName,
        seed: Seed,
        targets: &[Target],
        previous: Option<&Backends>,
        loads: &mut Loads,
    ) -> Self {
        let servers = targets.iter();
        let servers: Box<[_]> = servers.map(|t| real_server(t, loads)).collect();
        let predecessor = previous.filter(|p| p.name == name);
        let predecessor = predecessor.map(|p| (&*p.scheduler, &*p.servers));
        Backends {
            scheduler: sched::build(name, &servers, predecessor, seed),
            servers,
            name,
        }
    }

    /// Returns whether [`Backends::new`] would return the same set for these arguments.
    pub fn is_of(&self, name: SchedulerName, targets: &[Target]) -> bool {
        let servers = self.servers.iter().map(|s| (s.address, s.weight));
        self.name == name && servers.eq(targets.iter().map(|t| (t.address, t.weight)))
    }

    pub fn servers(&self) -> &[RealServer] {
        &self.servers
    }

    /// The endpoint at `address`, if it may take a connection.
    pub fn usable(&self, address: SocketAddr) -> Option<RealServer> {
        let i = self.servers.iter().position(|s| s.address == address)?;
        (self.servers[i].weight > 0).then(|| self.servers[i].clone())
    }

    /// Picks an endpoint for a new flow: none of `tried`, and if possible one that is not ejected
    /// as `failing`.
    pub fn pick(&self, flow: &Flow, tried: &mut Tried, failing: &Failing) -> Option<RealServer> {
        let address = |i: usize| &self.servers[i].address;
        let ejected = failing.ejected().filter(|_| !tried.ignore_failing);
        if let Some(mut ejected) = ejected {
            let skip = |i| ejected.has(address(i)) || tried.has(address(i));
            match self
                .scheduler
                .pick(Candidates::new(&self.servers, &skip), flow)
            {
                Some(i) => {
                    ejected.picked(*address(i));
                    return Some(self.servers[i].clone());
                }
                None => tried.ignore_failing = true,
            }
        }
        let skip = |i| tried.has(address(i));
        let picked = self
            .scheduler
            .pick(Candidates::new(&self.servers, &skip), flow);
        picked.map(|i| self.servers[i].clone())
    }
}
