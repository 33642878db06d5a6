//! The listeners of health-check node ports.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
    time::Duration,
};

use hyper::{
    StatusCode,
    header::{HeaderName, HeaderValue},
};
use net::{Family, PerFamily};
use parking_lot::Mutex;
use prometheus::{IntGauge, Registry};
use serde_json::Value;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::Desired;
use crate::{
    backoff::Backoff,
    events::{Event, Recorder, Regarding, Severity},
    family_metrics::registered,
    kernel::socket::listening::identity,
    runner::health::Health,
    serve::{
        connections::Connections,
        http::{Answer, Answers, Asked, Methods, serve},
        listeners::{Listeners, Listening},
    },
    services::ServiceName,
    trouble::Trouble,
};

/// Pause before an address that was refused once is tried again, and reported if it is still
/// refused: between fork and exec, a program that is being started holds a copy of a listener that
/// was just closed. The pause doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Header with the number of endpoints on this node, for load balancers that have weights.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The sockets that listen now, and the reasons why others cannot.
#[derive(Clone, Debug)]
pub struct HealthListeners {
    desired: watch::Receiver<Desired>,
    open: Arc<Mutex<BTreeMap<Place, Weak<TcpListener>>>>,
    refused: Arc<Mutex<BTreeMap<Place, Trouble>>>,
    /// Number of refused places.
    count: IntGauge,
}

impl HealthListeners {
    pub(super) fn register(
        desired: watch::Receiver<Desired>,
        registry: &Registry,
    ) -> prometheus::Result<HealthListeners> {
        let count = IntGauge::new(
            "tripod_health_check_node_ports_failed",
            "Health-check node ports that cannot be served, one for each Service and address; \
             `tripod status` and Events name them.",
        )?;
        Ok(HealthListeners {
            desired,
            open: Arc::default(),
            refused: Arc::default(),
            count: registered(registry, count)?,
        })
    }

    /// Returns the addresses that could not be bound at the last attempt, and why.
    pub(in crate::serve) fn refused(&self) -> Vec<Refused> {
        let refused = self.refused.lock();
        let refused = refused.iter().map(|(place, trouble)| Refused {
            service: place.service.clone(),
            address: place.address,
            trouble: trouble.clone(),
        });
        refused.collect()
    }

    fn refuse(&self, place: &Place, why: String) {
        let mut refused = self.refused.lock();
        let before = refused.remove(place);
        refused.insert(place.clone(), Trouble::now(before, why));
        self.set_count(&refused);
    }

    /// Forgets that `place` was refused; returns whether it was.
    fn repair(&self, place: &Place) -> bool {
        let mut refused = self.refused.lock();
        let was = refused.remove(place).is_some();
        self.set_count(&refused);
        was
    }

    fn set_count(&self, refused: &BTreeMap<Place, Trouble>) {
        self.count
            .set(i64::try_from(refused.len()).unwrap_or(i64::MAX));
    }

    /// Returns the other Service that is served at the address of `place`.
    fn other_at(&self, place: &Place) -> Option<ServiceName> {
        let open = self.open.lock();
        let mut at = open.iter().filter(|(other, socket)| {
            other.address == place.address
                && other.service != place.service
                && socket.strong_count() > 0
        });
        at.next().map(|(other, _)| other.service.clone())
    }

    /// Returns each Service and address without the required listening socket.
    pub(in crate::serve) fn missing(&self) -> Vec<(ServiceName, SocketAddr)> {
        let sockets = self.open.lock();
        let listens = |place: &Place| {
            let socket = sockets.get(place).and_then(Weak::upgrade);
            socket.is_some_and(|socket| identity(&*socket).is_some())
        };
        let missing = places(&self.desired.borrow())
            .into_iter()
            .filter(|place| !listens(place));
        missing
            .map(|place| (place.service, place.address))
            .collect()
    }

    fn add(&self, place: &Place, socket: &Arc<TcpListener>) {
        let mut sockets = self.open.lock();
        sockets.retain(|_, socket| socket.strong_count() > 0);
        sockets.insert(place.clone(), Arc::downgrade(socket));
    }
}

/// A health check that cannot be served at an address.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The Service.
    pub service: ServiceName,
    /// The address at which it should be served.
    pub address: SocketAddr,
    /// Why it cannot be served there, and since when.
    pub trouble: Trouble,
}

/// The place of one listener of one Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    service: ServiceName,
    address: SocketAddr,
}

/// What all ports share.
#[derive(Clone)]
pub(super) struct Ports {
    pub(super) sockets: HealthListeners,
    pub(super) listeners: Listeners,
    /// There may be many ports: they share the limit of connections for one server, so that no one
    /// takes the places of others.
    pub(super) connections: Arc<Connections>,
    pub(super) health: Arc<Health>,
    pub(super) events: Recorder,
}

impl Ports {
    /// Opens and closes ports so that they match the desired ones, until their sender is dropped.
    pub(super) async fn maintain(self) {
        let mut desired = self.sockets.desired.clone();
        // A listener is closed when its set is dropped.
        let mut open: BTreeMap<Place, JoinSet<()>> = BTreeMap::new();
        while desired.changed().await.is_ok() {
            let places = places(&desired.borrow_and_update());
            // A port may move from one Service to another: it is closed before it is opened again.
            for (place, mut listening) in open.extract_if(.., |place, _| !places.contains(place)) {
                listening.shutdown().await;
                let (service, address) = (&place.service, place.address);
                if self.sockets.repair(&place) {
                    tracing::info!(%service, %address, "a health-check node port that could not be \
                         served is no longer needed");
                } else {
                    tracing::debug!(%service, %address, "health-check port closed");
                }
            }
            for place in places {
                open.entry(place.clone()).or_insert_with(|| {
                    let mut listening = JoinSet::new();
                    listening.spawn(self.clone().listen(place));
                    listening
                });
            }
        }
    }

    async fn listen(self, place: Place) {
        let answers = Arc::new(HealthCheck {
            service: place.service.clone(),
            desired: self.sockets.desired.clone(),
            health: Arc::clone(&self.health),
        });
        loop {
            let listener = self.bound(&place).await;
            self.sockets.add(&place, listener.socket());
            // It returns when another program closes the listener in the kernel.
            let connections = Arc::clone(&self.connections);
            serve(listener, connections, Methods::Any, Arc::clone(&answers)).await;
        }
    }

    /// Listens at `place` as soon as it can be bound.
    async fn bound(&self, place: &Place) -> Listening {
        let Place { service, address } = place;
        let address = *address;
        let mut refusals = 0u32;
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        let listener = loop {
            self.listeners.in_charge().await;
            match self.listeners.listen(address) {
                Ok(listener) => break listener,
                Err(error) => {
                    refusals = refusals.saturating_add(1);
                    let why = reason(&error, self.sockets.other_at(place));
                    if refusals > 1 {
                        self.sockets.refuse(place, why.clone());
                    }
                    if refusals == 2 {
                        let note = format!(
                            "health-check node port {} cannot be served on {}: {why}; until it can, load balancers do not learn from this node whether it has endpoints of the Service",
                            address.port(),
                            address.ip()
                        );
                        tracing::error!(%service, "{note}");
                        self.events.post(Event {
                            regarding: Regarding::Service(service.clone()),
                            severity: Severity::Warning,
                            reason: "FailedToStartServiceHealthcheck",
                            action: "Listen",
                            note,
                        });
                    }
                    backoff.wait().await;
                }
            }
        };
        if self.sockets.repair(place) {
            tracing::info!(%service, %address, "health-check node port served now")
        } else {
            tracing::debug!(%service, %address, "health-check port opened")
        }
        listener
    }
}

fn places(desired: &Desired) -> BTreeSet<Place> {
    let places = desired.checks.iter().flat_map(|(service, check)| {
        let at = |address: &IpAddr| Place {
            service: service.clone(),
            address: SocketAddr::new(*address, check.port),
        };
        // A wildcard is an address of both families.
        let is_asked = |address: &&IpAddr| {
            let count = check.local_endpoints.get(Family::of(address));
            address.is_unspecified() || count.is_some()
        };
        desired.addresses.iter().filter(is_asked).map(at)
    });
    places.collect()
}

/// Explains why an address is not served, with the remedy. `other` is the Service that has it.
fn reason(error: &io::Error, other: Option<ServiceName>) -> String {
    match (error.kind(), other) {
        (io::ErrorKind::AddrInUse, Some(other)) => format!(
            "Service {other} has the same healthCheckNodePort: create one of them again with \
             another port"
        ),
        (io::ErrorKind::AddrInUse, None) => format!(
            "{error}: make the program that listens on this port (`ss -ltnp` on the node names it) \
             use another one, or create the Service again with another healthCheckNodePort"
        ),
        _ => error.to_string(),
    }
}

/// Answers about one Service.
struct HealthCheck {
    service: ServiceName,
    desired: watch::Receiver<Desired>,
    health: Arc<Health>,
}

impl Answers for HealthCheck {
    async fn answer(&self, asked: Asked<'_>) -> Answer {
        // A load balancer asks over the family in which it forwards; the other family may have
        // other endpoints, or fail. kube-proxy has a server for each family.
        let family = asked.family.unwrap_or(Family::V4);
        let check = self.desired.borrow().checks.get(&self.service).copied();
        let count = check.and_then(|check| *check.local_endpoints.get(family));
        let concerned = PerFamily::each(|of| of == family);
        let healthy = self.health.snapshot().is_healthy_for(concerned);
        answer(&self.service, count.unwrap_or(0), healthy)
    }
}

fn answer(service: &ServiceName, count: usize, healthy: bool) -> Answer {
    // The layout is kube-proxy's, for checks that match on text.
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {},\n\t\t\"name\": {}\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}",
        Value::from(&*service.namespace),
        Value::from(&*service.name),
    );
    let status = if count > 0 && healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    Answer::json(body)
        .with_status(status)
        .with_header(WEIGHT, HeaderValue::from(count))
}
