//! Removes the stale state of other modes, in parallel with the syncs of the mode that runs.
//!
//! Counting connections means listing all connections of the kernel, and a program may wait for a
//! lock, so this runs on separate threads. Neither syncs nor probes wait for it.

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

/// How long stale state is kept because connections need it.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long stale state is kept because it is not known whether connections need it.
const PATIENCE_UNKNOWN: Duration = Duration::from_secs(60);
/// Time from one pass to the next, while connections need stale state.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// The pause after a long pass is at least this multiple of its duration.
const SHARE: u32 = 10;

/// State to remove, and the mode that runs meanwhile.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Stale state that may exist.
    pub(super) stale: Vec<StaleState>,
    pub(super) running: Running,
    /// When the running mode took effect.
    pub(super) since: Instant,
    /// Knows whether there is a successor, which may own all of the state.
    pub(super) handover: Handover,
    /// Errors, of this work and before.
    pub(super) logged: Arc<Mutex<LogOnce>>,
}

impl Work {
    /// Logs an error, once until everything is removed.
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

/// Makes one pass; blocks until it has finished.
pub(super) type Pass = fn(&Work, waited: Duration) -> Option<Passed>;

/// A running removal. When dropped, it ends after the current pass.
pub(super) struct Clearing(JoinHandle<Vec<StaleState>>);

impl Clearing {
    /// Starts to remove. If `work` has no stale state, removes what exists of `reappeared`.
    pub(super) fn begin(work: Work, reappeared: Vec<StaleState>, pass: Pass) -> Clearing {
        Clearing(tokio::spawn(clear_up(work, reappeared, pass)))
    }

    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end, and stores in `stale` what is left. Cancel safe, but must not be called
    /// again after it has returned.
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

/// Makes the real pass: makes the stale state take no new connections, and removes what no
/// connection needs, or all of it after [`PATIENCE`].
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

/// Makes `state` take no new connections. Returns whether connections may still need it; after
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

/// The `states` that exist, or for which that is not known. Listing rules may take seconds, so it
/// runs on another thread; without one, all `states` are returned.
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

/// Returns whether rules may exist whose removal needs programs. They are listed on another thread.
pub(super) async fn takes_programs() -> bool {
    // Fails only while the runtime is shutting down.
    spawn_blocking(rules_of_programs_may_be_there)
        .await
        .unwrap_or(false)
}

/// Runs `work` on this thread; `None` if no runtime can be created for it.
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
            handover: Handover::default(),
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
