//! Joins the parts of the program as the settings request. No other module uses all of them.

mod addresses;
mod build;
mod chosen;
mod confine;
mod ending;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod migrate;
mod mode;
mod privileges;
mod probe;
mod programs;
mod progress;
mod render;
mod report;
mod rings;
mod serve;
mod takeover;
mod traffic;

use std::{error::Error, path::Path, process::ExitCode, sync::Arc};

use netlink::unix_listeners;
use prometheus::Registry;

pub use self::confine::confine;
use crate::{
    ask,
    cli::{Cleanup, Job, Settings},
    events::Recorder,
    hold,
    modes::{handover::Handover, userspace::Rings},
    node::{self, NodePorts},
    runner::metrics::Metrics,
    test, trace,
};

/// Result of a job; an error is logged, and the exit status is 1.
pub type Done = Result<(), Box<dyn Error>>;

/// Runs the job that the settings request. Returns the exit status.
///
/// # Errors
/// When the job failed, with the reason in words for the operator.
pub async fn run(settings: Settings) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(why) = privileges::lacking(&settings.job) {
        return match settings.job {
            // These print their errors themselves, because exit status 1 would mean an answer.
            Job::Trace(_) => Ok(trace::unable(&why)),
            Job::Migrate(_) => Ok(migrate::failed(&why)),
            _ => Err(why.into()),
        };
    }
    let done = match &settings.job {
        Job::Ask(question) => return Ok(ask::ask(question).await),
        Job::Trace(asked) => return Ok(trace::trace(asked).await),
        Job::Migrate(asked) => return Ok(migrate::check(asked).await),
        Job::Check(asked) => return Ok(test::check(asked).await),
        Job::Test(asked) => return Ok(test::test(asked).await),
        Job::TestServer(asked) => return Ok(test::serve(asked).await),
        Job::WriteConfig(path) => write_config(&settings, path),
        Job::Cleanup(what) => cleanup(&settings, *what).await,
        Job::Init => init(&settings).await,
        Job::Probe(format) => probe::print(&settings, format.output),
        Job::Render => render::render(&settings).await,
        Job::Hold(asked) => hold::hold(&asked.socket).await,
        Job::Serve => serve::serve(settings).await,
        // The command line answers them.
        Job::Completion { .. } | Job::Man { .. } | Job::Version => Ok(()),
    };
    done.map(|()| ExitCode::SUCCESS)
}

async fn cleanup(settings: &Settings, what: Cleanup) -> Done {
    if let Some(socket) = &settings.own.status_socket
        && (ask::is_running(socket).await && !unix_listeners::is_elsewhere(socket)
            || is_listened_on(socket))
    {
        let why = format!(
            "nothing was removed: Tripod runs on this node (socket {}) and would write it again; \
             stop it, then run the cleanup again",
            socket.display()
        );
        return Err(why.into());
    }
    takeover::cleanup(what, settings).await
}

/// Returns whether a process listens on that socket in a file system of its own, for example in a
/// pod.
fn is_listened_on(socket: &Path) -> bool {
    let mut all = unix_listeners::paths().unwrap_or_default().into_iter();
    all.any(|path| path == socket)
}

/// Makes the changes that need full privileges, for a process that will run without them.
async fn init(settings: &Settings) -> Done {
    let choice = probe::choose(settings).await?;
    // After the kernel was probed: probing loads nf_conntrack, without which there are no settings
    // to change.
    node::prepare(&settings.configuration, &Recorder::nowhere());
    probe::write_findings(&choice.found);
    let mode = choice.mode;
    let registry = Registry::new();
    let effective = &settings.effective;
    let context = build::NodeContext {
        settings,
        kernel: &choice.kernel,
        node_ports: &Arc::new(NodePorts::new(&effective.node_ports, effective.node_ip)),
        registry: &registry,
        metrics: &Metrics::register(&registry)?,
        rings: Rings::default(),
        handover: Handover::default(),
    };
    context.mode(mode)?.prepare().await?;
    tracing::info!(%mode, "this node is prepared");
    Ok(())
}

fn write_config(settings: &Settings, path: &Path) -> Done {
    let yaml = settings.configuration.to_yaml()?;
    std::fs::write(path, yaml).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    tracing::info!(file = %path.display(), "wrote the configuration");
    for line in settings.configuration.unwritable() {
        tracing::warn!("{}: {line}", path.display());
    }
    Ok(())
}
