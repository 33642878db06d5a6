//! The end of a process: it waits for connections that would end with it, and for another process
//! that takes new ones.

use std::time::{Duration, Instant};

use crate::modes::handover::Handover;

/// How long there must be no connection before a process with a successor ends:
/// connections that were on their way when the successor began have arrived by
/// then.
const QUIET: Duration = Duration::from_secs(1);

/// Time from one check whether connections have ended to the next.
const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// The condition that a process waits for before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// No connection is left that would end with it.
    Idle,
    /// No new connection would be refused either if a successor is there, which takes them. While no
    /// connection is open, none is waited for.
    Succeeded,
}

/// Waits for the condition `until`, at most for `patience`.
pub async fn drained(handover: &Handover, until: Until, patience: Duration) {
    let deadline = Instant::now() + patience;
    tracing::info!(
        connections = handover.active_connections(),
        "ending when all connections have ended, or in {patience:?}"
    );
    let mut quiet = Instant::now();
    // One that ended early comes again.
    let mut is_replaced = false;
    while Instant::now() < deadline {
        let active = handover.active_connections();
        is_replaced |= until == Until::Succeeded && handover.has_successor();
        if handover.is_held() {
            if active == 0 || Instant::now() + QUIET >= deadline {
                return leave(handover, deadline).await;
            }
        } else if active > 0 || is_replaced && !handover.is_succeeded() {
            quiet = Instant::now();
        } else if !is_replaced && quiet.elapsed() > CHECK_PERIOD || quiet.elapsed() >= QUIET {
            // A worker that was in the middle of accepting has counted it by now.
            return;
        }
        tokio::time::sleep(CHECK_PERIOD).await;
    }
}

/// Leaves new connections to the process after this one, and waits until `deadline` at most for the
/// connections that are open.
async fn leave(handover: &Handover, deadline: Instant) {
    let connections = handover.active_connections();
    tracing::info!(
        connections,
        "new connections wait at the holder for the next process"
    );
    let mut quiet = Instant::now();
    while Instant::now() < deadline {
        handover.leave();
        let is_sent = handover.holding().is_sent();
        if handover.active_connections() > 0 || !is_sent {
            quiet = Instant::now();
        } else if quiet.elapsed() > CHECK_PERIOD {
            // A worker that was in the middle of accepting has counted it by now.
            return;
        }
        tokio::time::sleep(CHECK_PERIOD).await;
    }
}
