//! UDP flows whose connection-tracking entries translate to something that does not
//! answer any more, or do not translate although something would answer now; and connections of
//! other protocols that began before anything served where they were made.

mod ranges;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::Instant,
};

use net::{Family, Frontend, Protocol};
use netlink::{
    Socket,
    conntrack::{
        flows::{self, Match, Reply, Source, UDP},
        unanswered,
    },
    system,
};
use nix::errno::Errno;
use tokio::task::{JoinError, spawn_blocking};

use self::ranges::{RangeFlows, StaleRange};
use crate::{
    log_once::LogOnce,
    modes::Metrics,
    node::addresses,
    services::{Changes, MOST_WAITING, ServiceMap, ServicePort, ServicePortName, Stale},
};

/// Protocols of connections.
const CONNECTIONS: [Protocol; 2] = [Protocol::Tcp, Protocol::Sctp];

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

fn serving(port: &ServicePort) -> HashSet<Source> {
    let serving = port.endpoints.all.iter().filter(|e| e.may_have_flows());
    serving.map(|e| Source::from(e.address)).collect()
}

/// Flows and connections of one family to delete.
#[derive(Debug, Default, PartialEq)]
struct Patterns {
    udp: Vec<Match>,
    /// Flows to ranges of ports, those of `udp` that stay and others that are deleted; `None`: there
    /// are none.
    ranges: Option<RangeFlows>,
    /// Frontends of which connections are deleted that were neither translated nor answered.
    untranslated: HashSet<Frontend>,
}

/// Finds what to delete in `family` of what may be `stale`, now that `map` is applied. A flow stays
/// if its address, port and endpoint still serve, even if the ServicePort has another name now: the
/// new owner of a frontend has changed as well. A node port is looked for on any address, as only
/// the kernel knows which ones it translated; so of flows to a node port that is gone, only those
/// that were translated to an endpoint are deleted.
fn patterns(family: Family, map: &ServiceMap, stale: &Stale) -> Patterns {
    let of_family = |name: &ServicePortName| name.family == family;
    let former = || stale.ports.iter().filter(|(name, _)| of_family(name));
    let ports: Vec<_> = if stale.all {
        map.iter().filter(|port| of_family(&port.name)).collect()
    } else {
        former().filter_map(|(name, _)| map.get(name)).collect()
    };
    let sources = |gone: &BTreeSet<SocketAddr>| gone.iter().copied().map(Source::from).collect();
    let mut found = Patterns::default();
    let addresses =
        |gone: &BTreeSet<SocketAddr>| Arc::new(gone.iter().map(SocketAddr::ip).collect());
    let (mut answered, mut ranges) = (HashMap::new(), Vec::new());
    for port in ports {
        let former = stale.ports.get(&port.name);
        let begun = stale.all || former.is_some_and(|former| former.begun);
        if port.name.protocol != Protocol::Udp {
            if begun && port.endpoints.any_taken_here() {
                found.untranslated.extend(port.frontends());
            }
            continue;
        }
        if port.is_range() {
            let gone = former
                .map(|former| addresses(&former.gone))
                .unwrap_or_default();
            let stale = |at| StaleRange {
                at,
                begun,
                gone: Arc::clone(&gone),
            };
            ranges.extend(
                port.frontends()
                    .map(stale)
                    .filter(|_| begun || !gone.is_empty()),
            );
            continue;
        }
        let serving = Arc::new(serving(port));
        let gone: HashSet<Source> = former.map(|f| sources(&f.gone)).unwrap_or_default();
        for at in port.frontends() {
            // Flows to a node port may be those of others, at other addresses.
            let may_be_of_others = at.address.is_none() && serving.is_empty();
            let reply = if begun && !may_be_of_others {
                Reply::NotFrom((*serving).clone())
            } else {
                Reply::From(&gone - &serving)
            };
            found.udp.push(flows(&at, reply));
            answered.insert(at, Arc::clone(&serving));
        }
    }
    for (_, former) in former() {
        let (lost_ranges, lost): (Vec<Frontend>, Vec<Frontend>) =
            former.lost.iter().partition(|at| at.last_port.is_some());
        let gone = addresses(&former.gone);
        ranges.extend(lost_ranges.into_iter().map(|at| StaleRange {
            at,
            begun: true,
            gone: Arc::clone(&gone),
        }));
        for at in &lost {
            let now = answered.get(at).map(|now| (**now).clone());
            let reply = match (at.address, now) {
                (Some(_), None) => Reply::Any,
                (Some(_), Some(now)) => Reply::NotFrom(now),
                (None, now) => Reply::From(&sources(&former.gone) - &now.unwrap_or_default()),
            };
            found.udp.push(flows(at, reply));
        }
    }
    let is_empty = |reply: &Reply| matches!(reply, Reply::From(gone) if gone.is_empty());
    found.udp.retain(|one| !is_empty(&one.reply));
    // A node port is looked for at addresses of ranges, too.
    let may_be_of_ranges = map.counts().get(family).ranges > 0
        && found.udp.iter().any(|one| one.destination.is_none());
    found.ranges =
        (may_be_of_ranges || !ranges.is_empty()).then(|| RangeFlows::new(family, map, ranges));
    found
}

/// Stale flows of one family that were not deleted yet.
#[derive(Debug, Default)]
pub struct StaleFlows {
    stale: Stale,
    /// Whether the last attempt failed, and if so, whether for a reason that will most likely be
    /// the same the next time: then no retry is due for it, only the next full sync tries again.
    failed: Option<bool>,
    /// Logs why the last attempt failed.
    logged: LogOnce,
    /// Some do not even wait, as there are too many.
    dropped: LogOnce,
}

impl StaleFlows {
    /// Makes the next [`clear`](Self::clear) compare all flows with the endpoints that serve: rules
    /// had been missing, and clients that called meanwhile were not translated.
    pub fn rules_were_missing(&mut self) {
        self.stale.all = true;
    }

    /// Makes the next [`clear`](Self::clear) delete the flows that were not translated for
    /// ServicePorts that are applied now and may not have been before.
    pub fn came_in_force<'a>(&mut self, names: impl IntoIterator<Item = &'a ServicePortName>) {
        for name in names {
            self.stale.ports.entry(name.clone()).or_default().begun = true;
        }
    }

    /// Deletes the flows of `family` that are stale after `changes`, now that `map` is applied, and
    /// those that were before. After a failure all wait until a retry is due.
    pub async fn clear(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        metrics: &dyn Metrics,
    ) {
        self.stale.merge(changes.stale.clone());
        if self.failed.is_none() || changes.full || changes.retry {
            let patterns = patterns(family, map, &self.stale);
            self.failed = self.delete(family, patterns, metrics).await;
            if self.failed.is_none() {
                self.stale = Stale::default();
            }
        }
        let dropped = self.stale.bound() > 0;
        let what = dropped.then(|| {
            format!(
                "{family}: flows of UDP clients to removed Services are deleted for {MOST_WAITING} \
                 addresses and ports only; the others end when the client stops sending"
            )
        });
        self.dropped.end_others(what.as_slice());
        for what in self.dropped.replace(what) {
            tracing::warn!("{what}");
        }
    }

    /// Deletes what matches `patterns`; returns whether a failure is lasting, if it failed.
    async fn delete(
        &mut self,
        family: Family,
        patterns: Patterns,
        metrics: &dyn Metrics,
    ) -> Option<bool> {
        if patterns == Patterns::default() {
            return None;
        }
        let begun = Instant::now();
        let udp = delete_unless(family, patterns.udp, patterns.ranges).await;
        let others = delete_untranslated(family, patterns.untranslated).await;
        match udp.and_then(|udp| Ok(udp + others?)) {
            Ok(count) => {
                metrics.conntrack_cleared(family, begun.elapsed(), count as u64);
                if self.logged.end() {
                    tracing::info!("{family}: stale flows are deleted again");
                }
                None
            }
            Err(Failure { error, is_lasting }) => {
                if self.logged.differs(&error) {
                    tracing::warn!(
                        "{family}: a UDP client that keeps its socket may still send to a removed \
                         endpoint, and clients that called a Service before it was served may wait \
                         for minutes, because Tripod {error}; the kernel needs \
                         nf_conntrack_netlink, and Tripod needs CAP_NET_ADMIN"
                    );
                }
                Some(is_lasting)
            }
        }
    }

    /// Returns unfinished work, if there is any.
    pub fn unfinished(&self) -> Option<String> {
        let waits = self.failed == Some(false);
        waits.then(|| {
            "flows of UDP clients to removed endpoints, and unanswered connections from before a \
             Service was served, are not deleted yet"
                .to_owned()
        })
    }
}

/// Why flows were not deleted.
#[derive(Debug)]
pub struct Failure {
    /// The error, worded to follow the name "Tripod".
    pub error: String,
    /// Whether it will be the same the next time.
    pub is_lasting: bool,
}

/// Deletes the flows that match one of `matches`, and returns how many flows that were.
///
/// # Errors
/// When the kernel could not be asked, or did not delete them.
pub async fn delete(family: Family, matches: Vec<Match>) -> Result<usize, Failure> {
    delete_unless(family, matches, None).await
}

/// The same, except flows that `ranges` keep; and deletes those to ranges that are stale.
async fn delete_unless(
    family: Family,
    matches: Vec<Match>,
    ranges: Option<RangeFlows>,
) -> Result<usize, Failure> {
    if matches.is_empty() && ranges.is_none() {
        return Ok(0);
    }
    // The socket belongs to the network namespace of the thread that opens it;
    // the table may hold a million entries, which takes a while.
    let socket = Socket::open(netlink::Protocol::Netfilter);
    let own = ranges.is_some().then(addresses::own);
    let work = move || {
        let mut socket = socket?;
        let (Some(mut ranges), Some(own)) = (ranges, own) else {
            return flows::delete(&mut socket, family, &matches);
        };
        ranges.leave_out(&own?);
        let others = flows::delete_if(&mut socket, family, &matches, |flow| !ranges.keeps(flow))?;
        let to_ranges = ranges.matches();
        let stale = flows::delete_if(&mut socket, family, &to_ranges, |flow| {
            ranges.is_stale(flow)
        })?;
        Ok(others + stale)
    };
    deleted(blocking(work).await)
}

/// Deletes the entries of connections to `frontends` that were neither translated nor answered, and
/// returns how many there were: they translate to nothing, and each SYN that a client sends again
/// follows its entry.
///
/// # Errors
/// When the kernel could not be asked, or did not delete them.
pub async fn delete_untranslated(
    family: Family,
    frontends: HashSet<Frontend>,
) -> Result<usize, Failure> {
    let of = |protocol| frontends.iter().any(|at| at.protocol == protocol);
    let protocols: Vec<Protocol> = CONNECTIONS.into_iter().filter(|one| of(*one)).collect();
    if protocols.is_empty() {
        return Ok(0);
    }
    let socket = Socket::open(netlink::Protocol::Netfilter);
    let work = move || {
        let mut socket = socket?;
        let mut count = 0;
        for protocol in protocols {
            count += unanswered::delete_untranslated(&mut socket, family, protocol, &frontends)?;
        }
        Ok(count)
    };
    deleted(blocking(work).await)
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

/// Outcome of deleting flows, by a task that has `ended`.
///
/// # Errors
/// When the deletion failed, or was not completed.
fn deleted(ended: Result<Result<usize, netlink::Error>, JoinError>) -> Result<usize, Failure> {
    let (error, is_lasting) = match ended {
        Ok(Ok(count)) => return Ok(count),
        Ok(Err(error)) => {
            let is_lasting = error.errno().is_some_and(|errno| LASTING.contains(&errno));
            (error.to_string(), is_lasting)
        }
        // It ended by a panic, or because the runtime is shutting down.
        Err(error) => (format!("did not delete all of them: {error}"), false),
    };
    Err(Failure { error, is_lasting })
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;
    use crate::services::{
        EndpointSlice, Event, Former, Loopback, Names, Object, Service, Tracker,
    };

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
        let slice = EndpointSlice::reduce(&slice, Loopback::Refused, &mut names).expect("a slice");
        [
            Event::Changed(Object::Service(Arc::new(service.object))),
            Event::Changed(Object::EndpointSlice(Arc::new(slice.object))),
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
            let stale = tracker.apply(after).stale;
            let matches = patterns(Family::V4, tracker.map(), &stale).udp;
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
        let failure = deleted(ended).expect_err("it was not done");
        assert!(!failure.is_lasting && failure.error.contains("panic"));
    }

    #[test]
    fn of_what_waited_only_what_does_not_serve_by_then_is_deleted() {
        let service = Frontend::service(Protocol::Udp, [10, 0, 0, 1].into(), 53);
        let node_port = Frontend::node_port(Protocol::Udp, Family::V4, 30_053);
        let mut tracker = Tracker::new("node");
        tracker.apply(dns("a", &[1, 2]));
        let name = tracker.map().iter().next().expect("dns").name.clone();
        let of = |all: &[u8]| {
            let all = all.iter();
            all.map(|at| SocketAddr::from(([10, 1, 0, *at], 53)))
                .collect()
        };
        let former = |lost: &[Frontend], gone: &[u8], begun| Former {
            lost: lost.iter().copied().collect(),
            gone: of(gone),
            begun,
        };
        // Each case: what waits, and which of the flows to endpoints 1 to 3 are deleted.
        for (waited, deleted) in [
            (former(&[], &[1], false), [false, false, false]),
            (former(&[], &[1, 3], false), [false, false, true]),
            (former(&[], &[], true), [false, false, true]),
            (former(&[node_port], &[1, 3], false), [false, false, true]),
        ] {
            let mut stale = Stale::default();
            stale.ports.insert(name.clone(), waited.clone());
            let matches = patterns(Family::V4, tracker.map(), &stale).udp;
            for frontend in [service, node_port] {
                let found = [1, 2, 3].map(|at| deletes(&matches, frontend, at));
                assert_eq!(found, deleted, "{waited:?}, {frontend:?}: {matches:?}");
            }
        }
        let gone = Frontend::service(Protocol::Udp, [10, 0, 0, 9].into(), 53);
        for (all, lost, reply) in [
            (false, gone, Reply::Any),
            (true, gone, Reply::Any),
            (
                true,
                service,
                Reply::NotFrom(serving(tracker.map().get(&name).expect("dns"))),
            ),
        ] {
            let former = [(name.over(Protocol::Sctp), former(&[lost], &[], false))];
            let ports = former.into_iter().collect();
            let matches = patterns(Family::V4, tracker.map(), &Stale { ports, all }).udp;
            assert_eq!(matches.last(), Some(&flows(&lost, reply)));
            assert_eq!(matches.len(), if all { 3 } else { 1 });
        }
    }

    /// Without endpoints, nothing tells the flows to a node port from those that others forward to
    /// the same port number.
    #[test]
    fn flows_to_a_node_port_without_endpoints_stay() {
        let mut tracker = Tracker::new("node");
        let begun = tracker.apply(dns("a", &[])).stale;
        for all in [false, true] {
            let stale = Stale {
                all,
                ..begun.clone()
            };
            let matches = patterns(Family::V4, tracker.map(), &stale).udp;
            let destinations: Vec<_> = matches.iter().map(|one| one.destination).collect();
            assert_eq!(destinations, [Some([10, 0, 0, 1].into())]);
        }
    }

    #[test]
    fn an_endpoint_that_came_back_before_the_sync_keeps_its_flows() {
        let mut tracker = Tracker::new("node");
        tracker.apply(dns("a", &[1, 2]));
        let mut changes = tracker.apply(dns("a", &[2]));
        changes.merge(tracker.apply(dns("a", &[1, 2])));
        let mut former = changes.stale.ports.values();
        assert!(former.any(|former| former.gone.len() == 1));
        let found = patterns(Family::V4, tracker.map(), &changes.stale);
        assert_eq!(found, Patterns::default());
    }
}
