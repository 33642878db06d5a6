use std::{
    collections::BTreeSet,
    future::ready,
    io,
    net::{IpAddr, SocketAddr},
    sync::Mutex,
};

use net::Family;
use prometheus::Registry;
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{advance, sleep},
};

use super::*;
use crate::{
    config::ModeName,
    modes::{
        Asked, Compared, ExplainResult, Outcomes, Packet, progress::SyncProgress,
        userspace::capture,
    },
    services::{
        EndpointSlice, Loopback, Names, Node, Service, ServicePortName,
        service_ports::{port_name, service_name},
    },
};

mod failing;

const MS: Duration = Duration::from_millis(1);

/// Arguments of a sync: its time in milliseconds, whether it was full, and the changed Services.
type Call = (u128, bool, Vec<String>);

/// Arguments of a sync of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SyncCall {
    at: u128,
    family: Family,
    retry: bool,
    stale_endpoints: usize,
}

/// A mode that records its syncs and behaves as the test specifies.
struct RecordingMode {
    start: Instant,
    calls: watch::Sender<Vec<Call>>,
    asked: Arc<Mutex<Vec<SyncCall>>>,
    behaviour: Arc<Mutex<Behaviour>>,
    progress: PerFamily<SyncProgress>,
}

#[derive(Clone, Default)]
struct Behaviour {
    fails: bool,
    ipv6_fails: bool,
    unfinished: Vec<String>,
    fails_for: Vec<ServicePortName>,
    takes: Duration,
    lingering: usize,
    comparisons_hang: bool,
    ipv6_is_unserved: bool,
}

impl Mode for RecordingMode {
    fn name(&self) -> ModeName {
        ModeName::Userspace
    }

    async fn sync(&mut self, _: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let behaviour = self.behaviour.lock().unwrap().clone();
        let at = (Instant::now() - self.start).as_millis();
        let (mut full, mut names) = (false, BTreeSet::new());
        for (family, changes) in asked {
            let Some(changes) = changes else {
                continue;
            };
            full |= changes.full;
            let progress = self.progress.get(family);
            progress.begin("rules", 7);
            progress.send(3);
            progress.confirm();
            names.extend(changes.ports.iter().map(|p| p.service.name.to_string()));
            let stale = changes.stale.ports.values();
            self.asked.lock().unwrap().push(SyncCall {
                at,
                family,
                retry: changes.retry,
                stale_endpoints: stale.map(|former| former.gone.len()).sum(),
            });
        }
        let call = (at, full, names.into_iter().collect());
        self.calls.send_modify(|calls| calls.push(call));
        // A sleep may yield, even one of no time.
        if !behaviour.takes.is_zero() {
            sleep(behaviour.takes).await;
        }
        asked.map(|family, changes| {
            changes?;
            if behaviour.fails || behaviour.ipv6_fails && family == Family::V6 {
                return Some(Err(SyncError::Capture(broken())));
            }
            let fails_for = behaviour.fails_for.iter();
            let failed = fails_for.filter(|name| name.family == family);
            Some(Ok(SyncReport {
                failed: failed
                    .map(|name| (name.clone(), "taken".to_owned()))
                    .collect(),
                unfinished: behaviour.unfinished.clone(),
                lingering: behaviour.lingering,
                not_served: (behaviour.ipv6_is_unserved && family == Family::V6)
                    .then(|| "no ip6tables".to_owned()),
                ..SyncReport::default()
            }))
        })
    }

    async fn compare(&mut self, _: &ServiceMap) -> Compared {
        let hangs = self.behaviour.lock().unwrap().comparisons_hang;
        if hangs {
            std::future::pending::<()>().await;
        }
        Compared::default()
    }

    async fn explain(&mut self, _: &ServiceMap, _: &Packet) -> ExplainResult {
        Err(SyncError::Runtime(io::Error::other("no test asks")))
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        self.progress.clone()
    }
}

struct Addresses(Receiver<()>);

impl NodeAddresses for Addresses {
    fn serving_node_ports(&mut self, _: Option<&Node>) -> io::Result<BTreeSet<IpAddr>> {
        Ok(BTreeSet::new())
    }

    async fn changed(&mut self) -> io::Result<()> {
        self.0
            .recv()
            .await
            .ok_or_else(|| io::Error::other("closed"))
    }
}

/// Records which Services were applied.
struct Follower(Arc<Mutex<Followed>>);

/// Families that were synced, and the changed Services.
type Followed = Vec<(Family, Vec<String>)>;

impl AfterSync for Follower {
    fn synced(&mut self, family: Family, _: &ServiceMap, changes: &Changes) {
        let names: BTreeSet<_> = changes.ports.iter().map(|p| &p.service.name).collect();
        let names = names.into_iter().map(|name| name.to_string()).collect();
        self.0.lock().unwrap().push((family, names));
    }
}

/// A running runner, under a paused clock.
struct Bench {
    batches: mpsc::Sender<Batch>,
    addresses: mpsc::Sender<()>,
    calls: watch::Receiver<Vec<Call>>,
    asked: Arc<Mutex<Vec<SyncCall>>>,
    followed: Arc<Mutex<Followed>>,
    behaviour: Arc<Mutex<Behaviour>>,
    health: Arc<Health>,
    questions: Questions,
    status: Arc<Status>,
    registry: Registry,
    names: Names,
    _runner: JoinHandle<()>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(schedule::Options {
            burst: 1,
            ..schedule::Options::default()
        })
    }

    fn with(options: schedule::Options) -> Bench {
        let (batches, from_batches) = mpsc::channel(1024);
        let (addresses, from_addresses) = mpsc::channel(16);
        let (calls, seen) = watch::channel(Vec::new());
        let behaviour = Arc::default();
        let asked = Arc::default();
        let followed = Arc::default();
        let health = Arc::new(Health::new(2 * options.sync_period));
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let mode = RecordingMode {
            start: Instant::now(),
            calls,
            asked: Arc::clone(&asked),
            behaviour: Arc::clone(&behaviour),
            progress: PerFamily::default(),
        };
        let tracker = Tracker::new("node");
        let mut runner = Runner::new(mode, tracker, options, Arc::clone(&health), metrics);
        runner.follow(Follower(Arc::clone(&followed)));
        let (questions, status) = (runner.questions(), runner.status());
        let _runner = tokio::spawn(async move {
            runner
                .run(from_batches, Some(Addresses(from_addresses)), ready(()))
                .await;
        });
        Bench {
            batches,
            addresses,
            calls: seen,
            asked,
            followed,
            behaviour,
            health,
            questions,
            status,
            registry,
            names: Names::default(),
            _runner,
        }
    }

    async fn send(&self, events: Vec<Event>) {
        self.batches.send(events).await.unwrap();
        settle().await;
    }

    fn service(&mut self, name: &str, ip: &str) -> Event {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}], "internalTrafficPolicy": "Local"},
        });
        let object = serde_json::from_value(object).unwrap();
        Event::Changed(Object::Service(Arc::new(
            Service::reduce(&object, &mut self.names).unwrap().object,
        )))
    }

    /// A UDP Service with addresses of both families.
    fn dual_stack(&mut self, name: &str) -> Event {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {
                "clusterIP": "10.0.0.53", "clusterIPs": ["10.0.0.53", "fd00::53"],
                "ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 53, "protocol": "UDP"}],
            },
        });
        let object = serde_json::from_value(object).unwrap();
        let service = Service::reduce(&object, &mut self.names).unwrap().object;
        Event::Changed(Object::Service(Arc::new(service)))
    }

    fn slice(&mut self, service: &str, address: SocketAddr) -> Event {
        self.slice_of("TCP", service, address)
    }

    fn slice_of(&mut self, protocol: &str, service: &str, address: SocketAddr) -> Event {
        let family = Family::of(&address.ip()).to_string();
        let name = format!("{service}-{family}").to_lowercase();
        let object = json!({
            "metadata": {"namespace": "ns", "name": name, "labels": {"kubernetes.io/service-name": service}},
            "addressType": family,
            "ports": [{"port": address.port(), "protocol": protocol, "name": ""}],
            "endpoints": [{"addresses": [address.ip()], "nodeName": "elsewhere"}],
        });
        let object = serde_json::from_value(object).unwrap();
        let slice = EndpointSlice::reduce(&object, Loopback::Refused, &mut self.names)
            .unwrap()
            .object;
        Event::Changed(Object::EndpointSlice(Arc::new(slice)))
    }

    /// The syncs since the last call.
    fn take(&mut self, from: usize) -> Vec<Call> {
        self.calls.borrow_and_update()[from..].to_vec()
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name)?;
        let metric = family.get_metric().iter().find(|metric| {
            let mut has = labels.iter().map(|(name, value)| {
                let mut all = metric.get_label().iter();
                all.any(|label| label.name() == *name && label.value() == *value)
            });
            has.all(|has| has)
        })?;
        Some(match family.get_field_type() {
            prometheus::proto::MetricType::COUNTER => metric.get_counter().get_value(),
            prometheus::proto::MetricType::HISTOGRAM => {
                metric.get_histogram().get_sample_count() as f64
            }
            _ => metric.get_gauge().get_value(),
        })
    }
}

/// Lets every task run that is ready, without time passing.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn pass(time: Duration) {
    advance(time).await;
    settle().await;
}

fn broken() -> capture::Error {
    capture::Error::Unsupported {
        method: capture::Method::Redirect,
        reason: "it is broken".to_owned(),
    }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_sync_waits_for_the_first_batch_and_is_full() {
    let mut bench = Bench::new();
    pass(100_000 * MS).await;
    bench.addresses.send(()).await.unwrap();
    settle().await;
    assert_eq!(bench.take(0), []);
    bench.send(Vec::new()).await;
    assert_eq!(bench.take(0), [(100_000, true, names(&[]))]);
}

#[test]
fn other_tasks_run_however_short_the_periods_are() {
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::with(schedule::Options {
                min_interval: Duration::ZERO,
                sync_period: Duration::from_nanos(1),
                ..schedule::Options::default()
            });
            bench.send(Vec::new()).await;
        });
        end.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(10));
    ended.expect("only the runner has a turn");
}

#[tokio::test(start_paused = true)]
async fn a_storm_is_one_batch() {
    let mut bench = Bench::new();
    bench.send(Vec::new()).await;
    pass(1_000 * MS).await;
    let mut expected = Vec::new();
    for n in 0..100 {
        let event = bench.service(&format!("s{n:02}"), &format!("10.0.0.{}", n + 1));
        bench.send(vec![event]).await;
        expected.push(format!("s{n:02}"));
    }
    pass(10 * MS).await;
    let first = (1_000, false, names(&["s00"]));
    let rest = (1_010, false, expected.split_off(1));
    assert_eq!(bench.take(1), [first, rest]);
    let total = "kubeproxy_sync_proxy_rules_service_changes_total";
    assert_eq!(bench.value(total, &[]), Some(100.0));
}

#[tokio::test(start_paused = true)]
async fn what_changes_nothing_is_not_synced() {
    let mut bench = Bench::new();
    let event = bench.service("web", "10.0.0.1");
    bench.send(vec![event.clone()]).await;
    pass(1_000 * MS).await;
    bench.send(vec![event]).await;
    pass(1_000 * MS).await;
    assert_eq!(bench.take(0).len(), 1);
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending";
    assert_eq!(bench.value(pending, &[]), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn everything_is_synced_every_sync_period_and_when_node_addresses_change() {
    let mut bench = Bench::new();
    bench.send(Vec::new()).await;
    pass(10_000 * MS).await;
    bench.addresses.send(()).await.unwrap();
    settle().await;
    pass(29_999 * MS).await;
    assert_eq!(bench.take(1), [(10_000, true, names(&[]))]);
    pass(MS).await;
    assert_eq!(bench.take(2), [(40_000, true, names(&[]))]);
}

#[tokio::test(start_paused = true)]
async fn changes_stay_pending_until_a_sync_succeeds() {
    let mut bench = Bench::new();
    bench.send(Vec::new()).await;
    pass(1_000 * MS).await;
    bench.behaviour.lock().unwrap().fails = true;
    let a = bench.service("a", "10.0.0.1");
    bench.send(vec![a]).await;
    let b = bench.service("b", "10.0.0.2");
    bench.send(vec![b]).await;
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending";
    assert_eq!(bench.value(pending, &[]), Some(2.0));
    pass(1_000 * MS).await;
    bench.behaviour.lock().unwrap().fails = false;
    pass(2_000 * MS).await;
    let both = names(&["a", "b"]);
    assert_eq!(
        bench.take(1),
        [
            (1_000, false, names(&["a"])),
            (2_000, false, both.clone()),
            (4_000, false, both)
        ]
    );
    let failures = |family| bench.value("tripod_sync_failures_total", &[("ip_family", family)]);
    assert_eq!((failures("IPv4"), failures("IPv6")), (Some(2.0), Some(0.0)));
    assert_eq!(bench.value(pending, &[]), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn what_failed_for_single_ports_is_retried() {
    let mut bench = Bench::new();
    let web = bench.service("web", "10.0.0.1");
    bench.behaviour.lock().unwrap().fails_for = vec![port_name("ns/web")];
    bench.send(vec![web]).await;
    assert_eq!(bench.value("tripod_service_ports_failed", &[]), Some(1.0));
    assert!(bench.health.snapshot().healthy, "one port is not the node");
    pass(1_000 * MS).await;
    bench.behaviour.lock().unwrap().fails_for.clear();
    pass(2_000 * MS).await;
    pass(10_000 * MS).await;
    let times: Vec<_> = bench.take(0).iter().map(|call| call.0).collect();
    assert_eq!(times, [0, 1_000, 3_000]);
    assert_eq!(bench.value("tripod_service_ports_failed", &[]), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn lingering_addresses_are_synced_again() {
    let mut bench = Bench::new();
    bench.behaviour.lock().unwrap().lingering = 1;
    bench.send(Vec::new()).await;
    pass(1_000 * MS).await;
    bench.behaviour.lock().unwrap().lingering = 0;
    pass(1_000 * MS).await;
    pass(5_000 * MS).await;
    let times: Vec<_> = bench.take(0).iter().map(|call| call.0).collect();
    assert_eq!(times, [0, 1_000, 2_000]);
}
