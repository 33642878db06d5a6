//! From one mode to another: what the old one left goes when the new one
//! carries traffic, and not before.
//!
//! The old process may still run for a while, as in an upgrade that starts the
//! new one first, and put back what it finds missing; that goes again, so that
//! nothing is left of it when it ends.
//!
//! Left by whom does not matter: by Tripod or kube-proxy, in the engine of the
//! kernel that this mode has its rules in or in the other one. What the mode
//! that runs would install itself it takes over; that is its own work.

mod leftover;
mod nftables;

use ipnet::IpNet;
use tokio::time::{Duration, Instant, sleep_until};

use self::leftover::{Leftover, Running};
use super::Done;
use crate::{
    kernel::{Family, xtables::Engine},
    modes::{Mode, ModeName, SyncError, SyncReport},
    services::{Changes, ServiceMap},
};

/// How long connections may keep something from being removed that they need;
/// as long as a real server with connections is kept.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long ServicePorts that fail may keep what is left in force: they may
/// need it, but it does not follow their endpoints.
const GRACE: Duration = Duration::from_secs(5 * 60);
/// Counting connections means listing all of them, and looking for rules that
/// are back, all chains: not more often than this.
const PAUSE: Duration = Duration::from_secs(5);
/// How long an old process may go on beside this one and put back what it had.
/// Later on, whoever comes is not one that left.
const OVERLAP: Duration = Duration::from_secs(5 * 60);

/// A mode that clears up behind the others once it is in force itself.
pub(super) struct TakeOver<M> {
    mode: M,
    /// Virtual servers with addresses in these are somebody else's.
    exclude: Vec<IpNet>,
    /// What may still be there.
    left: Vec<Leftover>,
    /// What was there before this mode first synced.
    found: Option<Vec<Leftover>>,
    /// When to look next whether it is back. Kept here, as whoever waits for it
    /// may stop and begin again at any time.
    look: Instant,
    /// When this mode first synced.
    synced: Option<Instant>,
    /// When this mode came in force.
    since: Option<Instant>,
    /// Connections that a mode that was left still carries, when last counted.
    connections: usize,
    /// When to count again.
    due: Instant,
}

impl<M: Mode> TakeOver<M> {
    pub(super) fn new(mode: M, exclude: Vec<IpNet>) -> TakeOver<M> {
        TakeOver {
            mode,
            exclude,
            left: Leftover::ALL.into(),
            found: None,
            look: Instant::now(),
            synced: None,
            since: None,
            connections: 0,
            due: Instant::now(),
        }
    }

    /// All that is wanted is carried by this mode now, or never will be.
    fn is_in_force(&mut self, report: &SyncReport) -> bool {
        let now = Instant::now();
        let waited = now - *self.synced.get_or_insert(now);
        if report.failed.is_empty() || waited >= GRACE {
            self.since.get_or_insert(now);
        }
        self.since.is_some()
    }

    fn running(&self) -> Running {
        Running {
            mode: self.mode.name(),
            engines: self.mode.engines(),
        }
    }

    /// Until when an old process may put back what it had.
    fn overlap_ends(&self) -> Option<Instant> {
        self.since.map(|since| since + OVERLAP)
    }

    /// Takes note of what of the old is back.
    async fn look_again(&mut self) {
        let overlaps = self.overlap_ends().is_some_and(|end| Instant::now() < end);
        if let Some(found) = &self.found
            && self.left.is_empty()
            && overlaps
        {
            self.left = these(found, &self.running()).await;
        }
    }

    /// Removes what was left; what cannot be removed is tried again with the
    /// next full sync.
    async fn clear_up(&mut self) {
        let running = self.running();
        let waited = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        let (mut remaining, mut connections) = (Vec::new(), 0);
        for &leftover in &self.left {
            if waited < PATIENCE {
                match leftover.retire(&running, &self.exclude).await {
                    Ok(0) => {}
                    Ok(open) => {
                        connections += open;
                        remaining.push(leftover);
                        continue;
                    }
                    Err(error) => tracing::debug!("connections of {leftover}: {error}"),
                }
            }
            if let Err(error) = leftover.clean(Some(&running), &self.exclude).await {
                tracing::warn!("what {leftover} left is not all gone: {error}");
                remaining.push(leftover);
            }
        }
        if remaining.is_empty() {
            tracing::debug!("nothing is left of other modes");
        }
        self.left = remaining;
        self.connections = connections;
        self.due = Instant::now() + PAUSE;
    }
}

impl<M: Mode> Mode for TakeOver<M> {
    fn name(&self) -> ModeName {
        self.mode.name()
    }

    async fn sync(&mut self, map: &ServiceMap, changes: &Changes) -> Result<SyncReport, SyncError> {
        if self.found.is_none() {
            // Userspace mode removes what captures in another way itself.
            self.found = Some(these(&self.left, &self.running()).await);
        }
        let mut report = self.mode.sync(map, changes).await?;
        let due = changes.full || self.connections > 0 && self.due <= Instant::now();
        if self.is_in_force(&report) && due {
            self.look_again().await;
            if !self.left.is_empty() {
                self.clear_up().await;
            }
            self.look = Instant::now() + PAUSE;
        }
        report.lingering += self.connections;
        Ok(report)
    }

    async fn disturbed(&mut self) {
        let running = self.running();
        let found = self.found.as_deref().unwrap_or_default();
        let watches = self.left.is_empty() && !found.is_empty();
        let ends = self.overlap_ends().filter(|_| watches);
        let look = &mut self.look;
        let back = async {
            while ends.is_some_and(|end| *look < end) {
                sleep_until(*look).await;
                *look = Instant::now() + PAUSE;
                if !these(found, &running).await.is_empty() {
                    tracing::debug!("somebody put back what another mode had");
                    return;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = self.mode.disturbed() => {}
            () = back => {}
        }
    }

    fn carried(&self) -> usize {
        self.mode.carried()
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.mode.engines()
    }

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        self.mode.cleanup().await
    }
}

/// Those of `leftovers` that are there.
async fn these(leftovers: &[Leftover], running: &Running) -> Vec<Leftover> {
    let mut there = Vec::new();
    for leftover in leftovers {
        if leftover.is_there(running).await {
            there.push(*leftover);
        }
    }
    there
}

/// Removes what any mode ever installed. All are tried, even if one fails.
///
/// # Errors
/// What could not be removed.
pub(super) async fn cleanup_all(exclude: &[IpNet]) -> Done {
    let mut failed = Vec::new();
    for leftover in Leftover::ALL {
        if let Err(error) = leftover.clean(None, exclude).await {
            failed.push(format!("{leftover}: {error}"));
        }
    }
    if failed.is_empty() {
        tracing::info!("removed what Tripod and kube-proxy had installed");
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failed.join("; ")).into())
}

#[cfg(test)]
mod tests;
