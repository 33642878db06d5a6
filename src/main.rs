//! Starts the parts and joins them; nothing else.

use std::{process::ExitCode, sync::Arc};

use prometheus::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tripod::{
    cli::{self, Command, Serve},
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
    let cli = cli::parse();
    log::start(cli.serve.verbosity);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(async {
            match cli.command {
                Some(Command::Cleanup) => cleanup().await,
                None if cli.serve.cleanup => cleanup().await,
                None => run(cli.serve).await,
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

async fn run(options: Serve) -> Done {
    let manifests = options.manifests.as_deref().ok_or(
        "nothing to serve: this version reads objects from a folder only; name it with --manifests DIR",
    )?;
    let node = node::name(&options.hostname_override)?;
    if let Some(warning) = &options.ipvs_scheduler.warning {
        tracing::warn!("{warning}");
    }
    let (mode, passed_over) = choose::choose(options.proxy_mode.into());
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
    let proxy = userspace_mode(&options, &registry).await?;
    tracing::info!(%node, %mode, manifests = %manifests.display(), "starting");
    if let Some(address) = options.healthz_bind_address.0 {
        tokio::spawn(serve::health(address, Arc::clone(&health)));
    }
    if let Some(address) = options.metrics_bind_address.0 {
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
    }
}

async fn userspace_mode(
    options: &Serve,
    registry: &Registry,
) -> Result<Userspace, Box<dyn std::error::Error>> {
    let choice = capture::choose(options.userspace_capture.into()).await?;
    for reason in &choice.reasons {
        tracing::info!("{reason}");
    }
    let node_ports = match options.nodeport_addresses.as_slice() {
        [] => NodePortAddresses::All,
        ranges => NodePortAddresses::Within(ranges.to_vec()),
    };
    let capture = Capture::new(choice, node_ports).await?;
    let options = userspace::Options {
        port_range: options.proxy_port_range.0.clone(),
        udp_timeout: options.udp_timeout,
        scheduler: options.ipvs_scheduler.name,
        node_port_addresses: options.nodeport_addresses.clone(),
        workers: userspace::workers(options.userspace_workers),
    };
    Ok(Userspace::new(
        options,
        capture,
        Counters::register(registry)?,
    )?)
}
