//! Serves: joins the source of objects, the runner with its mode, and what is
//! reported over HTTP and in Events.

use std::{
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use prometheus::Registry;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::Receiver,
    task::JoinSet,
};

use super::{
    Done,
    addresses::{self, Addresses},
    build, confine,
    probe::{self, Chosen},
    progress, succession,
    takeover::TakeOver,
    traffic,
};
use crate::{
    api_client::{self, RequestMetrics},
    authorize::Authorizer,
    cli::Settings,
    config::{self, ConfigFile, Effective},
    ejection,
    events::{self, Event, Recorder},
    hold::Holding,
    modes::{
        Mode,
        userspace::{self, Handover},
    },
    net::{DetectLocal, Family, ModeName},
    node::{self, NodePorts, Served},
    runner::{Runner, health::Health, metrics::Metrics, schedule},
    sched::SchedulerName,
    serve::{
        self, About, Bind, Identity, Introspection, Listeners, Secure, StatusApi,
        service_health::ServiceHealth,
    },
    services::{Batch, Tracker},
    watch::{Source, SourceHealth, api},
};

/// Events that may wait for the API server; more are dropped.
const EVENTS: usize = 64;

/// How long there must be no connection before a process with a successor ends:
/// connections that were on their way when the successor began have arrived by
/// then.
const QUIET: Duration = Duration::from_secs(1);

/// Time from one check whether connections have ended to the next.
const CHECK_PERIOD: Duration = Duration::from_millis(50);

/// Serves until a signal, or an error, ends the process.
pub(super) async fn serve(settings: Settings) -> Done {
    let effective = &settings.effective;
    let node = node::name(&settings.configuration.hostname_override)?;
    let registry = Registry::new();
    let options = sync_options(effective);
    let health = Arc::new(Health::new(2 * options.sync_period));
    let mut serving: JoinSet<Result<(), serve::Error>> = JoinSet::new();
    let listeners = Listeners::default();
    succession::inherit_ports(&listeners).await;
    // Probes are answered from here on, also while it is not known what the
    // kernel can do; where another process serves now, that one answers them.
    if let Some(address) = effective.healthz {
        let at = bind(&settings, address, &listeners);
        let probes = serve::health(at, Arc::clone(&health), &registry)?;
        serving.spawn(probes);
    }
    // This comes before any change of the node: the process may end here.
    let choice = probe::choose(&settings).await?;
    node::set_oom_score(settings.configuration.oom_score_adj);
    confine::to_serve(&settings, choice.mode);
    let source = source(&settings, &registry).await?;
    let recorder = recorder(&source, &node);
    recorder.post(Event::starting());
    let node_settings = node::prepare(&settings.configuration, &recorder);
    report(&choice, &settings, &recorder);

    let node_ports = Arc::new(NodePorts::new(&effective.node_ports, effective.node_ip));
    let metrics = Metrics::register(&registry)?;
    let context = build::NodeContext {
        settings: &settings,
        kernel: &choice.kernel,
        node_ports: &node_ports,
        registry: &registry,
        metrics: &metrics,
    };
    let mode = choice.mode;
    let proxy = context.mode(mode)?;
    tracing::info!(%node, %mode, objects = %source, "starting");

    let handover = proxy.handover();
    let counted = settings.own.counted();
    let traffic = traffic::source(&proxy, &node_ports, &counted);
    let mut runner = Runner::new(
        TakeOver::new(
            proxy,
            settings.effective.ipvs_exclude.clone(),
            handover.clone(),
        ),
        Tracker::new(&node),
        options,
        Arc::clone(&health),
        metrics,
    );
    serve::endpoint_metrics::register(&registry, counted, runner.status(), Arc::clone(&traffic))?;
    let service_health = service_health(&node_ports, &listeners, &health, &recorder, &registry)?;
    let objects = Arc::new(SourceHealth::default());
    tokio::spawn(progress::log(Arc::clone(&objects), runner.status()));
    let api = Arc::new(StatusApi {
        about: about(&settings, &choice, &node, &source),
        health,
        runner: runner.status(),
        questions: runner.questions(),
        objects: Arc::clone(&objects),
        traffic,
        node_settings,
        health_listeners: service_health.listeners(),
    });
    serve_status(&settings, &api);
    let pages = introspection(&settings, choice, &registry).with_api(api);
    pages.register()?;
    let pages = (Arc::new(pages), &listeners);
    serve_pages(&mut serving, pages, &settings, &source, &node);
    runner.post_to(recorder.clone());
    runner.follow(service_health);
    let addresses = Addresses::open(Arc::clone(&node_ports))?;
    let batches = source.follow(api::Settings {
        node_weights: settings.own.node_weights,
        service_cidrs: mode == ModeName::Nftables,
        health: objects,
        ..api::Settings::for_node(&node)
    });
    let batches = ejecting(batches, &mut runner, mode, (&registry, recorder))?;
    let sockets = userspace::workers(settings.own.workers);
    let (batches, serves) = succession::announced(batches, sockets, handover.clone(), listeners);
    runner.follow(serves);
    let running = pin!(runner.run(batches, Some(addresses)));
    until_ended(running, serving, handover, &settings).await
}

/// Has endpoints that do not answer ejected, where the kernel carries their connections:
/// userspace mode sees itself which of them answer. Returns the batches for the runner.
fn ejecting<M: Mode>(
    batches: Receiver<Batch>,
    runner: &mut Runner<M>,
    mode: ModeName,
    (registry, recorder): (&Registry, Recorder),
) -> prometheus::Result<Receiver<Batch>> {
    if mode == ModeName::Userspace {
        return Ok(batches);
    }
    let metrics = ejection::Metrics::register(registry)?;
    let (batches, follower) = ejection::begin(batches, metrics, recorder);
    runner.follow(follower);
    Ok(batches)
}

/// Returns when syncs are due.
fn sync_options(effective: &Effective) -> schedule::Options {
    let default = schedule::Options::default();
    schedule::Options {
        sync_period: effective.sync_period,
        min_interval: effective.min_sync_period.unwrap_or(default.min_interval),
        ..default
    }
}

/// Serves until the process may end, and leaves its sockets to the holder if there is one.
async fn until_ended(
    running: Pin<&mut impl Future<Output = ()>>,
    serving: JoinSet<Result<(), serve::Error>>,
    handover: Handover,
    settings: &Settings,
) -> Done {
    let ended = until_drained(running, serving, &handover, settings).await;
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
    settings: &Settings,
) -> Done {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (ended, until): (Done, _) = tokio::select! {
        () = &mut running => return Err(SOURCE_ENDED.into()),
        Some(Ok(Err(error))) = serving.join_next() => return Err(error.into()),
        _ = terminate.recv() => (Ok(()), Until::Succeeded),
        _ = interrupt.recv() => (Ok(()), Until::Idle),
        // The process is started again by its supervisor when it has ended.
        changed = config_changed(settings.file.as_ref()) => (Err(changed.into()), Until::Idle),
    };
    if !handover.has_served() {
        return ended;
    }
    if let Err(reason) = &ended {
        tracing::warn!("{reason}");
    }
    // The cluster is followed all the while: new connections come in until
    // another process takes them.
    tokio::select! {
        () = drained(handover, until, settings.own.drain_timeout) => ended,
        () = &mut running => Err(SOURCE_ENDED.into()),
        _ = terminate.recv() => ended,
        _ = interrupt.recv() => ended,
    }
}

/// Returns what posts Events to the API server, if there is one.
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

/// Returns what is done otherwise because it is not known where pods of the family that the
/// node has first are. As kube-proxy, which says so for that family alone: a cluster of one
/// family has no network of the other.
fn pods_unknown(effective: &Effective) -> Option<String> {
    let DetectLocal::ClusterCidr(networks) = &effective.detect_local else {
        return None;
    };
    let family = effective.primary_family;
    let mut families = networks.iter().map(|network| Family::of(&network.addr()));
    (!families.any(|of| of == family)).then(|| {
        format!(
            "detectLocalMode is ClusterCIDR, and clusterCIDR (--cluster-cidr) has no network of \
             {family}: callers of {family} cannot be told from pods of the cluster, so that in \
             modes of the kernel who calls a cluster IP from outside is masqueraded with \
             masqueradeAll alone, and pods that call an external address of a Service whose \
             externalTrafficPolicy is Local are treated as callers from outside; name the pods' \
             network, or set another detectLocalMode"
        )
    })
}

/// Logs, and has the cluster know, what this process runs without.
fn report(choice: &Chosen, settings: &Settings, recorder: &Recorder) {
    let without = &settings.own.without;
    if !without.is_empty() {
        let words: Vec<_> = without.words().into_iter().collect();
        tracing::info!("left out by --without: {}", words.join(", "));
    }
    let mode = choice.mode;
    for reason in &choice.passed_over {
        tracing::warn!("running in {mode} mode: {reason}");
        recorder.post(Event::worse_mode(format!(
            "Running in {mode} mode: {reason}"
        )));
    }
    if let Some(unknown) = pods_unknown(&settings.effective) {
        tracing::warn!("{unknown}");
    }
    for loss in &choice.lost {
        tracing::warn!("{loss}");
    }
}

/// Returns what the pages about this process show.
fn introspection(settings: &Settings, choice: Chosen, registry: &Registry) -> Introspection {
    let flags = settings.flags.iter();
    let flags = flags.map(|(name, value)| ((*name).to_owned(), value.clone()));
    let running = serve::Running {
        mode: choice.mode,
        named: settings.effective.is_mode_named,
        passed_over: choice.passed_over,
        wanting: choice.wanting,
    };
    let configuration = settings.configuration.to_value();
    Introspection::new(registry.clone(), running, configuration, flags.collect())
}

fn bind(settings: &Settings, address: SocketAddr, listeners: &Listeners) -> Bind {
    Bind {
        address,
        listeners: listeners.clone(),
        hard_fail: settings.configuration.bind_address_hard_fail,
    }
}

/// Serves the API on the unix socket that the settings name.
fn serve_status(settings: &Settings, api: &Arc<StatusApi>) {
    if let Some(path) = settings.own.status_socket.clone() {
        tokio::spawn(serve::status(path, Arc::clone(api)));
    }
}

/// Serves `pages` at the addresses that the settings name, which are among `listeners`.
fn serve_pages(
    serving: &mut JoinSet<Result<(), serve::Error>>,
    (pages, listeners): (Arc<Introspection>, &Listeners),
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

/// Returns what the API says of this process as long as it runs.
fn about(settings: &Settings, choice: &Chosen, node: &str, source: &Source) -> About {
    About {
        started: SystemTime::now(),
        node: node.to_owned(),
        mode: choice.mode,
        passed_over: choice.passed_over.clone(),
        lost: choice.lost.clone(),
        source: source.to_string(),
        scheduler: match choice.mode {
            ModeName::Ipvs => probe::requirements(settings).scheduler,
            ModeName::Userspace => settings.effective.scheduler.to_string(),
            ModeName::Nftables | ModeName::Iptables => SchedulerName::Random.to_string(),
        },
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

/// Leaves what comes in to the process after this one, and waits until `deadline` at most
/// for the connections that are open.
async fn leave(handover: &Handover, deadline: Instant) {
    let connections = handover.active_connections();
    tracing::info!(
        connections,
        "new connections wait at the holder for the next process"
    );
    handover.leave();
    let mut quiet = Instant::now();
    while Instant::now() < deadline {
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

/// Returns the source of objects that the settings name. Requests to the API server
/// count in metrics of `registry`.
async fn source(
    settings: &Settings,
    registry: &Registry,
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
    Ok(opened.map_err(|e| format!("{e}; or serve a folder of manifests with --manifests DIR"))?)
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

/// Returns what serves health-check node ports, none before the first sync.
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

/// Returns the addresses at which health-check node ports listen now.
fn health_check_addresses(node_ports: &NodePorts) -> Vec<IpAddr> {
    let served = node_ports.served();
    if *served == Served::All {
        return vec![Ipv6Addr::UNSPECIFIED.into()];
    }
    match addresses::serving(&served) {
        Ok(all) => all.into_iter().collect(),
        Err(error) => {
            tracing::error!("health-check node ports are closed until the next full sync: {error}");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    #[test]
    fn pods_of_the_first_family_are_to_be_known() {
        for (flags, unknown) in [
            (&[][..], Some("IPv4")),
            (&["--cluster-cidr=fd00:244::/64"], Some("IPv4")),
            (&["--cluster-cidr=10.244.0.0/16"], None),
            (
                &["--cluster-cidr=10.244.0.0/16", "--bind-address=::"],
                Some("IPv6"),
            ),
            (&["--detect-local-mode=NodeCIDR"], None),
        ] {
            let words = ["tripod"].iter().chain(flags);
            let read = cli::read(words.map(Into::into), |_| unreachable!("no file"));
            let found = pods_unknown(&read.expect("good flags").effective);
            let named = found.as_ref().map(|text| {
                let family = text.split_once("no network of ").expect("a family").1;
                &family[..4]
            });
            assert_eq!(named, unknown, "{flags:?}: {found:?}");
        }
    }
}
