//! The budget of file descriptors: who would go over the limit waits instead
//! of failing.
//!
//! The data path takes its descriptors out of the budget: connections, pipes, UDP
//! clients, listeners, ports that are reserved. What the rest of the process has
//! open (logs, epoll, netlink, the API server, probes, health-check node ports) is
//! counted and left out of it.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kernel::open_files;

/// Descriptors for what comes and goes between two counts: programs that are
/// started and their pipes, netlink sockets, calls of probes and of the API
/// server, connections that wait for their share of the budget.
const SPARE: usize = 64;

/// What the data path has at least, however low the limit is.
const LEAST: usize = 2;

/// Descriptors that this process has open (`proc_pid_fd(5)`).
const OPEN: &str = "/proc/self/fd";

/// Permits that the data path may hold, one a descriptor.
#[derive(Clone, Debug)]
pub struct Descriptors(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    permits: Arc<Semaphore>,
    /// Permits that there are, free or not.
    total: AtomicUsize,
    /// What the process may open.
    limit: usize,
    /// What it had open outside of the budget when no permit was taken.
    outside: AtomicUsize,
}

impl Descriptors {
    /// Returns a budget of what this process may open, after its limit was raised.
    pub fn of_this_process() -> Self {
        let descriptors = Descriptors::with_limit(open_files::raise_limit());
        descriptors.count();
        descriptors
    }

    fn with_limit(limit: usize) -> Self {
        let total = share(limit, 0);
        Descriptors(Arc::new(Budget {
            permits: Arc::new(Semaphore::new(total)),
            total: AtomicUsize::new(total),
            limit,
            outside: AtomicUsize::new(0),
        }))
    }

    /// Counts what is open outside of the budget, and makes the budget what is
    /// left of the limit. Before Linux 6.2 that takes a while where thousands of
    /// descriptors are open.
    pub fn count(&self) {
        if let Some(open) = number_open().or_else(list_open) {
            self.counted(open);
        }
    }

    /// Does the same if it costs nothing.
    pub fn count_if_cheap(&self) {
        if let Some(open) = number_open() {
            self.counted(open);
        }
    }

    fn counted(&self, open: usize) {
        let budget = &self.0;
        let total = self.total();
        let taken = total.saturating_sub(self.free());
        // A connection holds permits before its second socket is open: with
        // many of these, nothing else would seem to be open.
        let mut outside = open.saturating_sub(taken);
        if taken == 0 {
            budget.outside.store(outside, Relaxed);
        }
        outside = outside.max(budget.outside.load(Relaxed));
        let share = share(budget.limit, outside);
        let total = if share >= total {
            budget.permits.add_permits(share - total);
            share
        } else {
            // Those in use stay until the next count.
            total - budget.permits.forget_permits(total - share)
        };
        budget.total.store(total, Relaxed);
    }

    /// Takes `n` descriptors if they are free.
    pub fn try_take(&self, n: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.permits).try_acquire_many_owned(n).ok()
    }

    /// Takes `n` descriptors for something that a Service needs.
    ///
    /// # Errors
    /// When so many are not free.
    pub fn take_now(&self, n: usize) -> io::Result<OwnedSemaphorePermit> {
        let n = u32::try_from(n).ok();
        n.and_then(|n| self.try_take(n)).ok_or_else(|| {
            io::Error::other("no file descriptors are left for it; raise the limit (ulimit -n)")
        })
    }

    /// Waits for `n` descriptors; first come, first served.
    pub async fn take(&self, n: u32) -> OwnedSemaphorePermit {
        match Arc::clone(&self.0.permits).acquire_many_owned(n).await {
            Ok(permit) => permit,
            // Acquiring fails only once the semaphore is closed, and nothing
            // closes it.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns how many are free.
    pub fn free(&self) -> usize {
        self.0.permits.available_permits()
    }

    /// Returns how many there are in all.
    pub fn total(&self) -> usize {
        self.0.total.load(Relaxed)
    }

    /// Less than a quarter is free: who can do with fewer should.
    pub fn short(&self) -> bool {
        self.free() < self.total() / 4
    }

    /// Returns whether a service group with so many descriptors is to leave those that are
    /// free to others: they are less than a quarter, and it has more than that itself.
    pub fn are_for_others(&self, descriptors: usize) -> bool {
        descriptors > self.total() / 4 && self.short()
    }
}

/// Returns the data path's share of `limit` descriptors when `outside` are open beside
/// it.
fn share(limit: usize, outside: usize) -> usize {
    let left = limit.saturating_sub(outside);
    let share = left - SPARE.min(left / 2);
    share.clamp(LEAST, Semaphore::MAX_PERMITS)
}

/// Returns how many descriptors are open, if the kernel has that number.
fn number_open() -> Option<usize> {
    // It is the folder's size since Linux 6.2, which was 0 before.
    let size = fs::metadata(OPEN).ok()?.len();
    usize::try_from(size).ok().filter(|size| *size > 0)
}

/// Returns how many descriptors the folder lists.
fn list_open() -> Option<usize> {
    Some(fs::read_dir(OPEN).ok()?.count())
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
        let descriptors = Descriptors::with_limit(SPARE + 100);
        let most = descriptors.try_take(99).expect("free");
        assert!(descriptors.try_take(2).is_none());
        assert!(descriptors.take_now(2).is_err());
        let mut waiting = Box::pin(descriptors.take(2));
        let now = tokio::time::timeout(std::time::Duration::ZERO, &mut waiting).await;
        assert!(now.is_err(), "one is not enough for two");
        drop(most);
        drop(waiting.await);
    }

    #[test]
    fn what_is_open_elsewhere_is_left_out_of_the_budget() {
        let descriptors = Descriptors::with_limit(1_000);
        descriptors.counted(300);
        assert_eq!(descriptors.total(), 1_000 - 300 - SPARE);
        let taken = descriptors.try_take(600).expect("free");
        // Few of them have a socket yet.
        descriptors.counted(350);
        assert_eq!(descriptors.total(), 1_000 - 300 - SPARE);
        // More is open elsewhere than is free: no new ones, but no fewer.
        descriptors.counted(600 + 380);
        assert_eq!((descriptors.free(), descriptors.total()), (0, 600));
        drop(taken);
        descriptors.counted(380);
        assert_eq!(descriptors.total(), 1_000 - 380 - SPARE);
        descriptors.counted(80);
        assert_eq!(descriptors.free(), 1_000 - 80 - SPARE);
    }

    #[test]
    fn a_tiny_limit_leaves_something() {
        assert_eq!(share(64, 0), 32);
        assert_eq!(share(64, 40), 12);
        assert_eq!(share(1, 0), LEAST);
        assert_eq!(share(64, 100), LEAST);
    }

    #[test]
    fn open_descriptors_are_counted() {
        let counts = || [number_open(), list_open()];
        let before = counts();
        let more: Vec<_> = (0..500).map(|_| fs::File::open("/dev/null")).collect();
        let after = counts();
        assert!(after[1].is_some(), "/proc");
        for (before, after) in before.into_iter().zip(after) {
            let Some((before, after)) = before.zip(after) else {
                continue;
            };
            // Other tests open and close some meanwhile.
            assert!((before + 250..before + 750).contains(&after), "{after}");
        }
        drop(more);
    }
}
