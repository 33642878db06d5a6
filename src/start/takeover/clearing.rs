//! Removes the stale state of other modes, in parallel with the syncs of the mode that runs.
//!
//! Counting connections means listing all that the kernel has, and a program may wait for a lock:
//! all of that happens on separate threads. Neither a sync nor a probe waits for it.

use std::{future::Future, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    runtime,
    task::{JoinHandle, spawn_blocking},
    time::{Duration, Instant, sleep},
};

use super::stale_state::{StaleState, rules_of_programs_may_be_there};
use crate::{
    log_once::LogOnce,
    modes::{cleanup::Running, handover::Handover},
};

/// How long stale state stays because connections need it.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long stale state stays because it is not known whether connections need it.
const PATIENCE_UNKNOWN: Duration = Duration::from_secs(60);
/// Time from one pass to the next, while connections need something.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// A pass that takes long takes at most this share of a thread's time.
const SHARE: u32 = 10;

/// What is to be removed, and which mode runs meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Stale state that may be there.
    pub(super) stale: Vec<StaleState>,
    pub(super) running: Running,
    /// The time at which the running mode came in force.
    pub(super) since: Instant,
    /// Says whether a successor is there, to which all of it may belong.
    pub(super) handover: Handover,
    /// What could not be removed, in this work and before.
    pub(super) logged: Arc<Mutex<LogOnce>>,
}

impl Work {
    /// Logs what could not be removed, once until everything is.
    fn failed(&self, what: &str) {
        if self.logged.lock().is_new(what) {
            tracing::warn!(
                "{what}; if this persists, stop Tripod, run `tripod cleanup` and start Tripod again"
            );
        }
    }
}

/// The result of one pass.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// State that connections still need.
    pub(super) in_use: Vec<StaleState>,
    /// State that could not be removed.
    pub(super) failed: Vec<StaleState>,
}

/// Makes one pass; blocks for as long as that takes.
pub(super) type Pass = fn(&Work, waited: Duration) -> Option<Passed>;

/// Work under way. Ends when it is dropped, after the pass that it is in.
pub(super) struct Clearing(JoinHandle<Vec<StaleState>>);

impl Clearing {
    /// Begins to clear. If `work` has no stale state, removes the state in `reappeared` that is
    /// there.
    pub(super) fn begin(work: Work, reappeared: Vec<StaleState>, pass: Pass) -> Clearing {
        Clearing(tokio::spawn(clear_up(work, reappeared, pass)))
    }

    /// Returns whether the clearing has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end, and puts into `stale` what is still to be removed.
    /// May be dropped while it waits; not to be called again afterwards.
    pub(super) async fn end(&mut self, stale: &mut Vec<StaleState>) {
        if let Ok(later) = (&mut self.0).await {
            *stale = later;
        }
    }
}

impl Drop for Clearing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn clear_up(mut work: Work, reappeared: Vec<StaleState>, pass: Pass) -> Vec<StaleState> {
    if work.stale.is_empty() && !reappeared.is_empty() {
        work.stale = present(reappeared, work.running.clone()).await;
    }
    let mut failed = Vec::new();
    while !work.stale.is_empty() {
        let begun = Instant::now();
        let waited = work.since.elapsed();
        let now = work.clone();
        let Ok(Some(passed)) = spawn_blocking(move || pass(&now, waited)).await else {
            break;
        };
        failed.extend(passed.failed);
        work.stale = passed.in_use;
        if !work.stale.is_empty() {
            sleep(PAUSE.max(begun.elapsed() * SHARE)).await;
        }
    }
    failed.extend(work.stale);
    if !failed.is_empty() {
        return failed;
    }
    if work.logged.lock().end() {
        tracing::info!("removed the rules of other modes");
    } else {
        tracing::debug!("there are no rules of other modes");
    }
    failed
}

/// Makes the real pass: has the stale state take no new connections, and removes what no connection
/// needs, or all of it after [`PATIENCE`].
pub(super) fn pass(work: &Work, waited: Duration) -> Option<Passed> {
    let mut passed = Passed::default();
    blocking(async {
        for &state in &work.stale {
            let has_successor = || work.handover.has_successor();
            if has_successor() || is_in_use(state, work, waited).await || has_successor() {
                passed.in_use.push(state);
                continue;
            }
            if let Err(error) = state.cleanup(&work.running).await {
                work.failed(&format!(
                    "some objects of {state} could not be removed: {error}"
                ));
                passed.failed.push(state);
            }
        }
    })?;
    Some(passed)
}

/// Has `state` take no new connections. Returns whether connections may need it still; after
/// [`PATIENCE`] that does not count.
async fn is_in_use(state: StaleState, work: &Work, waited: Duration) -> bool {
    if waited >= PATIENCE {
        return false;
    }
    match state.retire(&work.running).await {
        Ok(0) => false,
        Ok(connections) => {
            tracing::debug!(connections, "{state} still has connections");
            true
        }
        Err(error) => {
            tracing::debug!("connections of {state}: {error}");
            waited < PATIENCE_UNKNOWN
        }
    }
}

/// Returns those of `states` that are there, or for which that is not known. Listing rules may take
/// seconds, so it is done on another thread; if there is none, all of them are returned.
pub(super) async fn present(states: Vec<StaleState>, running: Running) -> Vec<StaleState> {
    let all = states.clone();
    let find = move || {
        blocking(async {
            let mut there = Vec::new();
            for state in states {
                if state.may_be_there(&running).await {
                    there.push(state);
                }
            }
            there
        })
    };
    spawn_blocking(find).await.ok().flatten().unwrap_or(all)
}

/// Returns whether rules may be there whose removal takes programs. Listing them is done on
/// another thread.
pub(super) async fn takes_programs() -> bool {
    // It fails only while the runtime is shutting down.
    spawn_blocking(rules_of_programs_may_be_there)
        .await
        .unwrap_or(false)
}

/// Runs `work` on this thread; `None`: no runtime can be created for it.
fn blocking<T>(work: impl Future<Output = T>) -> Option<T> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => Some(runtime.block_on(work)),
        Err(error) => {
            tracing::warn!(
                "the rules of other modes stay for now, because no runtime can be started: {error}"
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::ModeName, log::lines};

    #[test]
    fn what_cannot_be_removed_is_logged_once_until_nothing_is_left() {
        let logged = Arc::default();
        let work = |stale: &[StaleState]| Work {
            stale: stale.to_vec(),
            running: Running {
                mode: Some(ModeName::Nftables),
                ..Running::default()
            },
            since: Instant::now(),
            handover: Handover::of_rules(),
            logged: Arc::clone(&logged),
        };
        let mut builder = runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        let all = &StaleState::ALL[..1];
        let log = lines(0, || {
            for pass in [
                (|work, _| {
                    Some(Passed {
                        failed: work.stale.clone(),
                        ..Passed::default()
                    })
                }) as Pass,
                |_, _| Some(Passed::default()),
                |_, _| Some(Passed::default()),
            ] {
                work(all).failed("it is not gone: busy");
                runtime.block_on(clear_up(work(all), Vec::new(), pass));
            }
        });
        let texts = log.iter().map(|line| line.contains("rules of other modes"));
        assert_eq!(
            texts.collect::<Vec<_>>(),
            [false, true, false, true],
            "{log:#?}"
        );
    }
}
