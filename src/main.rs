//! Starts the parts and joins them; nothing else.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    process::ExitCode,
    sync::Arc,
};

use ipnet::IpNet;
use prometheus::Registry;
use serde_json::json;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tripod::{
    cli::{self, Command, Serve},
    events::Recorder,
    kernel::{
        addresses::{self, AddressChanges},
        netlink::{Protocol, Socket},
    },
    log,
    modes::{
        choose,
        userspace::{
            self, Capture, Counters, Userspace,
            capture::{self, NodePortAddresses},
        },
    },
    node,
    runner::{Runner, health::Health, metrics::Metrics, pace},
    serve::{self, Bind, Introspection, service_health::ServiceHealth},
    services::Tracker,
    watch,
};

fn main() -> ExitCode {
    let cli = cli::parse();
    log::start(cli.serve.verbosity, log::Format::Text);
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
    let pace = pace::Options::default();
    let health = Arc::new(Health::new(2 * pace.sync_period));
    let proxy = userspace_mode(&options, &registry).await?;
    tracing::info!(%node, %mode, manifests = %manifests.display(), "starting");

    let mut serving: JoinSet<Result<(), serve::Error>> = JoinSet::new();
    let bind = |address| Bind {
        address,
        hard_fail: false,
    };
    if let Some(address) = options.healthz_bind_address.0 {
        let probes = serve::health(bind(address), Arc::clone(&health), &registry)?;
        serving.spawn(probes);
    }
    if let Some(address) = options.metrics_bind_address.0 {
        let about = Introspection::new(registry.clone(), mode, json!({}), BTreeMap::new());
        serving.spawn(serve::metrics(bind(address), about)?);
    }

    let batches = watch::manifests::spawn(manifests);
    let metrics = Metrics::register(&registry)?;
    let mut runner = Runner::new(
        proxy,
        Tracker::new(&node),
        pace,
        Arc::clone(&health),
        metrics,
    );
    let ranges = options.nodeport_addresses.clone();
    runner.follow(ServiceHealth::start(
        move || node_port_addresses(&ranges),
        health,
        Recorder::nowhere(),
    ));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = runner.run(batches, Some(AddressChanges::open()?)) => {
            Err("the source of objects ended unexpectedly".into())
        }
        Some(Ok(Err(error))) = serving.join_next() => Err(error.into()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Where node ports are served now: the node's addresses within `ranges`, or
/// every address.
fn node_port_addresses(ranges: &[IpNet]) -> Vec<IpAddr> {
    if ranges.is_empty() {
        return vec![Ipv6Addr::UNSPECIFIED.into()];
    }
    let listed = Socket::open(Protocol::Route).and_then(|mut socket| addresses::list(&mut socket));
    match listed {
        Ok(all) => {
            let all = all.into_iter().map(|address| address.address);
            all.filter(|ip| ranges.iter().any(|range| range.contains(ip)))
                .collect()
        }
        Err(error) => {
            tracing::error!("health-check node ports are closed until the next full sync: {error}");
            Vec::new()
        }
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
