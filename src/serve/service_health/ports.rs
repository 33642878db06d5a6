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
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use super::Desired;
use crate::{
    backoff::Backoff,
    events::{Event, Recorder, Regarding, Severity},
    kernel::socket::listening::identity,
    runner::health::Health,
    serve::{
        connections::Connections,
        http::{Answer, Asked, Methods, serve},
        listeners::{Listeners, Listening as Socket},
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
pub(super) struct Sockets {
    open: Arc<Mutex<BTreeMap<Place, Weak<TcpListener>>>>,
    refused: Arc<Mutex<BTreeMap<Place, Trouble>>>,
    /// Number of refused places.
    count: IntGauge,
}

impl Sockets {
    pub(super) fn new() -> prometheus::Result<Sockets> {
        Ok(Sockets {
            open: Arc::default(),
            refused: Arc::default(),
            count: IntGauge::new(
                "tripod_health_check_node_ports_failed",
                "Health-check node ports that cannot be served, one for each Service and \
                 address; `tripod status` and Events name them.",
            )?,
        })
    }

    pub(super) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.count.clone()))
    }

    /// Returns the places that cannot be served, and why.
    pub(super) fn refused(&self) -> Vec<Refused> {
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
    fn mend(&self, place: &Place) -> bool {
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

    /// Lists the places of `desired` without a listening socket.
    pub(super) fn missing(&self, desired: &Desired) -> Vec<(ServiceName, SocketAddr)> {
        let sockets = self.open.lock();
        let listens = |place: &Place| {
            let socket = sockets.get(place).and_then(Weak::upgrade);
            socket.is_some_and(|socket| identity(&*socket).is_some())
        };
        let missing = places(desired).into_iter().filter(|place| !listens(place));
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

/// A running listener; closed when dropped.
struct Listening(JoinHandle<()>);

impl Listening {
    async fn end(mut self) {
        self.0.abort();
        // The error is the cancellation.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Opens and closes ports so that they match `desired`, until its sender is
/// dropped.
pub(super) async fn maintain(
    mut desired: watch::Receiver<Desired>,
    sockets: Sockets,
    listeners: Listeners,
    health: Arc<Health>,
    events: Recorder,
) {
    let mut open: BTreeMap<Place, Listening> = BTreeMap::new();
    // There may be many ports: they share the limit of connections for one server.
    let connections = Arc::new(Connections::default());
    while desired.changed().await.is_ok() {
        let places = places(&desired.borrow_and_update());
        // A port may move from one Service to another: it is closed before it is opened again.
        let gone: Vec<Place> = open
            .keys()
            .filter(|p| !places.contains(p))
            .cloned()
            .collect();
        for place in gone {
            if let Some(listening) = open.remove(&place) {
                listening.end().await;
                let (service, address) = (&place.service, place.address);
                if sockets.mend(&place) {
                    tracing::info!(%service, %address, "a health-check node port that could not be \
                         served is no longer needed");
                } else {
                    tracing::debug!(%service, %address, "health-check port closed");
                }
            }
        }
        for place in places {
            open.entry(place.clone()).or_insert_with(|| {
                Listening(tokio::spawn(listen(
                    place,
                    desired.clone(),
                    sockets.clone(),
                    listeners.clone(),
                    Arc::clone(&connections),
                    Arc::clone(&health),
                    events.clone(),
                )))
            });
        }
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

async fn listen(
    place: Place,
    desired: watch::Receiver<Desired>,
    sockets: Sockets,
    listeners: Listeners,
    connections: Arc<Connections>,
    health: Arc<Health>,
    events: Recorder,
) {
    loop {
        let listener = bound(&place, &sockets, &listeners, &events).await;
        sockets.add(&place, listener.socket());
        let (desired, health) = (desired.clone(), Arc::clone(&health));
        let service = place.service.clone();
        // `serve` returns when another program closes the listener in the kernel.
        let answer = move |asked: Asked<'_>| {
            // A load balancer asks over the family in which it forwards; the other family may have
            // other endpoints, or fail. kube-proxy has a server for each family.
            let family = asked.family.unwrap_or(Family::V4);
            let check = desired.borrow().checks.get(&service).copied();
            let count = check.and_then(|check| *check.local_endpoints.get(family));
            let concerned = PerFamily::each(|of| of == family);
            let healthy = health.snapshot().is_healthy_for(concerned);
            answer(&service, count.unwrap_or(0), healthy)
        };
        serve(listener, Arc::clone(&connections), Methods::Any, answer).await;
    }
}

/// Listens at `place` as soon as it can be bound.
async fn bound(
    place: &Place,
    sockets: &Sockets,
    listeners: &Listeners,
    events: &Recorder,
) -> Socket {
    let Place { service, address } = place;
    let address = *address;
    let mut refusals = 0u32;
    let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
    let listener = loop {
        listeners.in_charge().await;
        match listeners.listen(address) {
            Ok(listener) => break listener,
            Err(error) => {
                refusals = refusals.saturating_add(1);
                let why = reason(&error, sockets.other_at(place));
                if refusals > 1 {
                    sockets.refuse(place, why.clone());
                }
                if refusals == 2 {
                    let note = format!(
                        "health-check node port {} cannot be served on {}: {why}; until it can, load balancers do not learn from this node whether it has endpoints of the Service",
                        address.port(),
                        address.ip()
                    );
                    tracing::error!(%service, "{note}");
                    events.post(Event {
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
    if sockets.mend(place) {
        tracing::info!(%service, %address, "health-check node port served now")
    } else {
        tracing::debug!(%service, %address, "health-check port opened")
    }
    listener
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
