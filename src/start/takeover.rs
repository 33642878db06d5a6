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

mod clearing;
mod leftover;
mod nftables;

use std::sync::Arc;

use ipnet::IpNet;
use tokio::time::{Duration, Instant, sleep_until};

use self::{
    clearing::{Clearing, PAUSE, Pass, Work, these},
    leftover::{Leftover, Running},
};
use super::Done;
use crate::{
    kernel::{probe, xtables::Engine},
    modes::{Asked, Mode, Outcomes},
    net::{Family, ModeName, PerFamily},
    services::ServiceMap,
};

/// How long ServicePorts that fail may keep what is left in force: they may
/// need it, but it does not follow their endpoints.
const GRACE: Duration = Duration::from_secs(5 * 60);
/// How long an old process may go on beside this one and put back what it had.
/// Later on, whoever comes is not one that left.
const OVERLAP: Duration = Duration::from_secs(5 * 60);

/// How the last sync of a family went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Synced {
    /// There was none that succeeded.
    #[default]
    Not,
    /// Without some ServicePorts.
    Partly,
    Wholly,
}

/// A mode that clears up behind the others once it is in force itself.
pub(super) struct TakeOver<M> {
    mode: M,
    /// Virtual servers with addresses in these are somebody else's.
    exclude: Arc<[IpNet]>,
    /// What may still be there.
    left: Vec<Leftover>,
    /// What was there before this mode first synced.
    found: Option<Vec<Leftover>>,
    /// When to look next whether it is back. Kept here, as whoever waits for it
    /// may stop and begin again at any time.
    look: Instant,
    /// How the last sync of each family went.
    families: PerFamily<Synced>,
    /// When this mode first synced.
    synced: Option<Instant>,
    /// When this mode came in force.
    since: Option<Instant>,
    /// What is being removed, beside the syncs.
    clearing: Option<Clearing>,
    pass: Pass,
}

impl<M: Mode> TakeOver<M> {
    pub(super) fn new(mode: M, exclude: Vec<IpNet>) -> TakeOver<M> {
        TakeOver {
            mode,
            exclude: exclude.into(),
            left: Leftover::ALL.into(),
            found: None,
            look: Instant::now(),
            families: PerFamily::default(),
            synced: None,
            since: None,
            clearing: None,
            pass: clearing::pass,
        }
    }

    /// Returns whether all that is desired is carried by this mode now, or
    /// never will be. What was left carries the traffic of a family that was
    /// never synced.
    fn is_in_force(&mut self, outcomes: &Outcomes) -> bool {
        for (family, outcome) in outcomes.iter() {
            let Some(Ok(report)) = outcome else {
                continue;
            };
            *self.families.get_mut(family) = match report.failed.is_empty() {
                true => Synced::Wholly,
                false => Synced::Partly,
            };
        }
        let now = Instant::now();
        let are = |wanted: &[Synced]| {
            let mut families = self.families.iter();
            families.all(|(_, synced)| wanted.contains(synced))
        };
        if are(&[Synced::Partly, Synced::Wholly]) {
            let waited = now - *self.synced.get_or_insert(now);
            if are(&[Synced::Wholly]) || waited >= GRACE {
                self.since.get_or_insert(now);
            }
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

    /// Begins to clear up, unless that is under way.
    fn clear_up(&mut self, since: Instant) {
        if self.clearing.is_some() {
            return;
        }
        let overlaps = self.overlap_ends().is_some_and(|end| Instant::now() < end);
        let back = self.found.clone().filter(|_| overlaps).unwrap_or_default();
        if self.left.is_empty() && back.is_empty() {
            return;
        }
        let work = Work {
            left: self.left.clone(),
            running: self.running(),
            exclude: Arc::clone(&self.exclude),
            since,
        };
        self.clearing = Some(Clearing::begin(work, back, self.pass));
        self.look = Instant::now() + PAUSE;
    }
}

impl<M: Mode> Mode for TakeOver<M> {
    fn name(&self) -> ModeName {
        self.mode.name()
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        if self.found.is_none() {
            // Userspace mode removes what captures in another way itself.
            self.found = Some(these(self.left.clone(), self.running()).await);
        }
        let outcomes = self.mode.sync(map, asked).await;
        if let Some(clearing) = self.clearing.as_mut().filter(|c| c.is_finished()) {
            clearing.end(&mut self.left).await;
            self.clearing = None;
        }
        let full = |(family, outcome): (_, &Option<Result<_, _>>)| {
            let changes = asked.get(family);
            changes.is_some_and(|changes| changes.full) && matches!(outcome, Some(Ok(_)))
        };
        let fully = outcomes.iter().all(full);
        if self.is_in_force(&outcomes)
            && fully
            && let Some(since) = self.since
        {
            self.clear_up(since);
        }
        outcomes
    }

    async fn externally_modified(&mut self) {
        let (running, ends) = (self.running(), self.overlap_ends());
        let TakeOver {
            mode,
            left,
            found,
            look,
            clearing,
            ..
        } = self;
        let back = async {
            if let Some(under_way) = clearing {
                under_way.end(left).await;
                *clearing = None;
            }
            let found = found.as_deref().unwrap_or_default();
            let watches = left.is_empty() && !found.is_empty();
            let ends = ends.filter(|_| watches);
            while ends.is_some_and(|end| *look < end) {
                sleep_until(*look).await;
                *look = Instant::now() + PAUSE;
                if !these(found.to_vec(), running.clone()).await.is_empty() {
                    tracing::debug!("somebody put back what another mode had");
                    return;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = mode.externally_modified() => {}
            () = back => {}
        }
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        self.mode.engines()
    }
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
    if let Err(error) = probe::cleanup().await {
        failed.push(format!("probes: {error}"));
    }
    if failed.is_empty() {
        tracing::info!("removed what Tripod and kube-proxy had installed");
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failed.join("; ")).into())
}

#[cfg(test)]
mod tests;
