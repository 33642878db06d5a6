//! The budget of file descriptors: who would go over the limit waits instead
//! of failing.

use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Descriptors kept out of the budget for logs, netlink, manifests, the
/// health and metrics servers and the runtimes' own.
const RESERVE: u64 = 48;

/// Permits that the data path may hold, one a descriptor.
#[derive(Clone, Debug)]
pub struct Descriptors {
    permits: Arc<Semaphore>,
    total: usize,
}

impl Descriptors {
    /// A budget of what this process may open: the soft limit is raised to
    /// the hard one first (`getrlimit(2)`, RLIMIT_NOFILE).
    pub fn of_this_process() -> Self {
        let limit = match getrlimit(Resource::RLIMIT_NOFILE) {
            Ok((soft, hard)) if soft < hard => {
                match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
                    Ok(()) => hard,
                    Err(_) => soft,
                }
            }
            Ok((soft, _)) => soft,
            // Every Linux has had at least this since 2.6.39.
            Err(_) => 1024,
        };
        Descriptors::with_limit(limit)
    }

    fn with_limit(limit: u64) -> Self {
        let reserve = RESERVE.min(limit / 2);
        let total = usize::try_from(limit - reserve).unwrap_or(usize::MAX);
        let total = total.min(Semaphore::MAX_PERMITS);
        Descriptors {
            permits: Arc::new(Semaphore::new(total)),
            total,
        }
    }

    /// Takes `n` descriptors if they are free.
    pub fn try_take(&self, n: u32) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.permits).try_acquire_many_owned(n).ok()
    }

    /// Waits for `n` descriptors; first come, first served.
    pub async fn take(&self, n: u32) -> OwnedSemaphorePermit {
        match Arc::clone(&self.permits).acquire_many_owned(n).await {
            Ok(permit) => permit,
            // Acquiring fails only once the semaphore is closed, and nobody
            // closes it.
            Err(_) => std::future::pending().await,
        }
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.permits.available_permits()
    }

    /// How many there are in all.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Less than a quarter is free: who can do with fewer should.
    pub fn short(&self) -> bool {
        self.free() < self.total / 4
    }
}

/// Whether `error` says that the process (EMFILE) or the system (ENFILE) has
/// no descriptor left, or no memory for one.
pub fn exhausted(error: &std::io::Error) -> bool {
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
        let descriptors = Descriptors::with_limit(RESERVE * 2 + 4);
        let most = descriptors.try_take(RESERVE as u32 + 3).expect("free");
        assert!(descriptors.try_take(2).is_none());
        let mut waiting = Box::pin(descriptors.take(2));
        let now = tokio::time::timeout(std::time::Duration::ZERO, &mut waiting).await;
        assert!(now.is_err(), "one is not enough for two");
        drop(most);
        drop(waiting.await);
    }

    #[test]
    fn a_tiny_limit_leaves_something() {
        assert_eq!(Descriptors::with_limit(64).free(), 32);
        assert_eq!(Descriptors::with_limit(1).free(), 1);
    }
}
