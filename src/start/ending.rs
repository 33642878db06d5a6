//! The reasons for which a process ends: signals, errors, a changed configuration.

use std::{future::pending, io, pin::Pin};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};

use super::{Done, programs::Programs};
use crate::{
    cli::Settings,
    config::{self, ConfigFile},
    lifecycle::{Until, drained},
    modes::handover::Handover,
    serve,
};

/// The signals that end the process.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Signals that [`until_ended`] handles them from now on.
    acted_on: Option<oneshot::Sender<()>>,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            acted_on: None,
        })
    }

    /// Waits for a signal, until they are handled elsewhere.
    async fn before(mut self, acted_on: oneshot::Receiver<()>) {
        tokio::select! {
            biased;
            // The sender may also be dropped without sending: then the job is about to end.
            _ = acted_on => pending().await,
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        tracing::info!("ending before anything is served");
    }
}

/// Runs a job that ends with [`until_ended`]; an earlier signal ends it at once. The first process
/// of a PID namespace, for example of a container, only gets signals that it handles
/// (pid_namespaces(7)): an early signal would be lost.
pub(super) async fn with_signals<Job: Future<Output = Done>>(
    job: impl FnOnce(Signals) -> Job,
) -> Done {
    let (early, mut signals) = (Signals::new()?, Signals::new()?);
    let (sender, acted_on) = oneshot::channel();
    signals.acted_on = Some(sender);
    tokio::select! {
        biased;
        done = job(signals) => done,
        () = early.before(acted_on) => Ok(()),
    }
}

/// Serves until the process may end, and leaves its sockets to the holder if there is one.
pub(super) async fn until_ended(
    running: Pin<&mut impl Future<Output = ()>>,
    serving: JoinSet<Result<(), serve::Error>>,
    handover: Handover,
    programs: Programs,
    settings: &Settings,
    signals: Signals,
) -> Done {
    let ended = until_drained(running, serving, &handover, &programs, settings, signals).await;
    if handover.is_held() {
        handover.leave();
    } else if handover.has_successor() {
        handover.leave_to_successor();
    }
    ended
}

/// Waits until a signal or an error ends the process, and then for the connections that would end
/// with it.
async fn until_drained(
    mut running: Pin<&mut impl Future<Output = ()>>,
    mut serving: JoinSet<Result<(), serve::Error>>,
    handover: &Handover,
    programs: &Programs,
    settings: &Settings,
    mut signals: Signals,
) -> Done {
    drop(signals.acted_on.take());
    let Signals {
        terminate,
        interrupt,
        ..
    } = &mut signals;
    let (ended, until): (Done, _) = tokio::select! {
        () = &mut running => return Err(SOURCE_ENDED.into()),
        Some(Ok(Err(error))) = serving.join_next() => return Err(error.into()),
        _ = terminate.recv() => (Ok(()), Until::Succeeded),
        _ = interrupt.recv() => (Ok(()), Until::Idle),
        // The supervisor starts the process again.
        changed = config_changed(settings.file.as_ref()) => (Err(changed.into()), Until::Idle),
        missed = programs.missed() => (Err(missed.into()), Until::Idle),
    };
    if !handover.has_served() {
        return ended;
    }
    if let Err(reason) = &ended {
        tracing::warn!("{reason}");
    }
    // The mode keeps following the cluster: new connections arrive until another process takes
    // them.
    tokio::select! {
        () = drained(handover, until, settings.own.drain_timeout) => ended,
        () = &mut running => Err(SOURCE_ENDED.into()),
        _ = terminate.recv() => ended,
        _ = interrupt.recv() => ended,
    }
}

const SOURCE_ENDED: &str = "the source of objects ended unexpectedly";

/// Waits until the configuration file changes. Returns the error to exit with.
async fn config_changed(file: Option<&ConfigFile>) -> String {
    let Some(file) = file else {
        return pending().await;
    };
    let path = file.path.display();
    match config::watch_file(file).await {
        Ok(()) => format!(
            "{path} has changed: ending, so that the next process uses the new configuration"
        ),
        Err(e) => format!("cannot watch {path}: {e}"),
    }
}
