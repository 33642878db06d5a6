//! Load-balancing schedulers with the names and meanings of IPVS
//! (`ipvsadm(8)`, kernel `net/netfilter/ipvs/ip_vs_*.c`).
//!
//! ```
//! use std::net::SocketAddr;
//! use tripod::sched::{Candidates, Flow, RealServer, SchedulerName, Seed, build};
//!
//! let server = |address: &str, weight| RealServer {
//!     address: address.parse().unwrap(),
//!     weight,
//!     load: Default::default(),
//! };
//! let servers = [server("10.0.0.1:80", 2), server("10.0.0.2:80", 1)];
//! let flow = Flow {
//!     client: SocketAddr::from(([192, 0, 2, 9], 40_000)),
//!     destination: [10, 96, 0, 1].into(),
//! };
//!
//! let name: SchedulerName = "wrr".parse()?;
//! let scheduler = build(name, &servers, None, Seed::default());
//! let pick = |skip: &dyn Fn(usize) -> bool| {
//!     scheduler.pick(Candidates::new(&servers, skip), &flow)
//! };
//! let picks = [(); 3].map(|()| pick(&|_| false));
//! assert_eq!(picks, [Some(0), Some(0), Some(1)]);
//!
//! // The first one refused the connection: try another.
//! assert_eq!(pick(&|i| i == 0), Some(1));
//! # Ok::<(), tripod::sched::SchedulerNameError>(())
//! ```

use std::{
    any::Any,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, AtomicU64},
    },
};

mod buckets;
mod dh;
mod hash;
mod lc;
mod least;
mod mh;
mod name;
mod nq;
mod order;
mod random;
mod rr;
mod sed;
mod seed;
mod sh;
#[cfg(test)]
mod tests;
mod wlc;
mod wrr;

use least::Least;
pub use mh::{maglev_size, maglev_table};
pub use name::{SchedulerName, SchedulerNameError};
pub use seed::Seed;

/// Numbers of open connections of a real server. Shared between successive sets of real servers, so
/// that counts survive a change of the set.
#[derive(Debug, Default)]
pub struct Load {
    /// Established or being established.
    pub active: AtomicU32,
    /// Half-closed: one direction has ended.
    pub inactive: AtomicU32,
    /// Its traffic so far; on any one node, most endpoints of a cluster have none.
    traffic: OnceLock<Box<Traffic>>,
}

impl Load {
    /// Its traffic so far, for adding to it.
    pub fn traffic(&self) -> &Traffic {
        self.traffic.get_or_init(Box::default)
    }

    /// Its traffic so far, if any.
    pub fn traffic_so_far(&self) -> Option<&Traffic> {
        self.traffic.get().map(|traffic| &**traffic)
    }
}

/// Traffic of a real server so far.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Number of connections that it took, or of UDP clients.
    pub connections: AtomicU64,
    /// Bytes sent by clients.
    pub from_clients: AtomicU64,
    /// Bytes sent to clients.
    pub to_clients: AtomicU64,
}

/// One real server of a virtual server.
#[derive(Clone, Debug)]
pub struct RealServer {
    /// Address and port at which it listens.
    pub address: SocketAddr,
    /// Share of the load it takes; 0: no new connections.
    pub weight: u32,
    /// Numbers of its connections.
    pub load: Arc<Load>,
}

/// The properties of a connection that a scheduler may use, apart from the real servers.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// The address that the client called.
    pub destination: IpAddr,
}

/// The real servers among which that of a new connection is picked.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    servers: &'a [RealServer],
    skip: &'a dyn Fn(usize) -> bool,
}

impl<'a> Candidates<'a> {
    /// `servers` is the set that the scheduler was built for, in the same order. `skip(i)` is true
    /// for those that this connection has already tried or that are out of service.
    pub fn new(servers: &'a [RealServer], skip: &'a dyn Fn(usize) -> bool) -> Candidates<'a> {
        Candidates { servers, skip }
    }

    /// Returns whether the server at `i` may get the connection.
    fn usable(self, i: usize) -> bool {
        self.servers.get(i).is_some_and(|server| server.weight > 0) && !(self.skip)(i)
    }

    /// Returns the first usable server from `start` on, once around.
    fn next_usable(self, start: usize) -> Option<usize> {
        round(self.servers, start).find(|&i| self.usable(i))
    }
}

/// Picks the real server of a new connection. [`build`] makes one for one set of real servers; a
/// changed set gets a new scheduler, which may inherit state. Several threads may pick at once.
///
/// `Any` lets [`build`] find out whether it may inherit.
pub trait Scheduler: Any + fmt::Debug + Send + Sync {
    /// Picks a real server for the connection, by its index; `None` if each one is skipped or has
    /// weight 0. Does not allocate.
    fn pick(&self, of: Candidates<'_>, flow: &Flow) -> Option<usize>;
}

/// A scheduler, and the real servers that it was built for.
pub type Previous<'a, S> = (S, &'a [RealServer]);

/// Makes the scheduler called `name` for the set `servers`. `seed` decides with which of them rr
/// and wrr begin, and which one lc, wlc, sed and nq prefer among equals.
///
/// `previous` is the scheduler of the previous set, with that set, if there was one. If it is of
/// the same kind, the new one continues from its state: rr and wrr behind the real server picked
/// last, mh with the table entries of servers whose weight became 0.
pub fn build(
    name: SchedulerName,
    servers: &[RealServer],
    previous: Option<Previous<'_, &(dyn Scheduler + 'static)>>,
    seed: Seed,
) -> Box<dyn Scheduler> {
    let first = seed.position(servers.len());
    match name {
        SchedulerName::Rr => Box::new(rr::RoundRobin::new(servers, of_kind(previous), seed)),
        SchedulerName::Random => Box::new(random::Random::new(servers)),
        SchedulerName::Wrr => Box::new(wrr::WeightedRoundRobin::new(
            servers,
            of_kind(previous),
            seed,
        )),
        SchedulerName::Lc => Box::new(Least::new(lc::cost, first)),
        SchedulerName::Wlc => Box::new(Least::new(wlc::cost, first)),
        SchedulerName::Sed => Box::new(Least::new(sed::cost, first)),
        SchedulerName::Nq => Box::new(nq::NeverQueue::new(first)),
        SchedulerName::Sh => Box::new(sh::SourceHash::new(servers)),
        SchedulerName::Dh => Box::new(dh::DestinationHash::new(servers)),
        SchedulerName::Mh | SchedulerName::MhPort => Box::new(mh::Maglev::new(
            servers,
            of_kind(previous).map(|(mh, _)| mh),
            name == SchedulerName::MhPort,
        )),
    }
}

fn of_kind<'a, S: Scheduler>(
    previous: Option<Previous<'a, &'a (dyn Scheduler + 'static)>>,
) -> Option<Previous<'a, &'a S>> {
    let (scheduler, servers) = previous?;
    let scheduler: &dyn Any = scheduler;
    Some((scheduler.downcast_ref()?, servers))
}

/// The indices of `servers` from `start` on, once around.
fn round(servers: &[RealServer], start: usize) -> impl Iterator<Item = usize> {
    (start..servers.len()).chain(0..start.min(servers.len()))
}

/// Computes the greatest common divisor of the weights that are not 0; 0 if there is none.
pub fn weight_gcd(weights: impl Iterator<Item = u32>) -> u32 {
    weights.fold(0, |mut a, mut b| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    })
}
