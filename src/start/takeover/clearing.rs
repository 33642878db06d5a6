//! Removing what other modes left, beside the syncs of the mode that runs.
//!
//! Counting connections means listing all that the kernel has, and a program
//! may wait for a lock: all of that happens on threads of its own. Neither a
//! sync nor whoever asks whether this process lives waits for it.

use std::{future::Future, sync::Arc};

use ipnet::IpNet;
use tokio::{
    runtime,
    task::{JoinHandle, spawn_blocking},
    time::{Duration, Instant, sleep},
};

use super::leftover::{Leftover, Running};

/// How long connections may keep something from being removed that they need.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Time from one pass to the next, while connections keep something.
pub(super) const PAUSE: Duration = Duration::from_secs(5);
/// A pass that takes long takes at most this share of a thread's time.
const SHARE: u32 = 10;

/// What to clear up, and beside what.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// What may be there.
    pub(super) left: Vec<Leftover>,
    pub(super) running: Running,
    /// Virtual servers with addresses in these are somebody else's.
    pub(super) exclude: Arc<[IpNet]>,
    /// When the running mode came in force.
    pub(super) since: Instant,
}

/// What one pass came to.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// What connections still need.
    pub(super) kept: Vec<Leftover>,
    /// What could not be removed.
    pub(super) failed: Vec<Leftover>,
}

/// Makes one pass; blocks for as long as that takes.
pub(super) type Pass = fn(&Work, waited: Duration) -> Option<Passed>;

/// Work under way. Ends when it is dropped, after the pass that it is in.
pub(super) struct Clearing(JoinHandle<Vec<Leftover>>);

impl Clearing {
    /// Begins. `back` is looked for first, where nothing else is left.
    pub(super) fn begin(work: Work, back: Vec<Leftover>, pass: Pass) -> Clearing {
        Clearing(tokio::spawn(clear_up(work, back, pass)))
    }

    /// Returns whether the clearing has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for the end, and puts into `left` what is left for another time. May
    /// be dropped while it waits; not to be called again afterwards.
    pub(super) async fn end(&mut self, left: &mut Vec<Leftover>) {
        if let Ok(later) = (&mut self.0).await {
            *left = later;
        }
    }
}

impl Drop for Clearing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn clear_up(mut work: Work, back: Vec<Leftover>, pass: Pass) -> Vec<Leftover> {
    if work.left.is_empty() && !back.is_empty() {
        work.left = these(back, work.running.clone()).await;
    }
    let mut failed = Vec::new();
    while !work.left.is_empty() {
        let begun = Instant::now();
        let waited = work.since.elapsed();
        let now = work.clone();
        let Ok(Some(passed)) = spawn_blocking(move || pass(&now, waited)).await else {
            break;
        };
        failed.extend(passed.failed);
        work.left = passed.kept;
        if !work.left.is_empty() {
            sleep(PAUSE.max(begun.elapsed() * SHARE)).await;
        }
    }
    failed.extend(work.left);
    if failed.is_empty() {
        tracing::debug!("nothing is left of other modes");
    }
    failed
}

/// Makes the real pass: has what is left take no new connections, and removes
/// what no connection needs, or all of it after [`PATIENCE`].
pub(super) fn pass(work: &Work, waited: Duration) -> Option<Passed> {
    let mut passed = Passed::default();
    blocking(async {
        for &leftover in &work.left {
            if waited < PATIENCE {
                match leftover.retire(&work.running, &work.exclude).await {
                    Ok(0) => {}
                    Ok(connections) => {
                        tracing::debug!(connections, "{leftover} still carries some");
                        passed.kept.push(leftover);
                        continue;
                    }
                    Err(error) => tracing::debug!("connections of {leftover}: {error}"),
                }
            }
            if let Err(error) = leftover.clean(Some(&work.running), &work.exclude).await {
                tracing::warn!("what {leftover} left is not all gone: {error}");
                passed.failed.push(leftover);
            }
        }
    })?;
    Some(passed)
}

/// Returns those of `leftovers` that are there. Listing rules may take seconds,
/// so that it is done on another thread; where there is none to be had, all of
/// them.
pub(super) async fn these(leftovers: Vec<Leftover>, running: Running) -> Vec<Leftover> {
    let all = leftovers.clone();
    let find = move || {
        blocking(async {
            let mut there = Vec::new();
            for leftover in leftovers {
                if leftover.is_there(&running).await {
                    there.push(leftover);
                }
            }
            there
        })
    };
    spawn_blocking(find).await.ok().flatten().unwrap_or(all)
}

/// Runs `work` on this thread; `None` if no runtime can be had for it.
fn blocking<T>(work: impl Future<Output = T>) -> Option<T> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => Some(runtime.block_on(work)),
        Err(error) => {
            tracing::warn!("what other modes left stays for now: no runtime: {error}");
            None
        }
    }
}
