use std::{
    net::{IpAddr, SocketAddr},
    sync::Mutex,
};

use prometheus::Registry;
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::JoinHandle,
    time::{advance, sleep},
};

use super::*;
use crate::{
    kernel::xtables::Engine,
    modes::{Asked, Outcomes, userspace::capture},
    net::{Family, ModeName},
    services::{
        EndpointSlice, Names, Service, ServicePortName,
        service_ports::{port_name, service_name},
    },
};

const MS: Duration = Duration::from_millis(1);

/// What a sync was asked for: its time in milliseconds, whether it was full,
/// and the changed Services.
type Call = (u128, bool, Vec<String>);

/// What a sync of one family was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asking {
    at: u128,
    family: Family,
    retry: bool,
    stale_endpoints: usize,
}

/// A mode that notes its syncs and does as it is told.
struct Noting {
    start: Instant,
    calls: watch::Sender<Vec<Call>>,
    asked: Arc<Mutex<Vec<Asking>>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

#[derive(Clone, Default)]
struct Behaviour {
    fails: bool,
    ipv6_fails: bool,
    unfinished: Vec<String>,
    fails_for: Vec<ServicePortName>,
    takes: Duration,
    lingering: usize,
}

impl Mode for Noting {
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
            names.extend(changes.ports.iter().map(|p| p.service.name.to_string()));
            self.asked.lock().unwrap().push(Asking {
                at,
                family,
                retry: changes.retry,
                stale_endpoints: changes.stale_udp.endpoints.len(),
            });
        }
        let call = (at, full, names.into_iter().collect());
        self.calls.send_modify(|calls| calls.push(call));
        // A sleep yields now and then, even one of no time.
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
                ..SyncReport::default()
            }))
        })
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        Vec::new()
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

/// Notes which Services came in force.
struct Follower(Arc<Mutex<Followed>>);

/// Families that came in force, and the changed Services.
type Followed = Vec<(Family, Vec<String>)>;

impl AfterSync for Follower {
    fn synced(&mut self, family: Family, _: &ServiceMap, changes: &Changes) {
        let names: BTreeSet<_> = changes.ports.iter().map(|p| &p.service.name).collect();
        let names = names.into_iter().map(|name| name.to_string()).collect();
        self.0.lock().unwrap().push((family, names));
    }
}

/// A runner at work, under a clock that stands still.
struct Bench {
    batches: mpsc::Sender<Batch>,
    addresses: mpsc::Sender<()>,
    calls: watch::Receiver<Vec<Call>>,
    asked: Arc<Mutex<Vec<Asking>>>,
    followed: Arc<Mutex<Followed>>,
    behaviour: Arc<Mutex<Behaviour>>,
    health: Arc<Health>,
    registry: Registry,
    names: Names,
    _runner: JoinHandle<()>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(pace::Options {
            burst: 1,
            ..pace::Options::default()
        })
    }

    fn with(pace: pace::Options) -> Bench {
        let (batches, from_batches) = mpsc::channel(1024);
        let (addresses, from_addresses) = mpsc::channel(16);
        let (calls, seen) = watch::channel(Vec::new());
        let behaviour = Arc::default();
        let asked = Arc::default();
        let followed = Arc::default();
        let health = Arc::new(Health::new(2 * pace.sync_period));
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let mode = Noting {
            start: Instant::now(),
            calls,
            asked: Arc::clone(&asked),
            behaviour: Arc::clone(&behaviour),
        };
        let tracker = Tracker::new("node");
        let mut runner = Runner::new(mode, tracker, pace, Arc::clone(&health), metrics);
        runner.follow(Follower(Arc::clone(&followed)));
        let _runner = tokio::spawn(async move {
            runner
                .run(from_batches, Some(Addresses(from_addresses)))
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
            registry,
            names: Names::default(),
            _runner,
        }
    }

    async fn send(&self, events: Vec<Event>) {
        self.batches.send(Batch { events }).await.unwrap();
        settle().await;
    }

    fn service(&mut self, name: &str, ip: &str) -> Event {
        let object = json!({
            "metadata": {"namespace": "ns", "name": name},
            "spec": {"clusterIP": ip, "clusterIPs": [ip], "ports": [{"port": 80}], "internalTrafficPolicy": "Local"},
        });
        let object = serde_json::from_value(object).unwrap();
        Event::Service(Arc::new(
            Service::reduce(&object, &mut self.names).unwrap().object,
        ))
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
        Event::Service(Arc::new(service))
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
        let slice = EndpointSlice::reduce(&object, &mut self.names)
            .unwrap()
            .object;
        Event::EndpointSlice(Arc::new(slice))
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

/// Lets every task run that can, without time passing.
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
fn others_have_their_turn_however_short_the_periods_are() {
    let (end, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let bench = Bench::with(pace::Options {
                min_interval: Duration::ZERO,
                sync_period: Duration::from_nanos(1),
                ..pace::Options::default()
            });
            bench.send(Vec::new()).await;
        });
        end.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(10));
    ended.expect("nobody but the runner has a turn");
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
async fn changes_are_kept_until_a_sync_succeeds() {
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
async fn what_failed_for_single_ports_is_tried_again() {
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
async fn lingering_addresses_are_looked_at_again() {
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

#[tokio::test(start_paused = true)]
async fn health_ends_when_syncs_stop_succeeding_and_comes_back() {
    let bench = Bench::new();
    bench.send(Vec::new()).await;
    let families = bench.health.snapshot().families;
    assert!(
        families
            .iter()
            .all(|(_, health)| health.last_updated.is_some())
    );
    assert_eq!(families.len(), 2);

    // Nothing changes: it is the full sync of every 30 s that fails.
    bench.behaviour.lock().unwrap().fails = true;
    pass(30_000 * MS).await;
    for _ in 0..59 {
        pass(1_000 * MS).await;
        assert!(bench.health.snapshot().healthy);
    }
    pass(1_000 * MS).await;
    assert!(!bench.health.snapshot().healthy);
    bench.behaviour.lock().unwrap().fails = false;
    for _ in 0..30 {
        pass(1_000 * MS).await;
    }
    assert!(bench.health.snapshot().healthy);
}

#[tokio::test(start_paused = true)]
async fn a_sync_that_hangs_is_no_health() {
    let bench = Bench::new();
    bench.send(Vec::new()).await;
    bench.behaviour.lock().unwrap().takes = 1_000_000 * MS;
    pass(30_000 * MS).await;
    pass(59_000 * MS).await;
    assert!(bench.health.snapshot().healthy);
    pass(1_000 * MS).await;
    assert!(!bench.health.snapshot().healthy);
}

#[tokio::test(start_paused = true)]
async fn syncs_are_counted_by_family_and_kind() {
    let mut bench = Bench::new();
    bench.send(Vec::new()).await;
    pass(1_000 * MS).await;
    let service = bench.service("web", "10.0.0.1");
    let endpoint = SocketAddr::new(IpAddr::from([10, 1, 0, 1]), 8080);
    let slice = bench.slice("web", endpoint);
    bench.send(vec![service, slice]).await;
    for (name, v4, v6) in [
        ("kubeproxy_sync_proxy_rules_duration_seconds", 2.0, 1.0),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", 1.0, 1.0),
        (
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            1.0,
            0.0,
        ),
    ] {
        assert_eq!(
            bench.value(name, &[("ip_family", "IPv4")]),
            Some(v4),
            "{name}"
        );
        assert_eq!(
            bench.value(name, &[("ip_family", "IPv6")]),
            Some(v6),
            "{name}"
        );
    }
    let endpoints = "kubeproxy_sync_proxy_rules_endpoint_changes_total";
    assert_eq!(bench.value(endpoints, &[]), Some(1.0));
    // Its internal policy is Local, and its endpoint is elsewhere.
    let none = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    let internal = [("ip_family", "IPv4"), ("traffic_policy", "internal")];
    assert_eq!(bench.value(none, &internal), Some(1.0));
    let gone = Event::ServiceGone(service_name("ns/web"));
    bench.send(vec![gone]).await;
    pass(10 * MS).await;
    assert_eq!(bench.value(none, &internal), Some(0.0));
}

/// The times, in milliseconds, at which a sync of `family` was asked for.
fn times(asked: &[Asking], family: Family) -> Vec<u128> {
    let of_family = asked.iter().filter(|asking| asking.family == family);
    of_family.map(|asking| asking.at).collect()
}

#[tokio::test(start_paused = true)]
async fn a_family_that_fails_is_tried_again_with_growing_pauses_and_keeps_nothing_back() {
    let mut bench = Bench::new();
    bench.behaviour.lock().unwrap().ipv6_fails = true;
    bench.send(Vec::new()).await;
    pass(100 * MS).await;
    let service = bench.dual_stack("dns");
    bench.send(vec![service]).await;
    let followed = std::mem::take(&mut *bench.followed.lock().unwrap());
    let dns = || names(&["dns"]);
    assert_eq!(followed, [(Family::V4, names(&[])), (Family::V4, dns())]);
    let last = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
    assert!(bench.value(last, &[("ip_family", "IPv4")]) > Some(0.0));
    assert_eq!(bench.value(last, &[("ip_family", "IPv6")]), None);
    let pending = "kubeproxy_sync_proxy_rules_service_changes_pending";
    assert_eq!(bench.value(pending, &[]), Some(1.0));

    for _ in 0..75 {
        pass(1_000 * MS).await;
    }
    let health = bench.health.snapshot();
    assert!(health.is_healthy(Family::V4) && !health.is_healthy(Family::V6));
    let asked = std::mem::take(&mut *bench.asked.lock().unwrap());
    // Then they are as long as the sync period.
    assert_eq!(
        times(&asked, Family::V6)[..5],
        [0, 1_100, 3_100, 7_100, 15_100]
    );
    let retried = asked.iter().filter(|asking| asking.family == Family::V6);
    assert!(retried.skip(1).all(|asking| asking.retry));
    let in_time = times(&asked, Family::V4).into_iter();
    let in_time: Vec<_> = in_time.filter(|at| *at < 30_000).collect();
    assert_eq!(in_time, [0, 100], "nothing of it failed");

    bench.behaviour.lock().unwrap().ipv6_fails = false;
    bench.followed.lock().unwrap().clear();
    pass(30_000 * MS).await;
    let followed = bench.followed.lock().unwrap().clone();
    assert!(followed.contains(&(Family::V6, dns())), "{followed:?}");
    assert_eq!(bench.value(pending, &[]), Some(0.0));
    assert!(bench.health.snapshot().healthy);
}

#[tokio::test(start_paused = true)]
async fn stale_flows_of_one_family_do_not_wait_for_the_other_and_are_bounded() {
    let mut bench = Bench::new();
    let service = bench.dual_stack("dns");
    bench.send(vec![service]).await;
    pass(100 * MS).await;
    bench.behaviour.lock().unwrap().ipv6_fails = true;
    let endpoints = 11_000_u16;
    for n in 0..endpoints {
        let [high, low] = n.to_be_bytes();
        let v4 = SocketAddr::from(([10, 1, high, low], 53));
        let v6 = SocketAddr::from(([0xfd01, 0, 0, 0, 0, 0, 0, n], 53));
        let v4 = bench.slice_of("UDP", "dns", v4);
        let v6 = bench.slice_of("UDP", "dns", v6);
        bench.send(vec![v4, v6]).await;
        pass(10 * MS).await;
    }
    let asked = std::mem::take(&mut *bench.asked.lock().unwrap());
    let most = |family| {
        let of_family = asked.iter().filter(|asking| asking.family == family);
        of_family.map(|asking| asking.stale_endpoints).max()
    };
    assert_eq!(most(Family::V4), Some(1), "each is cleaned at once");
    assert!(most(Family::V6) > Some(5_000), "they are kept");
    assert!(most(Family::V6) < Some(usize::from(endpoints) - 100));
}

#[tokio::test(start_paused = true)]
async fn what_fails_anew_does_not_wait_for_what_has_failed_for_long() {
    let bench = Bench::new();
    let unfinished = |what: &[&str]| {
        bench.behaviour.lock().unwrap().unfinished = names(what);
    };
    unfinished(&["chain A is not removed"]);
    bench.send(Vec::new()).await;
    for _ in 0..20 {
        pass(1_000 * MS).await;
    }
    bench.asked.lock().unwrap().clear();
    unfinished(&["chain A is not removed", "chain B is not removed"]);
    bench.addresses.send(()).await.unwrap();
    settle().await;
    for _ in 0..10 {
        pass(1_000 * MS).await;
    }
    unfinished(&[]);
    for _ in 0..19 {
        pass(1_000 * MS).await;
    }
    let asked = std::mem::take(&mut *bench.asked.lock().unwrap());
    let times = times(&asked, Family::V4);
    assert_eq!(times, [20_000, 21_000, 23_000, 27_000, 35_000]);
}
