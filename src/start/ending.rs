//! When the process ends, and what it waits for before: connections that would end with it, and
//! another process that takes new ones.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};

use super::{Done, programs::Programs};
use crate::{
    cli::Settings,
    config::{self, ConfigFile},
    hold::Holding,
    modes::handover::Handover,
    serve,
};

/// How long there must be no connection before a process with a successor ends:
/// connections that were on their way when the successor began have arrived by
/// then.
const QUIET: Duration = Duration::from_secs(1);

/// Time from one check whether connections have ended to the next.
const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// Serves until the process may end, and leaves its sockets to the holder if there is one.
pub(super) async fn until_ended(
    running: Pin<&mut impl Future<Output = ()>>,
    serving: JoinSet<Result<(), serve::Error>>,
    handover: Handover,
    programs: Programs,
    settings: &Settings,
) -> Done {
    let ended = until_drained(running, serving, &handover, &programs, settings).await;
    if handover.is_held() {
        handover.leave();
    }
    ended
}

/// Waits until a signal, or an error, ends the process, and then for the connections
/// that would end with it.
async fn until_drained(
    mut running: Pin<&mut impl Future<Output = ()>>,
    mut serving: JoinSet<Result<(), serve::Error>>,
    handover: &Handover,
    programs: &Programs,
    settings: &Settings,
) -> Done {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ended, until): (Done, _) = tokio::select! {
        () = &mut running => return Err(SOURCE_ENDED.into()),
        Some(Ok(Err(error))) = serving.join_next() => return Err(error.into()),
        _ = terminate.recv() => (Ok(()), Until::Succeeded),
        _ = interrupt.recv() => (Ok(()), Until::Idle),
        // The supervisor starts the process again when it has ended.
        changed = config_changed(settings.file.as_ref()) => (Err(changed.into()), Until::Idle),
        missed = programs.missed() => (Err(missed.into()), Until::Idle),
    };
    if !handover.has_served() {
        return ended;
    }
    if let Err(reason) = &ended {
        tracing::warn!("{reason}");
    }
    // The cluster is followed meanwhile: new connections come in until another process takes them.
    tokio::select! {
        () = drained(handover, until, settings.own.drain_timeout) => ended,
        () = &mut running => Err(SOURCE_ENDED.into()),
        _ = terminate.recv() => ended,
        _ = interrupt.recv() => ended,
    }
}

const SOURCE_ENDED: &str = "the source of objects ended unexpectedly";

/// The condition that a process waits for before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// No connection is left that would end with it.
    Idle,
    /// No new connection would be refused either: a successor takes them.
    Succeeded,
}

/// Waits for the condition `until`, at most for `patience`.
async fn drained(handover: &Handover, until: Until, patience: Duration) {
    let deadline = Instant::now() + patience;
    tracing::info!(
        connections = handover.active_connections(),
        "ending when connections have, or in {patience:?}"
    );
    let mut quiet = Instant::now();
    while Instant::now() < deadline {
        let active = handover.active_connections();
        if handover.is_held() {
            if active == 0 || Instant::now() + QUIET >= deadline {
                return leave(handover, deadline).await;
            }
        } else if active > 0 || until == Until::Succeeded && !handover.is_succeeded() {
            quiet = Instant::now();
        } else if until == Until::Idle || quiet.elapsed() >= QUIET {
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
        let is_sent = handover.holding().is_none_or(Holding::is_sent);
        if handover.active_connections() > 0 || !is_sent {
            quiet = Instant::now();
        } else if quiet.elapsed() > CHECK_PERIOD {
            // A worker that was in the middle of accepting has counted it by now.
            return;
        }
        tokio::time::sleep(CHECK_PERIOD).await;
    }
}

/// Waits until the configuration file is changed. Returns the message to end
/// with.
async fn config_changed(file: Option<&ConfigFile>) -> String {
    let Some(file) = file else {
        return std::future::pending().await;
    };
    let path = file.path.display();
    match config::watch_file(file).await {
        Ok(()) => format!("{path} was changed: ending, to be started again with what it says now"),
        Err(e) => format!("cannot watch {path}: {e}"),
    }
}
