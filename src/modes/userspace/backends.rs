//! The endpoints behind a portal, as the data path sees them: a scheduler,
//! load counts that outlive a change of the set, and which endpoints did not
//! answer lately.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{sync::Notify, time::Instant};

use crate::sched::{self, Flow, Load, RealServer, Scheduler, SchedulerName};

/// How long an endpoint that refused or did not answer is passed over while
/// another one is available. Short, because the endpoint that comes back
/// should get its share at once; long enough that a dead one costs one caller
/// a second instead of every n-th caller a dial timeout.
const PASSED_OVER: Duration = Duration::from_secs(1);

/// What is known of one endpoint, shared by the successive sets it is in.
#[derive(Debug)]
pub struct EndpointState {
    /// Where it listens.
    pub address: SocketAddr,
    load: Arc<Load>,
    /// Milliseconds after `epoch` until which it is passed over.
    passed_over_until: AtomicU64,
    epoch: Instant,
    removed: AtomicBool,
    removal: Notify,
}

impl EndpointState {
    fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(EndpointState {
            address,
            load: Arc::default(),
            passed_over_until: AtomicU64::new(0),
            epoch: Instant::now(),
            removed: AtomicBool::new(false),
            removal: Notify::new(),
        })
    }

    /// Notes that it refused a connection or did not answer in time.
    pub fn failed(&self) {
        let until = self.epoch.elapsed() + PASSED_OVER;
        self.passed_over_until
            .store(until.as_millis() as u64, Relaxed);
    }

    /// Notes that it answered.
    pub fn answered(&self) {
        if self.passed_over_until.load(Relaxed) != 0 {
            self.passed_over_until.store(0, Relaxed);
        }
    }

    fn passed_over(&self) -> bool {
        match self.passed_over_until.load(Relaxed) {
            0 => false,
            until => (self.epoch.elapsed().as_millis() as u64) < until,
        }
    }

    /// Counts a connection to it until the lease is dropped.
    pub fn lease(self: &Arc<Self>) -> Lease {
        self.load.active.fetch_add(1, Relaxed);
        Lease {
            endpoint: Arc::clone(self),
            half_closed: false,
        }
    }

    /// Completes when the endpoint has left its Service.
    pub async fn removed(&self) {
        let notified = self.removal.notified();
        if !self.removed.load(Relaxed) {
            notified.await;
        }
    }

    /// Tells everything that hangs on it that it has left its Service.
    pub fn remove(&self) {
        self.removed.store(true, Relaxed);
        self.removal.notify_waiters();
    }
}

/// One connection's share in an endpoint's load counts.
#[derive(Debug)]
pub struct Lease {
    endpoint: Arc<EndpointState>,
    half_closed: bool,
}

impl Lease {
    /// The connection's endpoint.
    pub fn endpoint(&self) -> &Arc<EndpointState> {
        &self.endpoint
    }

    /// One direction ended: like ip_vs, which counts connections past
    /// ESTABLISHED as inactive.
    pub fn half_close(&mut self) {
        if !self.half_closed {
            self.half_closed = true;
            self.endpoint.load.inactive.fetch_add(1, Relaxed);
            self.endpoint.load.active.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let load = &self.endpoint.load;
        let count = if self.half_closed {
            &load.inactive
        } else {
            &load.active
        };
        count.fetch_sub(1, Relaxed);
    }
}

/// An endpoint that a plan wants behind a portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Where it listens.
    pub address: SocketAddr,
    /// Its weight; 0 takes no new connections.
    pub weight: u32,
}

/// One immutable set of endpoints with its scheduler.
#[derive(Debug)]
pub struct Backends {
    servers: Box<[RealServer]>,
    states: Box<[Arc<EndpointState>]>,
    scheduler: Box<dyn Scheduler>,
    name: SchedulerName,
}

impl Backends {
    /// The set of `targets`, scheduled on from where `previous` was; what is
    /// `known` of an endpoint is kept.
    pub fn new<'a>(
        name: SchedulerName,
        targets: &[Target],
        previous: Option<&Backends>,
        known: impl Iterator<Item = &'a Arc<EndpointState>>,
    ) -> Self {
        let known: HashMap<SocketAddr, &Arc<EndpointState>> =
            known.map(|s| (s.address, s)).collect();
        let states: Box<[_]> = targets
            .iter()
            .map(|t| match known.get(&t.address) {
                Some(state) => Arc::clone(state),
                None => EndpointState::new(t.address),
            })
            .collect();
        let servers: Box<[_]> = targets
            .iter()
            .zip(&states)
            .map(|(t, s)| RealServer {
                address: t.address,
                weight: t.weight,
                load: Arc::clone(&s.load),
            })
            .collect();
        let heir_of = previous.filter(|p| p.name == name).map(|p| &*p.scheduler);
        Backends {
            scheduler: sched::build(name, &servers, heir_of),
            servers,
            states,
            name,
        }
    }

    /// What is known of each endpoint.
    pub fn endpoints(&self) -> impl Iterator<Item = &Arc<EndpointState>> {
        self.states.iter()
    }

    /// The endpoint at `address` if it may take a connection.
    pub fn usable(&self, address: SocketAddr) -> Option<&Arc<EndpointState>> {
        let i = self.servers.iter().position(|s| s.address == address)?;
        (self.servers[i].weight > 0).then(|| &self.states[i])
    }

    /// The endpoint for a new flow: none of `tried`, and one that did not fail
    /// lately if there is such a one.
    pub fn pick(&self, flow: &Flow, tried: &[SocketAddr]) -> Option<&Arc<EndpointState>> {
        let was_tried = |i: usize| tried.contains(&self.servers[i].address);
        self.scheduler
            .pick(&self.servers, flow, &|i| {
                self.states[i].passed_over() || was_tried(i)
            })
            .or_else(|| self.scheduler.pick(&self.servers, flow, &was_tried))
            .map(|i| &self.states[i])
    }
}
