//! Serves: joins the source of objects, the runner with its mode, and the reports over HTTP and in
//! Events.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::pin,
    sync::Arc,
    time::SystemTime,
};

use netlink::setting::Setting;
use prometheus::Registry;
use tokio::{
    sync::mpsc::{self, Sender},
    task::JoinSet,
};

use super::{
    Done,
    addresses::{self, Addresses},
    build, confine, ending,
    probe::{self, Chosen},
    programs::{CREDENTIALS, Programs},
    progress,
    report::{self, node_dependents},
    rings,
};
use crate::{
    api_client::{self, RequestMetrics},
    authorize::Authorizer,
    cli::Settings,
    config::{FeatureGate, KubeProxyConfiguration, ModeName},
    ejection,
    events::{self, Event, Recorder},
    first_answer,
    hold::Holding,
    lifecycle,
    modes::{Mode, handover::Handover},
    native_histograms,
    node::{self, NodePorts},
    reset,
    runner::{Runner, health::Health, metrics::Metrics, schedule, status::Status},
    sched::SchedulerName,
    serve::{
        self, About, Bind, Identity, Introspection, Listeners, Secure, StartingApi, StatusApi,
        service_health::ServiceHealth,
    },
    services::{Batch, Tracker},
    watch::{Source, SourceHealth, api, manifests},
};

/// Maximum number of Events that wait for the API server; further ones are dropped.
const EVENTS: usize = 64;

/// Serves until a signal or an error ends the process.
pub(super) async fn serve(settings: Settings) -> Done {
    if let Some(path) = &settings.own.manifests {
        manifests::check(path)?;
    }
    ending::with_signals(|signals| begin_to_serve(settings, signals)).await
}

async fn begin_to_serve(settings: Settings, signals: ending::Signals) -> Done {
    let effective = &settings.effective;
    let node = node::name(&settings.configuration.hostname_override)?;
    let registry = registry(&settings);
    let options = sync_options(&settings.configuration);
    let health = Arc::new(Health::new(2 * options.sync_period));
    let mut serving: JoinSet<Result<(), serve::Error>> = JoinSet::new();
    let listeners = Listeners::default();
    let predecessors = lifecycle::meet(&listeners).await;
    serve_health(&mut serving, &settings, &listeners, &health, &registry)?;
    let starting = serve_status(&settings, &health);
    // Before any change of the node, because the process may end here.
    let mut choice = probe::choose(&settings).await?;
    node::set_oom_score(settings.configuration.oom_score_adj);
    let node_ports = Arc::new(NodePorts::new(&effective.node_ports, effective.node_ip));
    let rings = rings::make(&settings, &mut choice);
    let programs = confine::to_serve(&settings, &mut choice, &rings);
    let source = source(&settings, &registry, &programs).await?;
    let recorder = recorder(&source, &node);
    let node_settings = begin(&choice, &settings, &recorder);

    let metrics = Metrics::register(&registry)?;
    let holder = settings.own.holder_socket.clone();
    let handover = Handover::new(holder.map_or_else(Holding::default, Holding::at));
    let context = build::NodeContext {
        settings: &settings,
        kernel: &choice.kernel,
        node_ports: &node_ports,
        registry: &registry,
        metrics: &metrics,
        rings,
        handover: handover.clone(),
    };
    let mode = choice.mode;
    let (proxy, traffic) = context.serving(mode, &programs)?;
    tracing::info!(%node, %mode, objects = %source, "starting");
    let counted = settings.own.counted();
    let mut runner = Runner::new(
        proxy,
        Tracker::new(&node),
        options,
        Arc::clone(&health),
        metrics,
    );
    serve::endpoint_metrics::register(&registry, counted, runner.status(), Arc::clone(&traffic))?;
    let service_health = service_health(&node_ports, &listeners, &health, &recorder, &registry)?;
    let objects = source_health(&registry, &health, runner.status(), mode, &settings)?;
    let api = Arc::new(StatusApi {
        about: about(&settings, &choice, &node, &source),
        health,
        runner: runner.status(),
        questions: runner.questions(),
        objects: Arc::clone(&objects),
        traffic,
        node_settings,
        listeners: listeners.clone(),
        health_listeners: service_health.listeners(),
        handover: handover.clone(),
    });
    starting.is_known(Arc::clone(&api));
    let pages = Arc::new(introspection(&settings, choice, &registry).with_api(api));
    pages.register()?;
    serve_pages(&mut serving, pages, &listeners, &settings, &source, &node);
    runner.post_to(recorder.clone());
    runner.report_node(&node, node_dependents(&node_ports, &effective.detect_local));
    runner.follow(service_health);
    let addresses = Addresses::open(Arc::clone(&node_ports))?;
    let (sender, batches) = mpsc::channel(1);
    follow(&sender, &mut runner, mode, &registry, recorder)?;
    source.follow(followed(&settings, mode, &node, objects), sender);
    let (taken_over, serves) = lifecycle::take_over(predecessors, handover.clone(), listeners);
    runner.follow(serves);
    let running = pin!(runner.run(batches, Some(addresses), taken_over));
    ending::until_ended(running, serving, handover, programs, &settings, signals).await
}

/// Creates the registry. Native histograms must be enabled before any metric is created.
fn registry(settings: &Settings) -> Registry {
    let native = FeatureGate::NativeHistograms;
    if settings.configuration.is_enabled(native) {
        native_histograms::enable();
    }
    Registry::new()
}

/// Creates the health of the source of objects, registers metrics about it with `registry`, and
/// starts the log until the first sync.
fn source_health(
    registry: &Registry,
    health: &Arc<Health>,
    runner: Arc<Status>,
    mode: ModeName,
    settings: &Settings,
) -> prometheus::Result<Arc<SourceHealth>> {
    let objects = Arc::new(SourceHealth::default());
    serve::state_metrics::register(registry, Arc::clone(&objects), Arc::clone(health))?;
    let start = progress::Start::new(mode, settings);
    tokio::spawn(progress::log(Arc::clone(&objects), runner, start));
    Ok(objects)
}

/// Answers probes from now on, even before the kernel has been examined. If another process is
/// serving, that one answers them.
fn serve_health(
    serving: &mut JoinSet<Result<(), serve::Error>>,
    settings: &Settings,
    listeners: &Listeners,
    health: &Arc<Health>,
    registry: &Registry,
) -> Result<(), serve::Error> {
    if let Some(address) = settings.effective.healthz {
        let at = bind(settings, address, listeners);
        serving.spawn(serve::health(at, Arc::clone(health), registry)?);
    }
    Ok(())
}

/// The settings for following objects, and the health that records it.
fn followed(
    settings: &Settings,
    mode: ModeName,
    node: &str,
    health: Arc<SourceHealth>,
) -> api::Settings {
    api::Settings {
        node_weights: settings.own.node_weights,
        service_cidrs: mode == ModeName::Nftables,
        health,
        ..api::Settings::for_node(node)
    }
}

/// Follows connections, if the kernel forwards them: measures their first answers, and ejects endpoints
/// that do not answer. Userspace mode sees both by itself.
fn follow<M: Mode>(
    batches: &Sender<Batch>,
    runner: &mut Runner<M>,
    mode: ModeName,
    registry: &Registry,
    recorder: Recorder,
) -> prometheus::Result<()> {
    if mode != ModeName::Userspace {
        first_answer::begin(registry)?;
        let metrics = ejection::Metrics::register(registry)?;
        runner.follow(ejection::begin(batches, mode, metrics, recorder.clone()));
    }
    // The others keep connections themselves.
    if matches!(mode, ModeName::Nftables | ModeName::Iptables) {
        runner.follow(reset::begin(registry, recorder)?);
    }
    Ok(())
}

fn sync_options(configuration: &KubeProxyConfiguration) -> schedule::Options {
    let default = schedule::Options::default();
    schedule::Options {
        sync_period: configuration.sync_period,
        min_interval: configuration
            .min_sync_period
            .unwrap_or(default.min_interval),
        ..default
    }
}

/// Returns the recorder that posts Events to the API server, if there is one.
fn recorder(source: &Source, node: &str) -> Recorder {
    match source {
        Source::Folder(_) => Recorder::nowhere(),
        Source::Cluster(access) => {
            let (recorder, events) = Recorder::new(EVENTS);
            tokio::spawn(events::post(access.clone(), node.to_owned(), events));
            recorder
        }
    }
}

/// Prepares the node, and reports to the cluster that this process starts and what it does without.
/// Returns the kernel settings that apply from now on.
fn begin(choice: &Chosen, settings: &Settings, recorder: &Recorder) -> Vec<Setting> {
    recorder.post(Event::starting());
    let node_settings = node::prepare(&settings.configuration, recorder);
    report::report(choice, settings, recorder);
    node_settings
}

/// Content of the pages about this process.
fn introspection(settings: &Settings, choice: Chosen, registry: &Registry) -> Introspection {
    let flags = settings.flags.iter();
    let flags = flags.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let gate = |gate: FeatureGate| serve::Gate {
        name: gate.name(),
        stage: gate.stage(),
        enabled: settings.configuration.is_enabled(gate),
    };
    let running = serve::Running {
        mode: choice.mode,
        named: settings.effective.is_mode_named,
        passed_over: choice.passed_over,
        wanting: choice.wanting,
        gates: FeatureGate::ALL.map(gate).into(),
    };
    let min_sync_period = sync_options(&settings.configuration).min_interval;
    let configuration = settings.configuration.to_configz(min_sync_period);
    Introspection::new(registry.clone(), running, configuration, flags.collect())
}

fn bind(settings: &Settings, address: SocketAddr, listeners: &Listeners) -> Bind {
    Bind {
        address,
        listeners: listeners.clone(),
        hard_fail: settings.configuration.bind_address_hard_fail,
    }
}

/// Serves the API on the configured unix socket, even before the kernel has been examined.
fn serve_status(settings: &Settings, health: &Arc<Health>) -> Arc<StartingApi> {
    let api = Arc::new(StartingApi::new(Arc::clone(health)));
    if let Some(path) = settings.own.status_socket.clone() {
        tokio::spawn(serve::status(path, Arc::clone(&api)));
    }
    api
}

/// Serves `pages` at the configured addresses, which are among `listeners`.
fn serve_pages(
    serving: &mut JoinSet<Result<(), serve::Error>>,
    pages: Arc<Introspection>,
    listeners: &Listeners,
    settings: &Settings,
    source: &Source,
    node: &str,
) {
    if let Some(address) = settings.effective.metrics {
        let at = bind(settings, address, listeners);
        serving.spawn(serve::metrics(at, Arc::clone(&pages)));
    }
    let own = &settings.own;
    if let (Some(address), Source::Cluster(access)) = (own.metrics_secure, source) {
        let identity = match (&own.tls_cert_file, &own.tls_private_key_file) {
            (Some(certificate), Some(key)) => Identity::Files {
                certificate: certificate.clone(),
                key: key.clone(),
            },
            _ => Identity::SelfSigned(vec![node.to_owned(), address.ip().to_string()]),
        };
        let secure = Secure {
            at: bind(settings, address, listeners),
            identity,
            authorizer: Authorizer::new(access),
        };
        serving.spawn(serve::secure_metrics(secure, pages));
    }
}

/// Facts about this process that the API shows and that never change.
fn about(settings: &Settings, choice: &Chosen, node: &str, source: &Source) -> About {
    About {
        started: SystemTime::now(),
        node: node.to_owned(),
        mode: choice.mode,
        passed_over: choice.passed_over.clone(),
        named: settings.effective.is_mode_named,
        lost: choice
            .lost
            .iter()
            .chain(&choice.hides_clients)
            .chain(&choice.epoll_alone)
            .cloned()
            .collect(),
        source: source.to_string(),
        cluster: matches!(source, Source::Cluster(_)),
        scheduler: match choice.mode {
            ModeName::Ipvs => probe::requirements(settings).scheduler,
            ModeName::Userspace => settings.effective.scheduler.to_string(),
            ModeName::Nftables | ModeName::Iptables => SchedulerName::Random.to_string(),
        },
        caller: report::caller(&settings.effective),
    }
}

/// The configured source of objects. Requests to the API server count in metrics of `registry`.
/// Renewing credentials may need one of the `programs`.
async fn source(
    settings: &Settings,
    registry: &Registry,
    programs: &Programs,
) -> Result<Source, Box<dyn std::error::Error>> {
    let metrics = RequestMetrics::register(registry)?;
    let client = &settings.configuration.client_connection;
    let cluster = api_client::Connection {
        kubeconfig: settings.effective.kubeconfig.clone(),
        master: settings.master.clone(),
        qps: client.qps,
        burst: u32::try_from(client.burst).unwrap_or(0),
    };
    let opened = Source::open(settings.own.manifests.clone(), cluster, metrics).await;
    let source = opened
        .map_err(|e| format!("{e}; or serve manifests, a folder or a file, with --manifests"))?;
    if let Source::Cluster(access) = &source
        && programs.are_forbidden()
    {
        let (access, programs) = (access.clone(), programs.clone());
        tokio::spawn(async move {
            access.program_is_refused().await;
            programs.miss(CREDENTIALS);
        });
    }
    Ok(source)
}

/// The server of health-check node ports, with none before the first sync.
fn service_health(
    node_ports: &Arc<NodePorts>,
    listeners: &Listeners,
    health: &Arc<Health>,
    recorder: &Recorder,
    registry: &Registry,
) -> prometheus::Result<ServiceHealth> {
    let served = Arc::clone(node_ports);
    let addresses = move || health_check_addresses(&served);
    let (listeners, health) = (listeners.clone(), Arc::clone(health));
    ServiceHealth::start(addresses, listeners, health, recorder.clone(), registry)
}

/// The addresses at which health-check node ports listen now.
///
/// # Errors
/// When this node's addresses cannot be listed.
fn health_check_addresses(node_ports: &NodePorts) -> io::Result<BTreeSet<IpAddr>> {
    let served = node_ports.served();
    if served.is_whole() {
        return Ok([Ipv6Addr::UNSPECIFIED.into()].into());
    }
    addresses::serving(&served).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli, duration};

    #[test]
    fn flags_name_the_interval_that_is_in_force_without_one() {
        let read = cli::read(["tripod".into()], |_| unreachable!("no file"));
        let settings = read.expect("good flags");
        let interval = duration::format(sync_options(&settings.configuration).min_interval);
        for flag in ["iptables-min-sync-period", "ipvs-min-sync-period"] {
            assert!(settings.flags.contains(&(flag, interval.clone())), "{flag}");
        }
    }
}
