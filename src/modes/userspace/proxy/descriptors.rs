//! The budget of file descriptors: work that would exceed the limit waits instead of failing.
//!
//! The data path takes its descriptors from the budget: connections, pipes, UDP clients, listeners,
//! reserved ports. The descriptors of the rest of the process (logs, epoll, netlink, the API
//! server, probes, health-check node ports) are counted and excluded from it.
//!
//! Listeners and reserved ports leave a part to connections: even if there are too many Services to
//! listen for all of them, those with listeners must be served.
//!
//! Clients come and go, and each costs memory of this process and of the kernel: if memory is
//! limited, they also take from a second budget, which depends on the memory limit.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::usage::Room;
use crate::kernel::open_files;

/// Descriptors for short-lived uses between two counts: programs that are started and their pipes,
/// netlink sockets, probes, requests to the API server, and connections that wait for their share
/// of the budget.
const SPARE: usize = 64;

/// Minimum budget of the data path, however low the limit is.
const LEAST: usize = 2;

/// Memory of a client's descriptor in bytes: includes the kernel's memory for the socket, and half
/// of a connection's task, or a UDP client's. About 5,300 were measured.
const COST: u64 = 6 * 1024;

/// Clients' descriptors may take one part in this many of the memory limit.
const MEMORY_SHARE: u64 = 2;

/// One part in this many of all descriptors is for clients only.
const CLIENTS_SHARE: usize = 8;

/// Permits that are returned when this is dropped.
#[derive(Debug)]
pub struct Permits {
    of_all: OwnedSemaphorePermit,
    /// Permits of the budget of clients' memory, or of that of Services.
    of_part: OwnedSemaphorePermit,
}

impl Permits {
    /// Adds permits of the same kind.
    pub fn merge(&mut self, more: Permits) {
        self.of_all.merge(more.of_all);
        self.of_part.merge(more.of_part);
    }
}

/// The budget of the data path: one permit for each descriptor.
#[derive(Clone, Debug)]
pub struct Descriptors(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    permits: Pool,
    /// The part of them that listeners and reserved ports may take.
    services: Pool,
    /// Permits for the descriptors of clients, limited by memory.
    clients: Arc<Semaphore>,
    /// Total number of those; `None` if memory is not limited.
    in_memory: Option<usize>,
    /// Number of addresses with listeners when all Services are served.
    addresses: AtomicUsize,
    /// Maximum number of descriptors of the process.
    limit: usize,
    /// Number of descriptors that were open outside of the budget when no permit was taken.
    outside: AtomicUsize,
}

/// A changeable number of permits.
#[derive(Debug)]
struct Pool {
    permits: Arc<Semaphore>,
    /// Total number of permits.
    total: AtomicUsize,
}

impl Pool {
    fn new(total: usize) -> Pool {
        Pool {
            permits: Arc::new(Semaphore::new(total)),
            total: AtomicUsize::new(total),
        }
    }

    fn total(&self) -> usize {
        self.total.load(Relaxed)
    }

    fn free(&self) -> usize {
        self.permits.available_permits()
    }

    fn taken(&self) -> usize {
        self.total().saturating_sub(self.free())
    }

    /// Changes the total to `number`; permits in use are only removed by a later call.
    fn resize(&self, number: usize) {
        let total = self.total();
        let total = if number >= total {
            self.permits.add_permits(number - total);
            number
        } else {
            total - self.permits.forget_permits(total - number)
        };
        self.total.store(total, Relaxed);
    }
}

impl Descriptors {
    /// The budget of this process, after raising its limit. `memory` is the memory limit in bytes,
    /// if there is one.
    pub fn of_this_process(memory: Option<u64>) -> Self {
        let descriptors = Descriptors::with_limit(open_files::raise_limit(), memory);
        descriptors.count(0);
        descriptors
    }

    fn with_limit(limit: usize, memory: Option<u64>) -> Self {
        let total = share(limit, 0);
        let in_memory = memory.map(in_memory);
        Descriptors(Arc::new(Budget {
            permits: Pool::new(total),
            services: Pool::new(for_services(total)),
            clients: Arc::new(Semaphore::new(in_memory.unwrap_or(Semaphore::MAX_PERMITS))),
            in_memory,
            addresses: AtomicUsize::new(0),
            limit,
            outside: AtomicUsize::new(0),
        }))
    }

    /// Counts the descriptors that are open outside of the budget, and sets the budget to the rest
    /// of the limit. Sockets that were `given` by another process are part of the budget: service
    /// groups take descriptors for them. Before Linux 6.2 this takes a while if thousands of
    /// descriptors are open.
    pub fn count(&self, given: usize) {
        if let Some(open) = open_files::number() {
            self.counted(open.saturating_sub(given));
        }
    }

    /// Does the same if that is cheap.
    pub fn count_if_cheap(&self, given: usize) {
        if let Some(open) = open_files::number_if_cheap() {
            self.counted(open.saturating_sub(given));
        }
    }

    fn counted(&self, open: usize) {
        let budget = &self.0;
        let taken = budget.permits.taken();
        // A connection holds permits before its second socket is open: with many such connections,
        // nothing else would seem to be open.
        let mut outside = open.saturating_sub(taken);
        if taken == 0 {
            budget.outside.store(outside, Relaxed);
        }
        outside = outside.max(budget.outside.load(Relaxed));
        let share = share(budget.limit, outside);
        budget.permits.resize(share);
        budget.services.resize(for_services(share));
    }

    /// Records the number of addresses with listeners when all Services are served.
    pub fn expect(&self, addresses: usize) {
        self.0.addresses.store(addresses, Relaxed);
    }

    /// Number of `workers` that listen on an address: all of them, unless listeners would then take
    /// more than half of the budget.
    pub fn sockets_each(&self, workers: usize) -> usize {
        let most = self.0.permits.total() / 2;
        let needed = self.0.addresses.load(Relaxed).saturating_mul(workers);
        if self.free() > most && needed <= most {
            workers
        } else {
            1
        }
    }

    /// Takes `n` descriptors for a client if they are free, and there is memory for them.
    pub fn try_take(&self, n: u32) -> Option<Permits> {
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_many_owned(n).ok();
        Some(Permits {
            of_all: take(&self.0.permits.permits)?,
            of_part: take(&self.0.clients)?,
        })
    }

    /// Takes `n` descriptors for listeners or reserved ports of a Service, regardless of memory.
    ///
    /// # Errors
    /// When they are not free, or clients would have too few.
    pub fn take_for_service(&self, n: usize) -> io::Result<Permits> {
        let take = |of: &Pool| {
            let n = u32::try_from(n).ok()?;
            Arc::clone(&of.permits).try_acquire_many_owned(n).ok()
        };
        let all = take(&self.0.permits).zip(take(&self.0.services));
        let permits = all.map(|(all, part)| Permits {
            of_all: all,
            of_part: part,
        });
        permits.ok_or_else(|| {
            io::Error::other("no file descriptors are left for it; raise the limit (ulimit -n)")
        })
    }

    /// Waits for `n` descriptors for a client, and for memory. First come, first served.
    pub async fn take(&self, n: u32) -> Permits {
        let memory = wait_for(&self.0.clients, n).await;
        Permits {
            of_all: wait_for(&self.0.permits.permits, n).await,
            of_part: memory,
        }
    }

    /// The descriptors for listeners and reserved ports.
    pub fn for_services(&self) -> Room {
        let services = &self.0.services;
        Room {
            free: services.free().min(self.free()),
            total: services.total(),
        }
    }

    /// Number of free descriptors.
    pub fn free(&self) -> usize {
        self.0.permits.free()
    }

    /// Number of descriptors without those of listeners and reserved ports.
    fn left(&self) -> usize {
        let budget = &self.0;
        budget
            .permits
            .total()
            .saturating_sub(budget.services.taken())
    }

    /// Number of clients' descriptors for which there is memory; `None` if memory is not limited.
    pub fn in_memory(&self) -> Option<usize> {
        self.0.in_memory
    }

    /// Number of descriptors that clients use, if memory is limited; otherwise 0.
    pub fn of_clients(&self) -> usize {
        let free = self.0.clients.available_permits();
        self.in_memory()
            .map_or(0, |total| total.saturating_sub(free))
    }

    /// Maximum number of descriptors of clients.
    pub fn for_clients(&self) -> usize {
        self.left().min(self.in_memory().unwrap_or(usize::MAX))
    }

    /// The room for clients: descriptors, and memory for them if it is limited.
    pub fn rooms(&self) -> impl Iterator<Item = Room> {
        let descriptors = Room {
            free: self.free(),
            total: self.left(),
        };
        let memory = self.in_memory().map(|total| Room {
            free: self.0.clients.available_permits(),
            total,
        });
        std::iter::once(descriptors).chain(memory)
    }

    /// Returns whether less than a quarter of the clients' descriptors, or of the memory for them,
    /// is free. Those that can work with fewer should.
    pub fn short(&self) -> bool {
        self.rooms().any(|room| room.free < room.total / 4)
    }

    /// Returns whether a service group with this number of descriptors should leave the free ones,
    /// or the memory for them, to others.
    pub fn are_for_others(&self, descriptors: usize) -> bool {
        self.rooms().any(|room| room.is_for_others(descriptors))
    }
}

/// The data path's share of `limit` descriptors when `outside` are open elsewhere.
fn share(limit: usize, outside: usize) -> usize {
    let left = limit.saturating_sub(outside);
    let share = left - SPARE.min(left / 2);
    share.clamp(LEAST, Semaphore::MAX_PERMITS)
}

/// How many of `total` descriptors listeners and reserved ports may take: the rest is enough for a
/// connection, but not more than half.
fn for_services(total: usize) -> usize {
    let clients = (total / CLIENTS_SHARE).max(LEAST);
    total - clients.min(total / 2)
}

/// Number of clients' descriptors that fit into a memory limit in bytes.
fn in_memory(limit: u64) -> usize {
    let most = usize::try_from(limit / MEMORY_SHARE / COST).unwrap_or(usize::MAX);
    most.clamp(LEAST, Semaphore::MAX_PERMITS)
}

async fn wait_for(permits: &Arc<Semaphore>, n: u32) -> OwnedSemaphorePermit {
    match Arc::clone(permits).acquire_many_owned(n).await {
        Ok(permit) => permit,
        // Acquiring fails only once the semaphore is closed, and nothing closes it.
        Err(_) => std::future::pending().await,
    }
}

/// Returns whether `error` means that the process (EMFILE) or the system (ENFILE) has no
/// descriptors left, or no memory for one.
pub fn exhausted(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error().map(nix::errno::Errno::from_raw),
        Some(
            nix::errno::Errno::EMFILE
                | nix::errno::Errno::ENFILE
                | nix::errno::Errno::ENOBUFS
                | nix::errno::Errno::ENOMEM
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_finds_the_budget_empty_waits_for_what_others_return() {
        let descriptors = Descriptors::with_limit(SPARE + 100, None);
        let most = descriptors.try_take(99).expect("free");
        assert!(descriptors.try_take(2).is_none());
        assert!(descriptors.take_for_service(2).is_err());
        let mut waiting = Box::pin(descriptors.take(2));
        let now = tokio::time::timeout(std::time::Duration::ZERO, &mut waiting).await;
        assert!(now.is_err(), "one is not enough for two");
        drop(most);
        drop(waiting.await);
    }

    #[test]
    fn what_is_open_elsewhere_is_left_out_of_the_budget() {
        let descriptors = Descriptors::with_limit(1_000, None);
        descriptors.counted(300);
        assert_eq!(descriptors.left(), 1_000 - 300 - SPARE);
        let taken = descriptors.try_take(600).expect("free");
        // Few of the connections have a socket yet.
        descriptors.counted(350);
        assert_eq!(descriptors.left(), 1_000 - 300 - SPARE);
        // More are open elsewhere than are free: no new ones, but no fewer.
        descriptors.counted(600 + 380);
        assert_eq!((descriptors.free(), descriptors.left()), (0, 600));
        drop(taken);
        descriptors.counted(380);
        assert_eq!(descriptors.left(), 1_000 - 380 - SPARE);
        descriptors.counted(80);
        assert_eq!(descriptors.free(), 1_000 - 80 - SPARE);
    }

    #[tokio::test]
    async fn clients_wait_for_memory_and_listeners_do_not() {
        let descriptors = Descriptors::with_limit(10_000, Some(100 * MEMORY_SHARE * COST));
        assert_eq!(descriptors.for_clients(), 100);
        let most = descriptors.try_take(76).expect("free");
        assert!(descriptors.short());
        assert!(descriptors.are_for_others(76) && !descriptors.are_for_others(24));
        assert!(descriptors.try_take(25).is_none());
        assert!(descriptors.take_for_service(1_000).is_ok());
        let mut waiting = Box::pin(descriptors.take(25));
        let now = tokio::time::timeout(std::time::Duration::ZERO, &mut waiting).await;
        assert!(now.is_err(), "there is memory for 24");
        drop(most);
        drop(waiting.await);
        assert!(!descriptors.short());
    }

    #[test]
    fn services_leave_some_to_clients() {
        let descriptors = Descriptors::with_limit(SPARE + 8_000, None);
        let listening: Vec<_> = (0..7_000)
            .map(|_| descriptors.take_for_service(1))
            .collect();
        assert!(listening.iter().all(Result::is_ok));
        let error = descriptors.take_for_service(1).expect_err("clients' share");
        assert!(error.to_string().contains("ulimit"), "{error}");
        assert_eq!(
            (descriptors.for_clients(), descriptors.short()),
            (1_000, false)
        );
        let most = descriptors.try_take(800).expect("free");
        assert!(descriptors.are_for_others(800) && !descriptors.are_for_others(200));
        drop(most);
        // More are open elsewhere: clients keep their descriptors.
        descriptors.counted(7_000 + 400);
        assert_eq!(descriptors.for_clients(), 600);
        drop(listening);
        descriptors.counted(400);
        assert!(descriptors.take_for_service(6_650).is_ok());
        assert!(descriptors.take_for_service(6_651).is_err());
    }

    #[test]
    fn all_workers_listen_where_all_addresses_have_room_for_it() {
        let descriptors = Descriptors::with_limit(SPARE + 1_000, None);
        for (addresses, each) in [(0, 4), (125, 4), (126, 1), (900, 1)] {
            descriptors.expect(addresses);
            assert_eq!(descriptors.sockets_each(4), each, "{addresses} addresses");
        }
        descriptors.expect(1);
        let _others = descriptors.try_take(500).expect("free");
        assert_eq!(descriptors.sockets_each(4), 1);
    }

    #[test]
    fn a_tiny_limit_leaves_something() {
        let of_services = [2, 3, 4, 32].map(for_services);
        assert_eq!(of_services, [1, 2, 2, 28]);
        assert_eq!(share(64, 0), 32);
        assert_eq!(share(64, 40), 12);
        assert_eq!(share(1, 0), LEAST);
        assert_eq!(share(64, 100), LEAST);
    }

    #[test]
    fn sockets_that_were_given_are_in_the_budget() {
        let given: Vec<_> = (0..500).map(|_| std::fs::File::open("/dev/null")).collect();
        let limit = 100_000;
        let descriptors = Descriptors::with_limit(limit, None);
        descriptors.count(given.len());
        let open = limit - SPARE - descriptors.left();
        // Other tests open and close some meanwhile.
        let others = open_files::number().expect("/proc") - given.len();
        assert!(open.abs_diff(others) < 250, "{open}, {others}");
        let taken = descriptors.take_for_service(given.len()).expect("free");
        descriptors.count(0);
        let open = limit - SPARE - given.len() - descriptors.left();
        assert!(open.abs_diff(others) < 250, "{open}, {others}");
        drop(taken);
    }
}
