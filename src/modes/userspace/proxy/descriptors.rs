//! The budget of file descriptors: what would go over the limit waits instead of
//! failing.
//!
//! The data path takes its descriptors out of the budget: connections, pipes, UDP
//! clients, listeners, ports that are reserved. What the rest of the process has
//! open (logs, epoll, netlink, the API server, probes, health-check node ports) is
//! counted and left out of it.
//!
//! Listeners and reserved ports leave a part to connections: even if there are too many
//! Services to listen for all of them, those that are listened for must be served.
//!
//! Clients come and go, and what each has costs memory of this process and of the
//! kernel: if memory has a limit, they also take from a second budget, which is what
//! there is memory for.

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

/// Descriptors for what comes and goes between two counts: programs that are
/// started and their pipes, netlink sockets, calls of probes and of the API
/// server, connections that wait for their share of the budget.
const SPARE: usize = 64;

/// The least that the data path has, however low the limit is.
const LEAST: usize = 2;

/// Memory that a descriptor of a client costs, in bytes: with that of the kernel for the
/// socket, half of a connection's task, or a UDP client's. About 5,300 were measured.
const COST: u64 = 6 * 1024;

/// What clients' descriptors may cost is this fraction of the memory limit.
const MEMORY_SHARE: u64 = 2;

/// This fraction of all is for clients alone.
const CLIENTS_SHARE: usize = 8;

/// Permits that are held, and free again when this is dropped.
#[derive(Debug)]
pub struct Permits {
    of_all: OwnedSemaphorePermit,
    /// Permits of those that clients have memory for, or that Services may have.
    of_part: OwnedSemaphorePermit,
}

impl Permits {
    /// Adds permits of the same kind.
    pub fn merge(&mut self, more: Permits) {
        self.of_all.merge(more.of_all);
        self.of_part.merge(more.of_part);
    }
}

/// Permits that the data path may hold, one for each descriptor.
#[derive(Clone, Debug)]
pub struct Descriptors(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    permits: Pool,
    /// Those of them that listeners and reserved ports may have.
    services: Pool,
    /// Permits of those descriptors that clients have.
    clients: Arc<Semaphore>,
    /// How many of them there are, free or not; `None`: memory has no limit.
    in_memory: Option<usize>,
    /// Addresses that are listened on when all Services are served.
    addresses: AtomicUsize,
    /// What the process may open.
    limit: usize,
    /// What it had open outside of the budget when no permit was taken.
    outside: AtomicUsize,
}

/// Permits whose number changes.
#[derive(Debug)]
struct Pool {
    permits: Arc<Semaphore>,
    /// How many there are, free or not.
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

    /// Changes their number to `number`; those in use stay until the next call.
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
    /// Returns a budget of what this process may open, after its limit was raised, and of
    /// what there is `memory` for, a limit in bytes.
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

    /// Counts what is open outside of the budget, and makes the budget what is left of the limit.
    /// Sockets that were `given` by another process are part of the budget: service groups take
    /// descriptors out of it with them. Before Linux 6.2 that takes a while where thousands of
    /// descriptors are open.
    pub fn count(&self, given: usize) {
        if let Some(open) = open_files::number() {
            self.counted(open.saturating_sub(given));
        }
    }

    /// Does the same if it costs nothing.
    pub fn count_if_cheap(&self, given: usize) {
        if let Some(open) = open_files::number_if_cheap() {
            self.counted(open.saturating_sub(given));
        }
    }

    fn counted(&self, open: usize) {
        let budget = &self.0;
        let taken = budget.permits.taken();
        // A connection holds permits before its second socket is open: with
        // many of these, nothing else would seem to be open.
        let mut outside = open.saturating_sub(taken);
        if taken == 0 {
            budget.outside.store(outside, Relaxed);
        }
        outside = outside.max(budget.outside.load(Relaxed));
        let share = share(budget.limit, outside);
        budget.permits.resize(share);
        budget.services.resize(for_services(share));
    }

    /// Makes known how many addresses are listened on when all Services are served.
    pub fn expect(&self, addresses: usize) {
        self.0.addresses.store(addresses, Relaxed);
    }

    /// Returns on how many of the `workers` an address is listened on: on all, unless
    /// listeners would then have more than half.
    pub fn sockets_each(&self, workers: usize) -> usize {
        let most = self.0.permits.total() / 2;
        let needed = self.0.addresses.load(Relaxed).saturating_mul(workers);
        if self.free() > most && needed <= most {
            workers
        } else {
            1
        }
    }

    /// Takes `n` descriptors of a client if they are free, and there is memory for them.
    pub fn try_take(&self, n: u32) -> Option<Permits> {
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_many_owned(n).ok();
        Some(Permits {
            of_all: take(&self.0.permits.permits)?,
            of_part: take(&self.0.clients)?,
        })
    }

    /// Takes `n` descriptors for something that a Service needs, however much memory there
    /// is.
    ///
    /// # Errors
    /// When that many are not free, or clients would lack them.
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

    /// Waits for `n` descriptors of a client, and for memory; first come, first served.
    pub async fn take(&self, n: u32) -> Permits {
        let memory = wait_for(&self.0.clients, n).await;
        Permits {
            of_all: wait_for(&self.0.permits.permits, n).await,
            of_part: memory,
        }
    }

    /// Returns what there is of descriptors for listeners and reserved ports.
    pub fn for_services(&self) -> Room {
        let services = &self.0.services;
        Room {
            free: services.free().min(self.free()),
            total: services.total(),
        }
    }

    /// Returns how many are free.
    pub fn free(&self) -> usize {
        self.0.permits.free()
    }

    /// Returns how many there are besides those of listeners and reserved ports.
    fn left(&self) -> usize {
        let budget = &self.0;
        budget
            .permits
            .total()
            .saturating_sub(budget.services.taken())
    }

    /// Returns how many of clients there is memory for; `None`: memory has no limit.
    pub fn in_memory(&self) -> Option<usize> {
        self.0.in_memory
    }

    /// Returns how many clients have, where memory has a limit; without one 0.
    pub fn of_clients(&self) -> usize {
        let free = self.0.clients.available_permits();
        self.in_memory()
            .map_or(0, |total| total.saturating_sub(free))
    }

    /// Returns how many clients may have in all.
    pub fn for_clients(&self) -> usize {
        self.left().min(self.in_memory().unwrap_or(usize::MAX))
    }

    /// Returns what there is of descriptors, and of those of clients that there is memory for.
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

    /// Returns whether less than a quarter of what clients may have is free, or has memory
    /// left: what can do with fewer should.
    pub fn short(&self) -> bool {
        self.rooms().any(|room| room.free < room.total / 4)
    }

    /// Returns whether a service group with that number of descriptors is to leave free
    /// ones to others: those of all, or those that there is memory for.
    pub fn are_for_others(&self, descriptors: usize) -> bool {
        self.rooms().any(|room| room.is_for_others(descriptors))
    }
}

/// Returns the data path's share of `limit` descriptors when `outside` are open outside
/// of it.
fn share(limit: usize, outside: usize) -> usize {
    let left = limit.saturating_sub(outside);
    let share = left - SPARE.min(left / 2);
    share.clamp(LEAST, Semaphore::MAX_PERMITS)
}

/// Returns how many of `total` listeners and reserved ports may have: what they leave is
/// enough for a connection, but not more than half.
fn for_services(total: usize) -> usize {
    let clients = (total / CLIENTS_SHARE).max(LEAST);
    total - clients.min(total / 2)
}

/// Returns how many descriptors of clients there is memory for under a limit in bytes.
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

/// Returns whether `error` says that the process (EMFILE) or the system (ENFILE) has
/// no descriptor left, or no memory for one.
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
        // Few of them have a socket yet.
        descriptors.counted(350);
        assert_eq!(descriptors.left(), 1_000 - 300 - SPARE);
        // More is open elsewhere than is free: no new ones, but no fewer.
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
        // More is open elsewhere: clients keep what they have.
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
