//! Starts the parts and joins them; nothing else.

use std::{path::Path, process::ExitCode, sync::Arc};

use prometheus::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tripod::{
    cli::{self, Job, Settings},
    config::{self, ConfigFile},
    kernel::addresses::AddressChanges,
    log,
    modes::{
        choose,
        userspace::{
            self, Capture, Counters, Userspace,
            capture::{self, NodePortAddresses},
        },
    },
    node,
    runner::{Health, Runner},
    serve,
    services::Tracker,
    watch,
};

fn main() -> ExitCode {
    let settings = match cli::from_process() {
        Ok(settings) => settings,
        Err(stop) => return stop.print(),
    };
    log::start(u8::try_from(settings.configuration.logging.verbosity).unwrap_or(u8::MAX));
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(async {
            match &settings.job {
                Job::WriteConfig(path) => write_config(&settings, path),
                Job::Cleanup => cleanup().await,
                Job::Init => Ok(()),
                Job::Serve => run(settings).await,
            }
        }),
        Err(e) => Err(format!("cannot start: {e}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e}");
            ExitCode::FAILURE
        }
    }
}

type Done = Result<(), Box<dyn std::error::Error>>;

async fn cleanup() -> Done {
    userspace::cleanup().await?;
    tracing::info!("removed what Tripod had installed");
    Ok(())
}

fn write_config(settings: &Settings, path: &Path) -> Done {
    let yaml = settings.configuration.to_yaml()?;
    std::fs::write(path, yaml).map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    tracing::info!(file = %path.display(), "wrote the configuration");
    Ok(())
}

async fn run(settings: Settings) -> Done {
    let effective = &settings.effective;
    let manifests = settings.own.manifests.as_deref().ok_or(
        "nothing to serve: this version reads objects from a folder only; name it with --manifests DIR",
    )?;
    let node = node::name(&settings.configuration.hostname_override)?;
    let (mode, passed_over) = choose::choose(effective.mode);
    for (better, missing) in passed_over {
        for lack in missing {
            tracing::warn!(
                "not running in {better} mode: {}; {}",
                lack.what,
                lack.remedy
            );
        }
    }

    let registry = Registry::new();
    let health = Arc::new(Health::default());
    let proxy = userspace_mode(&settings, &registry).await?;
    tracing::info!(%node, %mode, manifests = %manifests.display(), "starting");
    if let Some(address) = effective.healthz {
        tokio::spawn(serve::health(address, Arc::clone(&health)));
    }
    if let Some(address) = effective.metrics {
        tokio::spawn(serve::metrics(address, registry, mode));
    }

    let batches = watch::manifests::spawn(manifests);
    let mut runner = Runner::new(proxy, Tracker::new(&node), health);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = runner.run(batches, Some(AddressChanges::open()?)) => {
            Err("the source of objects ended unexpectedly".into())
        }
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        changed = config_changed(settings.file.as_ref()) => Err(changed.into()),
    }
}

/// Ends when the configuration file was changed: with what to say about it.
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

async fn userspace_mode(
    settings: &Settings,
    registry: &Registry,
) -> Result<Userspace, Box<dyn std::error::Error>> {
    let choice = capture::choose(settings.own.capture).await?;
    for reason in &choice.reasons {
        tracing::info!("{reason}");
    }
    let effective = &settings.effective;
    let (node_ports, ranges) = match &effective.node_ports {
        config::NodePortAddresses::Within(ranges) => {
            (NodePortAddresses::Within(ranges.clone()), ranges.clone())
        }
        config::NodePortAddresses::All => (NodePortAddresses::All, Vec::new()),
        config::NodePortAddresses::Primary => {
            tracing::warn!(
                "node ports are served on all addresses: `primary` is not known to this version"
            );
            (NodePortAddresses::All, Vec::new())
        }
    };
    let capture = Capture::new(choice, node_ports).await?;
    let options = userspace::Options {
        port_range: effective.proxy_ports.clone(),
        udp_timeout: settings.own.udp_timeout,
        scheduler: effective.scheduler,
        node_port_addresses: ranges,
        workers: userspace::workers(settings.own.workers),
    };
    Ok(Userspace::new(
        options,
        capture,
        Counters::register(registry)?,
    )?)
}
