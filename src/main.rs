//! Starts the parts and joins them; nothing else.

use std::{
    net::{IpAddr, Ipv6Addr},
    path::Path,
    process::ExitCode,
    sync::Arc,
};

use prometheus::Registry;
use tokio::{
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tripod::{
    cli::{self, Job, Settings},
    config::{self, ConfigFile},
    events::{self, Event, Recorder},
    kernel::{
        addresses::{self, AddressChanges},
        netlink::{Protocol, Socket},
    },
    log,
    modes::{
        choose,
        userspace::{self, Capture, Counters, Userspace, capture},
    },
    node::{self, NodePorts, Served},
    runner::{Runner, health::Health, metrics::Metrics, pace},
    serve::{self, Bind, Introspection, service_health::ServiceHealth},
    services::Tracker,
    watch::{self, Source},
};

fn main() -> ExitCode {
    let settings = match cli::from_process() {
        Ok(settings) => settings,
        Err(stop) => return stop.print(),
    };
    let logging = &settings.configuration.logging;
    let format = match logging.format.as_str() {
        "json" => log::Format::Json,
        _ => log::Format::Text,
    };
    log::start(u8::try_from(logging.verbosity).unwrap_or(u8::MAX), format);
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
                Job::Init => {
                    node::prepare(&settings.configuration, &Recorder::nowhere());
                    Ok(())
                }
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

/// Events that may wait for the API server; more are dropped.
const EVENTS: usize = 64;

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
    let node = node::name(&settings.configuration.hostname_override)?;
    let source = source(&settings).await?;
    let recorder = match &source {
        Source::Folder(_) => Recorder::nowhere(),
        Source::Cluster(access) => {
            let (recorder, events) = Recorder::new(EVENTS);
            tokio::spawn(events::post(access.clone(), node.clone(), events));
            recorder
        }
    };
    recorder.post(Event::starting());
    node::prepare(&settings.configuration, &recorder);
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
    let default = pace::Options::default();
    let pace = pace::Options {
        sync_period: effective.sync_period,
        min_interval: effective.min_sync_period.unwrap_or(default.min_interval),
        ..default
    };
    let health = Arc::new(Health::new(2 * pace.sync_period));
    let node_ports = Arc::new(NodePorts::new(&effective.node_ports, effective.node_ip));
    let proxy = userspace_mode(&settings, Arc::clone(&node_ports), &registry).await?;
    tracing::info!(%node, %mode, objects = %source, "starting");

    let mut serving: JoinSet<Result<(), serve::Error>> = JoinSet::new();
    let bind = |address| Bind {
        address,
        hard_fail: settings.configuration.bind_address_hard_fail,
    };
    if let Some(address) = effective.healthz {
        let probes = serve::health(bind(address), Arc::clone(&health), &registry)?;
        serving.spawn(probes);
    }
    if let Some(address) = effective.metrics {
        let flags = settings
            .flags
            .iter()
            .map(|(k, v)| ((*k).to_owned(), v.clone()));
        let about = Introspection::new(
            registry.clone(),
            mode,
            settings.configuration.to_value(),
            flags.collect(),
        );
        serving.spawn(serve::metrics(bind(address), about)?);
    }

    let metrics = Metrics::register(&registry)?;
    let mut runner = Runner::new(
        proxy,
        Tracker::new(&node),
        pace,
        Arc::clone(&health),
        metrics,
    );
    runner.post_to(recorder.clone());
    runner.follow(ServiceHealth::start(
        move || health_check_addresses(&node_ports),
        health,
        recorder,
    ));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        () = runner.run(source.follow(&node), Some(AddressChanges::open()?)) => {
            Err("the source of objects ended unexpectedly".into())
        }
        Some(Ok(Err(error))) = serving.join_next() => Err(error.into()),
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        changed = config_changed(settings.file.as_ref()) => Err(changed.into()),
    }
}

/// Where objects come from, as the settings say.
async fn source(settings: &Settings) -> Result<Source, Box<dyn std::error::Error>> {
    let client = &settings.configuration.client_connection;
    let cluster = watch::api::Connection {
        kubeconfig: settings.effective.kubeconfig.clone(),
        master: settings.master.clone(),
        qps: client.qps,
        burst: u32::try_from(client.burst).unwrap_or(0),
    };
    let opened = Source::open(settings.own.manifests.clone(), cluster).await;
    Ok(opened.map_err(|e| format!("{e}; or serve a folder of manifests with --manifests DIR"))?)
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

/// Where health-check node ports listen now.
fn health_check_addresses(node_ports: &NodePorts) -> Vec<IpAddr> {
    let served = node_ports.served();
    if *served == Served::All {
        return vec![Ipv6Addr::UNSPECIFIED.into()];
    }
    let listed = Socket::open(Protocol::Route).and_then(|mut socket| addresses::list(&mut socket));
    match listed {
        Ok(all) => {
            let all = all.into_iter().map(|address| address.address);
            all.filter(|ip| served.contains(ip)).collect()
        }
        Err(error) => {
            tracing::error!("health-check node ports are closed until the next full sync: {error}");
            Vec::new()
        }
    }
}

/// How userspace mode tells pods from others.
fn detect_local(configured: &config::DetectLocal) -> userspace::DetectLocal {
    match configured {
        config::DetectLocal::ClusterCidr(cidrs) => userspace::DetectLocal::Within(cidrs.clone()),
        config::DetectLocal::NodeCidr => userspace::DetectLocal::PodCidrs,
        config::DetectLocal::BridgeInterface(link)
        | config::DetectLocal::InterfaceNamePrefix(link) => {
            tracing::warn!(
                "userspace mode cannot tell pods by their link ({link}): to a Service with \
                 externalTrafficPolicy Local they are as callers from outside; set \
                 detectLocalMode to ClusterCIDR or NodeCIDR"
            );
            userspace::DetectLocal::Unknown
        }
    }
}

async fn userspace_mode(
    settings: &Settings,
    node_ports: Arc<NodePorts>,
    registry: &Registry,
) -> Result<Userspace, Box<dyn std::error::Error>> {
    let choice = capture::choose(settings.own.capture).await?;
    for reason in &choice.reasons {
        tracing::info!("{reason}");
    }
    let effective = &settings.effective;
    let capture = Capture::new(choice).await?;
    let options = userspace::Options {
        port_range: effective.proxy_ports.clone(),
        udp_timeout: settings.own.udp_timeout,
        scheduler: effective.scheduler,
        node_ports,
        detect_local: detect_local(&effective.detect_local),
        workers: userspace::workers(settings.own.workers),
    };
    Ok(Userspace::new(
        options,
        capture,
        Counters::register(registry)?,
    )?)
}
