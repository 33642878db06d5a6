//! The change from one mode to another: the stale state of the old mode is removed after the new
//! one forwards traffic, and not before.
//!
//! The old process may still run for a while, for example in an upgrade that starts the new one
//! first, and restore what it finds missing; that is removed again, so that nothing of it is left
//! when it ends.
//!
//! It makes no difference whether Tripod or kube-proxy left the state, nor whether it is in the
//! kernel's engine in which this mode has its rules, or in the other one. State that the running
//! mode would install itself is taken over in its own syncs.

mod clearing;
mod going_back;
mod open_connections;
mod sockets;
mod stale_state;

use std::{path::Path, sync::Arc};

use net::PerFamily;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep_until};

pub(super) use self::stale_state::rules_of_programs_may_be_there;
use self::{
    clearing::{Clearing, PAUSE, Pass, Work, present},
    sockets::Removed,
    stale_state::StaleState,
};
use super::{
    Done,
    programs::{Programs, REMOVAL},
};
use crate::{
    cli::{Cleanup, Own, Settings},
    config::ModeName,
    kernel::probe,
    log_once::LogOnce,
    modes::{Asked, Outcomes, cleanup::Running, handover::Handover},
};

/// How long stale state is kept because ServicePorts or a whole IP family fail: they may need it,
/// although it does not follow their endpoints.
const GRACE: Duration = Duration::from_secs(5 * 60);
/// How long an old process may run in parallel and restore its rules. A process that appears later
/// is not the replaced one.
const OVERLAP: Duration = Duration::from_secs(5 * 60);

/// Result of the last sync of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Synced {
    /// No sync has succeeded.
    #[default]
    Not,
    /// A sync succeeded, except for some ServicePorts.
    Partly,
    Wholly,
}

/// Removes the stale state of other modes once that of the running one is applied.
pub(super) struct TakeOver {
    running: Running,
    /// Stale state that may still be there.
    stale: Vec<StaleState>,
    /// Stale state that was there before this mode's first sync.
    found: Option<Vec<StaleState>>,
    /// Time of the next check whether it has returned. It is stored here because the future that
    /// waits for it may be dropped and created again at any time.
    check_at: Instant,
    families: PerFamily<Synced>,
    /// When this mode first synced an IP family.
    synced: Option<Instant>,
    /// When this mode took effect.
    since: Option<Instant>,
    /// The running removal, in parallel with syncs.
    clearing: Option<Clearing>,
    pass: Pass,
    /// Errors of the removal.
    logged: Arc<Mutex<LogOnce>>,
    /// As long as it knows of a successor, the state of other modes belongs to that successor and
    /// stays.
    handover: Handover,
    /// Whether there was a successor at the last sync.
    gave_way: bool,
    programs: Programs,
}

impl TakeOver {
    /// Removes what is stale now that a mode is `running`, but nothing while `handover` knows of a
    /// successor. `programs` is signalled if they may not be started and stale rules need them.
    pub(super) fn new(running: Running, handover: Handover, programs: Programs) -> TakeOver {
        TakeOver {
            running,
            stale: StaleState::ALL.into(),
            found: None,
            check_at: Instant::now(),
            families: PerFamily::default(),
            synced: None,
            since: None,
            clearing: None,
            pass: clearing::pass,
            logged: Arc::default(),
            handover,
            gave_way: false,
            programs,
        }
    }

    /// Stops removing the state of other modes when there is a successor: it may own that state.
    /// When the successor is gone, what it left is stale.
    fn follow_successor(&mut self) {
        let gives_way = self.handover.has_successor();
        if gives_way {
            self.clearing = None;
        } else if self.gave_way {
            self.stale = StaleState::ALL.into();
            self.found = None;
            (self.synced, self.since) = (None, None);
        }
        self.gave_way = gives_way;
    }

    /// Returns whether this mode serves the whole desired state, or has served at least one IP
    /// family for [`GRACE`]: the rest may fail for ever, for example if the node cannot serve the
    /// other family. Until then the stale state serves what is not applied.
    fn is_in_force(&mut self, outcomes: &Outcomes) -> bool {
        for (family, outcome) in outcomes.iter() {
            let Some(Ok(report)) = outcome else {
                continue;
            };
            *self.families.get_mut(family) = if report.failed.is_empty() {
                Synced::Wholly
            } else {
                Synced::Partly
            };
        }
        let now = Instant::now();
        let are = |states: &[Synced]| {
            let mut families = self.families.iter();
            families.all(|(_, synced)| states.contains(synced))
        };
        if !are(&[Synced::Not]) {
            let waited = now - *self.synced.get_or_insert(now);
            if are(&[Synced::Wholly]) || waited >= GRACE {
                self.since.get_or_insert(now);
            }
        }
        self.since.is_some()
    }

    /// Until when an old process may restore its rules.
    fn overlap_ends(&self) -> Option<Instant> {
        self.since.map(|since| since + OVERLAP)
    }

    /// Starts to remove stale state, unless a removal is running.
    fn clear_stale(&mut self, since: Instant) {
        if self.clearing.is_some() || self.handover.has_successor() {
            return;
        }
        let overlaps = self.overlap_ends().is_some_and(|end| Instant::now() < end);
        let reappeared = self.found.clone().filter(|_| overlaps).unwrap_or_default();
        if self.stale.is_empty() && reappeared.is_empty() {
            return;
        }
        let work = Work {
            stale: self.stale.clone(),
            running: self.running.clone(),
            since,
            handover: self.handover.clone(),
            logged: Arc::clone(&self.logged),
        };
        self.clearing = Some(Clearing::begin(work, reappeared, self.pass));
        self.check_at = Instant::now() + PAUSE;
    }

    /// Finds out what is stale, before the running mode first syncs.
    pub(super) async fn begin_sync(&mut self) {
        self.follow_successor();
        if self.found.is_none() {
            // Userspace mode itself removes state that captures in another way.
            let found = present(self.stale.clone(), self.running.clone()).await;
            miss(&self.programs, &found).await;
            if found.contains(&StaleState::Of(ModeName::Userspace)) {
                open_connections::prepare(self.running.clone()).await;
            }
            self.found = Some(found);
        }
    }

    /// Starts to remove stale state if the running mode serves, after a sync with these `outcomes`.
    pub(super) async fn end_sync(&mut self, asked: Asked<'_>, outcomes: &Outcomes) {
        if let Some(clearing) = self.clearing.as_mut().filter(|c| c.is_finished()) {
            clearing.end(&mut self.stale).await;
            self.clearing = None;
            // An old process may have written its rules after the check.
            miss(&self.programs, &self.stale).await;
        }
        let is_in_force = self.is_in_force(outcomes);
        let full = |(family, outcome): (_, &Option<Result<_, _>>)| {
            let changes = asked.get(family);
            changes.is_some_and(|changes| changes.full) && matches!(outcome, Some(Ok(_)))
        };
        // A family that never synced is not waited for: it has had `GRACE`.
        let has_synced = |family| *self.families.get(family) != Synced::Not;
        let fully = outcomes.iter().all(|of| !has_synced(of.0) || full(of));
        if is_in_force
            && fully
            && let Some(since) = self.since
        {
            self.clear_stale(since);
        }
    }

    /// Waits until another process has restored stale state. May be dropped while it waits.
    pub(super) async fn returned(&mut self) {
        let ends = self.overlap_ends();
        let TakeOver {
            running,
            stale,
            found,
            check_at,
            clearing,
            handover,
            programs,
            ..
        } = self;
        if let Some(under_way) = clearing {
            under_way.end(stale).await;
            *clearing = None;
            miss(programs, stale).await;
        }
        let found = found.as_deref().unwrap_or_default();
        let watches = stale.is_empty() && !found.is_empty();
        let ends = ends.filter(|_| watches);
        while ends.is_some_and(|end| *check_at < end) {
            sleep_until(*check_at).await;
            *check_at = Instant::now() + PAUSE;
            if handover.has_successor() {
                continue;
            }
            if !present(found.to_vec(), running.clone()).await.is_empty() {
                tracing::debug!("another process restored the rules of another mode");
                return;
            }
        }
        std::future::pending().await
    }
}

/// Signals a missing program if `programs` may not be started and removing what is `left` needs
/// them.
async fn miss(programs: &Programs, left: &[StaleState]) {
    if programs.are_forbidden() && !left.is_empty() && clearing::takes_programs().await {
        programs.miss(REMOVAL);
    }
}

/// Removes all that modes ever installed, as far as `what` says, and sockets and findings in the
/// file system that no process uses any more. Continues after a failure.
///
/// # Errors
/// When something could not be removed; the error names it.
pub(super) async fn cleanup(what: Cleanup, settings: &Settings) -> Done {
    if what.keep_kube_proxy && going_back::serves_alone().await {
        return Err(going_back::TOO_EARLY.into());
    }
    let mut failed = Vec::new();
    let nothing_runs = Running {
        exclude: settings.effective.ipvs_exclude.clone().into(),
        ..Running::default()
    };
    let removed = StaleState::ALL.into_iter();
    for state in removed.filter(|state| !what.keep_kube_proxy || state.is_only_of_tripod()) {
        if let Err(error) = state.cleanup(&nothing_runs).await {
            failed.push(format!("{state}: {error}"));
        }
    }
    if let Err(error) = probe::cleanup().await {
        failed.push(format!("probes: {error}"));
    }
    failed.extend(remove_files(&settings.own));
    if failed.is_empty() {
        let whose = match what.keep_kube_proxy {
            false => "or kube-proxy",
            true => "that kube-proxy does not use",
        };
        tracing::info!(
            "no rules, sets, addresses or routes of Tripod {whose} are left on this node"
        );
        return Ok(());
    }
    Err(format!("not everything could be removed: {}", failed.join("; ")).into())
}

/// Roots of the node's files: in a pod of `kubectl debug` for a node they are below `/host`.
const NODE_ROOTS: [&str; 2] = ["/", "/host"];

/// Removes the sockets with which processes of Tripod find each other and answer questions, and the
/// findings of `--init-only`, unless a process uses them, with the folders that only they use.
/// Returns the files that could not be removed, and why.
fn remove_files(own: &Own) -> Vec<String> {
    let mut removed = Removed::default();
    for path in [&own.status_socket, &own.holder_socket]
        .into_iter()
        .flatten()
    {
        removed.socket(path);
    }
    for root in NODE_ROOTS {
        removed.usual(Path::new(root));
    }
    for path in &removed.gone {
        tracing::info!("removed {}, which no process uses", path.display());
    }
    for path in &removed.used {
        tracing::info!("{} stays: a process listens there", path.display());
    }
    removed.failed
}

#[cfg(test)]
mod tests;
