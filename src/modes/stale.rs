//! UDP flows whose connection-tracking entries translate to something that does not
//! answer any more, or do not translate although something would answer now; and connections of
//! other protocols that began before anything served where they were made.

mod begun;
mod waiting;

use std::{
    collections::{HashMap, HashSet},
    mem,
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

use net::{Family, Frontend, Protocol};
use netlink::{
    Socket,
    conntrack::flows::{self, Match, Reply, Source, UDP},
    system,
};
use nix::errno::Errno;
use tokio::task::{JoinError, spawn_blocking};

pub use self::begun::delete_untranslated;
use self::{begun::Begun, waiting::Waiting};
use crate::{
    log_once::LogOnce,
    modes::Metrics,
    services::{Changes, ServiceMap, ServicePort, ServicePortName, StaleAddresses, StaleUdp},
};

/// Errors that will be the same the next time: no right to, no ctnetlink
/// (EINVAL), no netfilter at all.
const LASTING: [Errno; 4] = [
    Errno::EPERM,
    Errno::EINVAL,
    Errno::EOPNOTSUPP,
    Errno::EPROTONOSUPPORT,
];

/// Returns the UDP flows to `frontend` whose answers come from there.
pub fn flows(frontend: &Frontend, reply: Reply) -> Match {
    Match {
        protocol: UDP,
        destination: frontend.address,
        port: Some(frontend.port),
        reply,
    }
}

fn udp_ports(family: Family, map: &ServiceMap) -> impl Iterator<Item = &Arc<ServicePort>> {
    map.iter().filter(move |port| {
        let name = &port.name;
        name.protocol == Protocol::Udp && name.family == family
    })
}

fn serving(port: &ServicePort) -> HashSet<Source> {
    let serving = port.endpoints.all.iter().filter(|e| e.may_have_flows());
    serving.map(|e| Source::from(e.address)).collect()
}

/// The sources from which each frontend is answered now, of those ServicePorts that may have taken
/// over from others: a frontend that changes owner is new to the one that gets it, when a port of a
/// Service is renamed, for example.
fn answered<'a>(
    map: &'a ServiceMap,
    stale: &'a StaleUdp,
    of_family: impl Fn(&ServicePortName) -> bool,
) -> HashMap<Frontend, Arc<HashSet<Source>>> {
    let before = stale.endpoints.iter().map(|stale| &stale.port.name);
    let names = before
        .chain(stale.addresses.iter().map(|stale| &stale.port.name))
        .chain(&stale.revived);
    let names: HashSet<_> = names.filter(|name| of_family(name)).collect();
    sources(names.into_iter().filter_map(|name| map.get(name)))
}

/// Returns the sources from which each frontend of `ports` is answered.
fn sources<'a>(
    ports: impl Iterator<Item = &'a Arc<ServicePort>>,
) -> HashMap<Frontend, Arc<HashSet<Source>>> {
    ports
        .flat_map(|port| {
            let sources = Arc::new(serving(port));
            port.frontends().map(move |at| (at, Arc::clone(&sources)))
        })
        .collect()
}

/// Finds the flows to delete in `family`, now that `map` is applied. A flow stays if its address,
/// port and endpoint still serve, even if the ServicePort has another name now. A node port is
/// looked for on any address, as only the kernel knows which ones it translated; so of flows to a
/// node port that is gone, only those that were translated to an endpoint are deleted.
fn matches(family: Family, map: &ServiceMap, stale: &StaleUdp) -> Vec<Match> {
    let of_family = |name: &ServicePortName| name.family == family;
    let answered = answered(map, stale, of_family);
    let mut matches = Vec::new();
    for stale in stale.endpoints.iter().filter(|e| of_family(&e.port.name)) {
        let gone = Source::from(stale.address);
        for at in stale.port.frontends() {
            let now = answered.get(&at);
            if !now.is_some_and(|now| now.contains(&gone)) {
                matches.push(flows(&at, Reply::From([gone].into())));
            }
        }
    }
    for StaleAddresses { port, lost } in &stale.addresses {
        if !of_family(&port.name) {
            continue;
        }
        let service = |at: &SocketAddr| Frontend::service(Protocol::Udp, at.ip(), at.port());
        for at in lost.services.iter().map(service) {
            let reply = match answered.get(&at) {
                Some(now) => Reply::NotFrom((**now).clone()),
                None => Reply::Any,
            };
            matches.push(flows(&at, reply));
        }
        let node_port = |port| Frontend::node_port(Protocol::Udp, family, port);
        if let Some(at) = lost.node_port.map(node_port) {
            let mut led = serving(port);
            if let Some(now) = answered.get(&at) {
                led.retain(|source| !now.contains(source));
            }
            if !led.is_empty() {
                matches.push(flows(&at, Reply::From(led)));
            }
        }
    }
    for port in stale.revived.iter().filter_map(|name| map.get(name)) {
        if of_family(&port.name) {
            matches.extend(led_elsewhere(port, serving(port)));
        }
    }
    matches
}

/// Finds the flows of `family` that `waited` to be deleted and are still stale, now that `map` is
/// applied.
fn still_stale(family: Family, map: &ServiceMap, waited: HashMap<Frontend, Reply>) -> Vec<Match> {
    if waited.is_empty() {
        return Vec::new();
    }
    let answered = sources(udp_ports(family, map));
    let waited = waited.into_iter().filter_map(|(at, reply)| {
        let Some(now) = answered.get(&at) else {
            return Some(flows(&at, reply));
        };
        let reply = match reply {
            Reply::From(gone) => Reply::From(&gone - now),
            Reply::Any => Reply::NotFrom((**now).clone()),
            Reply::NotFrom(served) => Reply::NotFrom(&served | now),
        };
        let is_empty = matches!(&reply, Reply::From(gone) if gone.is_empty());
        (!is_empty).then(|| flows(&at, reply))
    });
    waited.collect()
}

/// Returns patterns of flows that go elsewhere than to the endpoints that are `serving` for `port`.
fn led_elsewhere(port: &ServicePort, serving: HashSet<Source>) -> impl Iterator<Item = Match> {
    port.frontends()
        .map(move |at| flows(&at, Reply::NotFrom(serving.clone())))
}

/// Stale flows of one family that were not deleted yet.
#[derive(Debug, Default)]
pub struct StaleFlows {
    /// Those that are not examined yet.
    found: Vec<Match>,
    /// Those that could not be deleted.
    waiting: Waiting,
    /// Some do not even wait, as there are too many.
    dropped: LogOnce,
    /// The last attempt failed for a reason that will most likely be the same the next
    /// time: they are tried again with the next full sync, and none is due for them.
    is_lasting: bool,
    /// Logs why the last attempt failed.
    logged: LogOnce,
    /// Connections that began before their destination was served.
    begun: Begun,
}

impl StaleFlows {
    /// Makes the next [`clear`](Self::clear) delete the flows of any UDP port of `family` with
    /// endpoints that go elsewhere than to one of them: rules had been missing, and clients that
    /// called meanwhile were not translated.
    pub fn rules_were_missing(&mut self, family: Family, map: &ServiceMap) {
        self.led_past(udp_ports(family, map));
        let all = map.iter().map(|port| &port.name);
        self.begun.extend(all.filter(|name| name.family == family));
    }

    /// Makes the next [`clear`](Self::clear) delete the flows that were not translated for the UDP
    /// ports of `map` among `names`, which are applied now and may not have been before.
    pub fn came_in_force<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a ServicePortName>,
        map: &ServiceMap,
    ) {
        let names: Vec<_> = names.into_iter().collect();
        self.begun.extend(names.iter().copied());
        let udp = names.into_iter();
        let udp = udp.filter(|name| name.protocol == Protocol::Udp);
        self.led_past(udp.filter_map(|name| map.get(name)));
    }

    fn led_past<'a>(&mut self, ports: impl Iterator<Item = &'a Arc<ServicePort>>) {
        for port in ports {
            let serving = serving(port);
            if !serving.is_empty() {
                self.found.extend(led_elsewhere(port, serving));
            }
        }
    }

    /// Deletes the flows that were found to be stale, those that are stale after `changes` of
    /// `family`, now that `map` is applied, and those that could not be deleted before, if a retry
    /// is due.
    pub async fn clear(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        metrics: &dyn Metrics,
    ) {
        let mut waited = Vec::new();
        if changes.full || changes.retry {
            let waiting = mem::take(&mut self.waiting);
            waited = still_stale(family, map, waiting.frontends);
            if waiting.compares_all {
                self.rules_were_missing(family, map);
            }
        }
        let mut matches = mem::take(&mut self.found);
        matches.extend(waited);
        matches.extend(self::matches(family, map, &changes.stale_udp));
        self.begun.extend(&changes.begun);
        self.begun.clear(family, map, changes, metrics).await;
        let failed = self.delete(family, matches, metrics).await;
        self.waiting.add(family, failed);
        let served = || {
            let ports = udp_ports(family, map).filter(|port| !serving(port).is_empty());
            ports.flat_map(|port| port.frontends()).collect()
        };
        let dropped = self.waiting.bound(served) > 0;
        let what = dropped.then(|| {
            format!(
                "{family}: flows of UDP clients to removed Services are deleted for {} addresses \
                 and ports only; the others end when the client stops sending",
                waiting::MOST
            )
        });
        self.dropped.end_others(what.as_slice());
        for what in self.dropped.replace(what) {
            tracing::warn!("{what}");
        }
    }

    /// Deletes the flows that match one of `matches`; returns the matches that must be tried again.
    async fn delete(
        &mut self,
        family: Family,
        matches: Vec<Match>,
        metrics: &dyn Metrics,
    ) -> Vec<Match> {
        if matches.is_empty() {
            return matches;
        }
        let begun = Instant::now();
        match delete(family, matches).await {
            Ok(count) => {
                self.is_lasting = false;
                metrics.conntrack_cleared(family, begun.elapsed(), count as u64);
                if self.logged.end() {
                    tracing::info!("{family}: flows of UDP clients are deleted again");
                }
                Vec::new()
            }
            Err(failure) => {
                let error = failure.error;
                if self.logged.differs(&error) {
                    tracing::warn!(
                        "{family}: a UDP client that keeps its socket may still send to a removed \
                         endpoint, because Tripod {error}; the kernel needs nf_conntrack_netlink, \
                         and Tripod needs CAP_NET_ADMIN"
                    );
                }
                self.is_lasting = failure.is_lasting;
                failure.matches
            }
        }
    }

    /// Returns unfinished work, if there is any.
    pub fn unfinished(&self) -> Option<String> {
        let waits = !self.waiting.is_empty() && !self.is_lasting;
        let udp = waits.then_some("flows of UDP clients to removed endpoints are not deleted yet");
        let what = udp.or(self.begun.unfinished());
        what.map(ToOwned::to_owned)
    }
}

/// Why flows were not deleted.
#[derive(Debug)]
pub struct Failure {
    /// The error, worded to follow the name "Tripod".
    pub error: String,
    /// Whether it will be the same the next time.
    pub is_lasting: bool,
    /// The matches whose flows were not all deleted.
    pub matches: Vec<Match>,
}

/// Deletes the flows that match one of `matches`, and returns how many flows that were.
///
/// # Errors
/// When the kernel could not be asked, or did not delete them.
pub async fn delete(family: Family, matches: Vec<Match>) -> Result<usize, Failure> {
    if matches.is_empty() {
        return Ok(0);
    }
    // The socket belongs to the network namespace of the thread that opens it;
    // the table may hold a million entries, which takes a while.
    let socket = Socket::open(netlink::Protocol::Netfilter);
    let matches = Arc::new(matches);
    let shared = Arc::clone(&matches);
    let work = move || {
        let mut socket = socket?;
        flows::delete(&mut socket, family, &shared)
    };
    deleted(blocking(work).await, matches)
}

/// Does blocking work in another thread, if the system has threads. Otherwise the calls of both IP
/// families would come in an order that the scheduler determines.
///
/// # Errors
/// When the work panics, or the runtime is shutting down.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if system::current().has_threads() {
        spawn_blocking(work).await
    } else {
        Ok(work())
    }
}

/// Outcome of deleting the flows of `matches`, by a task that has `ended`.
///
/// # Errors
/// When the deletion failed, or was not completed.
fn deleted(
    ended: Result<Result<usize, netlink::Error>, JoinError>,
    matches: Arc<Vec<Match>>,
) -> Result<usize, Failure> {
    let (error, is_lasting) = match ended {
        Ok(Ok(count)) => return Ok(count),
        Ok(Err(error)) => {
            let is_lasting = error.errno().is_some_and(|errno| LASTING.contains(&errno));
            (error.to_string(), is_lasting)
        }
        // It ended by a panic, or because the runtime is shutting down.
        Err(error) => (format!("did not delete all of them: {error}"), false),
    };
    Err(Failure {
        error,
        is_lasting,
        matches: Arc::unwrap_or_clone(matches),
    })
}

#[cfg(test)]
mod tests {

    use serde::de::DeserializeOwned;

    use super::*;
    use crate::services::{EndpointSlice, Event, Names, Service, Tracker};

    fn yaml<T: DeserializeOwned>(text: &str) -> T {
        serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
    }

    /// A Service `dns` whose UDP port has this name and the node port 30053, and
    /// its endpoints, by the last byte.
    fn dns(port: &str, endpoints: &[u8]) -> [Event; 2] {
        let service: crate::services::wire::Service = yaml(&format!(
            "{{metadata: {{name: dns}}, spec: {{type: NodePort, clusterIP: 10.0.0.1, ports: \
             [{{name: '{port}', port: 53, protocol: UDP, nodePort: 30053}}]}}}}"
        ));
        let endpoints: String = endpoints
            .iter()
            .map(|at| format!("{{addresses: [10.1.0.{at}]}},"))
            .collect();
        let slice: crate::services::wire::EndpointSlice = yaml(&format!(
            "{{metadata: {{name: dns, labels: {{kubernetes.io/service-name: dns}}}}, \
             addressType: IPv4, ports: [{{name: '{port}', port: 53, protocol: UDP}}], \
             endpoints: [{endpoints}]}}"
        ));
        let mut names = Names::default();
        let service = Service::reduce(&service, &mut names).expect("a Service");
        let slice = EndpointSlice::reduce(&slice, &mut names).expect("a slice");
        [
            Event::Service(Arc::new(service.object)),
            Event::EndpointSlice(Arc::new(slice.object)),
        ]
    }

    /// Returns whether any of `matches` deletes the flow that went to `frontend` and
    /// was translated to endpoint `at`.
    fn deletes(matches: &[Match], frontend: Frontend, at: u8) -> bool {
        let source = Source::from(SocketAddr::from(([10, 1, 0, at], 53)));
        let mut of_frontend = matches
            .iter()
            .filter(|m| (m.destination, m.port) == (frontend.address, Some(frontend.port)));
        of_frontend.any(|m| match &m.reply {
            Reply::Any => true,
            Reply::From(sources) => sources.contains(&source),
            Reply::NotFrom(sources) => !sources.contains(&source),
        })
    }

    #[test]
    fn flows_stay_where_address_port_and_endpoint_still_serve() {
        for (case, after, deleted) in [
            ("nothing changes", dns("a", &[1, 2]), [false, false]),
            ("renamed", dns("b", &[1, 2]), [false, false]),
            ("renamed, one endpoint goes", dns("b", &[2]), [true, false]),
            ("one endpoint goes", dns("a", &[2]), [true, false]),
            ("renamed, other endpoints", dns("b", &[3]), [true, true]),
            ("renamed, without endpoints", dns("b", &[]), [true, true]),
        ] {
            let mut tracker = Tracker::new("node");
            tracker.apply(dns("a", &[1, 2]));
            let stale = tracker.apply(after).stale_udp;
            let matches = matches(Family::V4, tracker.map(), &stale);
            let service = Frontend::service(Protocol::Udp, [10, 0, 0, 1].into(), 53);
            let node_port = Frontend::node_port(Protocol::Udp, Family::V4, 30_053);
            for frontend in [service, node_port] {
                let found = [1, 2].map(|at| deletes(&matches, frontend, at));
                assert_eq!(found, deleted, "{case}, {frontend:?}: {matches:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_panic_has_deleted_nothing() {
        let ended = spawn_blocking(|| panic!("a fault")).await;
        let node_port = Frontend::node_port(Protocol::Udp, Family::V4, 53);
        let matches = vec![flows(&node_port, Reply::Any)];
        let failure = deleted(ended, Arc::new(matches.clone())).expect_err("it was not done");
        assert_eq!(failure.matches, matches, "it is tried again");
        assert!(!failure.is_lasting && failure.error.contains("panic"));
    }

    #[test]
    fn of_what_waited_only_what_does_not_serve_by_then_is_deleted() {
        let service = Frontend::service(Protocol::Udp, [10, 0, 0, 1].into(), 53);
        let of = |all: &[u8]| -> HashSet<Source> {
            let all = all.iter();
            all.map(|at| Source::from(SocketAddr::from(([10, 1, 0, *at], 53))))
                .collect()
        };
        let mut tracker = Tracker::new("node");
        tracker.apply(dns("a", &[1, 2]));
        // Each case: the waiting flows, and which of the flows to endpoints 1 to 3 are deleted.
        for (waited, deleted) in [
            (Reply::From(of(&[1])), [false, false, false]),
            (Reply::From(of(&[1, 3])), [false, false, true]),
            (Reply::Any, [false, false, true]),
            (Reply::NotFrom(of(&[1])), [false, false, true]),
            (Reply::NotFrom(of(&[3])), [false, false, false]),
        ] {
            let matches = still_stale(
                Family::V4,
                tracker.map(),
                [(service, waited.clone())].into(),
            );
            let found = [1, 2, 3].map(|at| deletes(&matches, service, at));
            assert_eq!(found, deleted, "{waited:?}: {matches:?}");
        }
        let gone = Frontend::service(Protocol::Udp, [10, 0, 0, 9].into(), 53);
        let matches = still_stale(Family::V4, tracker.map(), [(gone, Reply::Any)].into());
        assert_eq!(matches, [flows(&gone, Reply::Any)]);
    }

    #[test]
    fn an_endpoint_that_came_back_before_the_sync_keeps_its_flows() {
        let mut tracker = Tracker::new("node");
        tracker.apply(dns("a", &[1, 2]));
        let mut changes = tracker.apply(dns("a", &[2]));
        changes.merge(tracker.apply(dns("a", &[1, 2])));
        assert_eq!(changes.stale_udp.endpoints.len(), 1);
        let matches = matches(Family::V4, tracker.map(), &changes.stale_udp);
        assert_eq!(matches, []);
    }
}
