//! Endpoints that do not answer get no new connections for a while, in the modes in which the
//! kernel forwards connections and for the Services that request it (`tripod.proxy/eject`).
//!
//! The kernel notifies of each new connection. Some of those that go to a watched endpoint are
//! looked up twice (`evidence`). The node connects to an endpoint that does not answer clients;
//! only if that fails as well, the endpoint is ejected. One that is the external IP of a Service
//! cannot be ejected: the connection would be translated, and reach an endpoint of that Service.
//! Ejections go to the service map as events, as if an object of the cluster had changed. When they
//! are applied, clients that wait for an answer from an ejected endpoint are sent elsewhere
//! (`waiting`). While no Service requests ejection, there is no subscription.

mod evidence;
mod waiting;
mod watched;

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashSet;
use net::Family;
use netlink::{
    Protocol, Socket,
    conntrack::{
        events::{Change, Events},
        flows,
    },
    sysctl,
};
use nix::errno::Errno;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use tokio::{
    net::TcpStream,
    sync::{
        Notify,
        mpsc::{
            OwnedPermit, Sender, UnboundedReceiver, UnboundedSender, WeakSender, unbounded_channel,
        },
    },
    time::{Instant, timeout},
};

use self::{
    evidence::{Evidence, Target, Verdict},
    watched::Watched,
};
use crate::{
    backoff::{Backoff, until},
    config::ModeName,
    events::{self, Recorder},
    log_once::{LogOnce, LoggedFlag},
    node::addresses,
    runner::AfterSync,
    services::{Batch, Changes, Ejected, Event, Preferences, ServiceMap, ServiceName},
};

/// Whether the kernel notifies of entries of connection tracking
/// (`Documentation/networking/nf_conntrack-sysctl.rst`).
const NOTIFIES: &str = "net/netfilter/nf_conntrack_events";

/// The first and the longest pause before subscribing is tried again after a failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Follows syncs, and tells this part of the process which endpoints to watch.
pub struct Follower(Arc<Shared>);

/// State shared by the follower and the task.
#[derive(Default)]
struct Shared {
    watched: Mutex<Watched>,
    /// Notified when the set of watched endpoints changes, or some get no new connections any more.
    changed: Notify,
}

/// Metrics of this part.
#[derive(Clone, Debug)]
pub struct Metrics {
    ejections: IntCounter,
    ejected: IntGauge,
}

impl Metrics {
    /// Registers the metrics with `registry`.
    ///
    /// # Errors
    /// When `registry` has metrics of these names already.
    pub fn register(registry: &Registry) -> prometheus::Result<Metrics> {
        let metrics = Metrics {
            ejections: IntCounter::new(
                "tripod_endpoint_ejections_total",
                "Times that an endpoint was ejected because connections to it were not answered, \
                 in ipvs, nftables and iptables mode.",
            )?,
            ejected: IntGauge::new(
                "tripod_endpoints_ejected",
                "Endpoints that are ejected now, in ipvs, nftables and iptables mode.",
            )?,
        };
        registry.register(Box::new(metrics.ejections.clone()))?;
        registry.register(Box::new(metrics.ejected.clone()))?;
        Ok(metrics)
    }
}

/// Watches endpoints, and sends ejections to the runner as `batches`, for as long as there is a
/// source of objects that sends there. Returns the follower for the runner's syncs in `mode`. If
/// the kernel does not report the outcome of connections, an Event says so to `recorder` for each
/// Service that requests ejection.
pub fn begin(
    batches: &Sender<Batch>,
    mode: ModeName,
    metrics: Metrics,
    recorder: Recorder,
) -> Follower {
    let shared = Arc::new(Shared::default());
    let (ejected, waiting) = unbounded_channel();
    // IPVS keeps a connection with its real server, regardless of the entry in connection tracking.
    if mode != ModeName::Ipvs {
        tokio::spawn(waiting::run(waiting));
    }
    let ejector = Ejector {
        shared: Arc::clone(&shared),
        evidence: Evidence::default(),
        ejected,
        kernel: None,
        opening: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
        logged: LogOnce::default(),
        lost: LoggedFlag::default(),
        in_force: BTreeMap::new(),
        batches: batches.downgrade(),
        unsent: Vec::new(),
        probed: unbounded_channel(),
        metrics,
        recorder,
    };
    tokio::spawn(ejector.run());
    Follower(shared)
}

impl AfterSync for Follower {
    fn synced(&mut self, family: Family, map: &ServiceMap, changes: &Changes) {
        let mut watched = self.0.watched.lock();
        if watched.update(family, map, changes) {
            self.0.changed.notify_one();
        }
    }
}

/// The kernel's notifications of new connections, and the socket for looking them up.
struct Kernel {
    events: Events,
    socket: Socket,
    /// The node's own addresses, and when they were listed.
    own: (HashSet<IpAddr>, Instant),
}

/// How long a list of the node's addresses is used.
const OWN_FOR: Duration = Duration::from_secs(30);

/// Whether an endpoint answered the node; `None` if unknown.
type Probed = (SocketAddr, Option<bool>);

/// How long the node waits for an endpoint's answer: less than the time between the lookups of a
/// connection.
const ANSWER: Duration = Duration::from_secs(1);

/// What an endpoint did when the node connected to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It accepted the connection.
    Answer,
    /// Its host refused or reset the connection.
    Refusal,
    /// Nothing came from it, or it cannot be reached.
    Nothing,
}

/// Connects to an endpoint, and ends the connection at once; `None` if the node could not try.
pub async fn call(endpoint: SocketAddr) -> Option<Heard> {
    match timeout(ANSWER, TcpStream::connect(endpoint)).await {
        Ok(Ok(_)) => Some(Heard::Answer),
        Err(_) => Some(Heard::Nothing),
        Ok(Err(error)) => match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED | Errno::ECONNRESET) => Some(Heard::Refusal),
            Some(
                Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN,
            ) => Some(Heard::Nothing),
            _ => {
                tracing::debug!("cannot connect to endpoint {endpoint}: {error}");
                None
            }
        },
    }
}

/// Says to `services`, which request `what`, why this node cannot do it. What is `logged` already is
/// not said again, until a Service has stopped requesting it.
pub fn report_unsupported<'a>(
    services: impl IntoIterator<Item = &'a ServiceName>,
    what: &str,
    why: &str,
    logged: &mut LogOnce,
    recorder: &Recorder,
) {
    let note = format!("{what} is not supported here: {why}");
    let mut current = Vec::new();
    for service in services {
        let message = format!("Service {service}: {note}");
        if logged.is_new(&message) {
            tracing::warn!("{message}");
            recorder.post(events::Event::unsupported(service.clone(), note.clone()));
        }
        current.push(message);
    }
    logged.replace(current);
}

/// Waits for room for a batch; `None` if the runner, or the source of its objects, has ended.
async fn room(batches: &WeakSender<Batch>) -> Option<OwnedPermit<Batch>> {
    batches.upgrade()?.reserve_owned().await.ok()
}

struct Ejector {
    shared: Arc<Shared>,
    evidence: Evidence,
    /// Endpoints that get no new connections any more, for `waiting`.
    ejected: UnboundedSender<HashSet<SocketAddr>>,
    /// `None`: nothing is watched, or the kernel cannot notify.
    kernel: Option<Kernel>,
    /// Time of the next attempt to subscribe: by then, the limit of descriptors or a setting of the
    /// kernel may have changed.
    opening: Backoff,
    logged: LogOnce,
    /// Whether it was logged that notifications are lost.
    lost: LoggedFlag,
    /// Whether endpoints answered the node.
    probed: (UnboundedSender<Probed>, UnboundedReceiver<Probed>),
    /// The ejected endpoints by Service, as last reported.
    in_force: BTreeMap<ServiceName, BTreeSet<SocketAddr>>,
    /// The channel to the runner.
    batches: WeakSender<Batch>,
    /// Ejections that are not sent yet, because the channel was full.
    unsent: Vec<Event>,
    metrics: Metrics,
    recorder: Recorder,
}

impl Ejector {
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let due = self.evidence.due();
            let opening = self.opening.due().filter(|_| self.kernel.is_none());
            tokio::select! {
                room = room(&self.batches), if !self.unsent.is_empty() => {
                    let Some(room) = room else { return };
                    let events = mem::take(&mut self.unsent);
                    room.send(events);
                    continue;
                }
                () = shared.changed.notified() => self.watch(),
                () = arrived(self.kernel.as_ref()) => self.read(),
                Some(probed) = self.probed.1.recv() => self.read_probe(probed),
                () = until(due) => self.look_up(),
                () = until(opening) => self.watch(),
            }
            let events = self.events();
            self.unsent.extend(events);
        }
    }

    /// Updates the set of watched endpoints.
    fn watch(&mut self) {
        let mut watched = self.shared.watched.lock();
        let ejected = watched.take_newly_ejected();
        if !ejected.is_empty() {
            // It fails in ipvs mode, which has no receiver, and when the runtime shuts down.
            let _ = self.ejected.send(ejected);
        }
        self.evidence.retain(|target| watched.has(target));
        if watched.is_empty() {
            self.kernel = None;
            self.opening.succeeded();
            // No Service requests it any more, so nothing is logged about the end of a failure.
            self.logged.end();
            return;
        }
        if self.kernel.is_some() {
            return;
        }
        match Kernel::open() {
            Ok(kernel) => {
                self.kernel = Some(kernel);
                self.opening.succeeded();
                self.logged.end_others(&[]);
            }
            Err(why) => {
                self.opening.failed(Instant::now());
                let (services, what) = (watched.all_services(), Preferences::EJECT);
                report_unsupported(services, what, &why, &mut self.logged, &self.recorder);
            }
        }
    }

    /// Reads notifications of new connections.
    fn read(&mut self) {
        let Some(kernel) = &mut self.kernel else {
            return;
        };
        let now = Instant::now();
        if kernel.own.1 + OWN_FOR <= now
            && let Ok(own) = own()
        {
            kernel.own = (own, now);
        }
        let own = &kernel.own.0;
        let (evidence, watched) = (&mut self.evidence, self.shared.watched.lock());
        let read = kernel.events.drain(|event| {
            let flow = event.flow;
            let endpoint = flow.reply.source;
            // A rule may block a client that calls the endpoint directly.
            let is_through_service = flow.original.destination != endpoint;
            if flow.protocol != flows::TCP || !is_through_service {
                return;
            }
            let Some(service) = watched.called(flow.original.destination, &endpoint, own) else {
                return;
            };
            match event.change {
                Change::New => evidence.began(service.clone(), flow, now),
                Change::Destroy if flow.state.is_refused() => evidence.refused(&flow),
                Change::Update | Change::Destroy => {}
            }
        });
        drop(watched);
        match read {
            Ok(true) if self.lost.is_first() => tracing::warn!(
                "connections begin and end faster than Tripod reads the kernel's notifications: \
                 some are lost, so that connections that an endpoint refused may not count \
                 (tripod.proxy/eject)"
            ),
            Ok(false) if self.lost.is_over() => {
                tracing::info!("no notification of a connection has been lost for a minute");
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("tracking of new connections was restarted: {error}");
                self.kernel = None;
                self.watch();
            }
        }
    }

    /// Looks up the connections that are due, and ends ejections whose time is over.
    fn look_up(&mut self) {
        let now = Instant::now();
        while let Some(asked) = self.evidence.next(now) {
            let Some(kernel) = &mut self.kernel else {
                self.evidence.dropped(&asked);
                continue;
            };
            let looked_up = flows::look_up(&mut kernel.socket, asked.flow());
            match looked_up {
                Ok(found) => {
                    if let Some(verdict) = self.evidence.found(asked, found, now) {
                        self.log(&verdict);
                    }
                }
                Err(error) => {
                    tracing::debug!("{error}");
                    self.evidence.dropped(&asked);
                }
            }
        }
        self.probe(now);
    }

    /// Makes the node connect to endpoints that may have failed.
    fn probe(&mut self, now: Instant) {
        let probes = self.evidence.take_probes(now);
        if probes.is_empty() {
            return;
        }
        let watched = self.shared.watched.lock();
        for endpoint in probes {
            let is_translated = watched.is_translated(endpoint);
            let send = self.probed.0.clone();
            tokio::spawn(async move {
                let answered = match is_translated {
                    true => None,
                    false => call(endpoint).await.map(|heard| heard == Heard::Answer),
                };
                // It fails only when the runtime shuts down.
                let _ = send.send((endpoint, answered));
            });
        }
    }

    /// Records whether an endpoint answered the node.
    fn read_probe(&mut self, (endpoint, answered): (SocketAddr, Option<bool>)) {
        let now = Instant::now();
        for verdict in self.evidence.probed(endpoint, answered, now) {
            self.log(&verdict);
        }
        self.probe(now);
    }

    fn log(&self, verdict: &Verdict) {
        let Verdict {
            target: Target { service, endpoint },
            length,
        } = verdict;
        self.metrics.ejections.inc();
        tracing::info!(
            %service,
            %endpoint,
            "connections to this endpoint are not answered: it gets no new ones for {length:?}, \
             unless a call may go to no other"
        );
    }

    /// Collects the changes of the set of ejected endpoints.
    fn events(&mut self) -> Vec<Event> {
        let mut ejected: BTreeMap<ServiceName, BTreeSet<SocketAddr>> = BTreeMap::new();
        let mut count = 0;
        for Target { service, endpoint } in self.evidence.ejected() {
            count += 1;
            let of_service = ejected.entry(service.clone()).or_default();
            of_service.insert(*endpoint);
        }
        self.metrics.ejected.set(count);
        if ejected == self.in_force {
            return Vec::new();
        }
        let before = mem::replace(&mut self.in_force, ejected);
        let names: BTreeSet<_> = before.keys().chain(self.in_force.keys()).collect();
        let changed = names
            .into_iter()
            .filter(|name| before.get(name) != self.in_force.get(name));
        let events = changed.map(|service| {
            let endpoints = self.in_force.get(service).cloned().unwrap_or_default();
            let service = service.clone();
            Event::Ejected(Ejected { service, endpoints })
        });
        events.collect()
    }
}

impl Kernel {
    /// Subscribes to notifications. The error has the reason and the remedy.
    fn open() -> Result<Kernel, String> {
        if sysctl::read(NOTIFIES).is_ok_and(|value| value.trim() == "0") {
            return Err(format!("{NOTIFIES} is 0; set it to 1"));
        }
        let events = Events::of_ends().map_err(|error| error.to_string())?;
        let socket = Socket::open(Protocol::Netfilter).map_err(|error| error.to_string())?;
        let own = own().map_err(|error| error.to_string())?;
        Ok(Kernel {
            events,
            socket,
            own: (own, Instant::now()),
        })
    }
}

/// Lists the addresses at which node ports are called.
fn own() -> Result<HashSet<IpAddr>, netlink::Error> {
    Ok(addresses::own()?.into_iter().collect())
}

/// Waits until the kernel may have notified of new connections.
async fn arrived(kernel: Option<&Kernel>) {
    match kernel {
        // It fails only when the runtime shuts down, which ends this task as well.
        Some(kernel) => drop(kernel.events.arrived().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use netlink::conntrack::flows::{Flow, State, TCP, Tuple};

    use super::*;
    use crate::services::{ServicePort, ServicePortName, service_ports::service_port};

    /// Fails a connection to the `endpoint` of `web`, and returns the outcome of the node's own
    /// connection.
    async fn probed(map: ServiceMap, web: &ServicePortName, endpoint: SocketAddr) -> Option<bool> {
        let shared = Arc::new(Shared::default());
        let full = Changes {
            full: true,
            ..Changes::default()
        };
        shared.watched.lock().update(Family::V4, &map, &full);
        let mut ejector = Ejector {
            shared,
            evidence: Evidence::default(),
            ejected: unbounded_channel().0,
            kernel: None,
            opening: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            logged: LogOnce::default(),
            lost: LoggedFlag::default(),
            in_force: BTreeMap::new(),
            batches: tokio::sync::mpsc::channel(1).0.downgrade(),
            unsent: Vec::new(),
            probed: unbounded_channel(),
            metrics: Metrics::register(&Registry::new()).unwrap(),
            recorder: Recorder::nowhere(),
        };
        let source = SocketAddr::from(([10, 0, 0, 1], 1));
        let flow = Flow {
            protocol: TCP,
            original: Tuple {
                source,
                destination: ([10, 96, 0, 1], 80).into(),
            },
            reply: Tuple {
                source: endpoint,
                destination: source,
            },
            state: State::default(),
            tuple: Vec::new(),
            id: None,
            zone: None,
        };
        let now = Instant::now();
        ejector
            .evidence
            .began(web.service.clone(), flow.clone(), now);
        ejector.evidence.refused(&flow);
        let later = now + Duration::from_secs(1);
        let asked = ejector.evidence.next(later).expect("a lookup");
        assert_eq!(ejector.evidence.found(asked, None, later), None);
        ejector.probe(later);
        let (of, answered) = ejector.probed.1.recv().await.expect("an outcome");
        assert_eq!(of, endpoint);
        answered
    }

    #[tokio::test]
    async fn the_nodes_connection_to_an_external_ip_says_nothing_of_an_endpoint() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = server.local_addr().unwrap();
        let web = service_port("web", [10, 96, 0, 1]);
        let alone = || [web.clone()].into_iter().collect();
        assert_eq!(probed(alone(), &web.name, endpoint).await, Some(true));
        let other = ServicePort {
            external_ips: [endpoint.ip()].into(),
            port: endpoint.port(),
            ..service_port("other", [10, 96, 0, 2])
        };
        let both = [web.clone(), other].into_iter().collect();
        assert_eq!(probed(both, &web.name, endpoint).await, None);
    }
}
