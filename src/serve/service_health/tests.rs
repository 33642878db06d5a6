use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use net::Family;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    events::Event,
    runner::health::Health,
    services::{
        Endpoint, Endpoints, TrafficPolicy,
        service_ports::{self, port_name, service_port},
    },
};

/// A loopback address for this process alone: a port that another process has, such as this test in
/// another build, is at another address. Process ids have 22 bits (proc(5), `pid_max`), and all of
/// 127.0.0.0/8 is loopback.
fn here() -> IpAddr {
    Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() & !0xff_ffff | std::process::id()).into()
}

fn name(service: &str, port: &str, family: Family) -> ServicePortName {
    port_name(&format!("hc/{service}:{port}")).in_family(family)
}

/// An endpoint with `address` and the properties that `words` name.
fn endpoint(address: &str, words: &str) -> Endpoint {
    Endpoint {
        local: words.contains("local"),
        ready: words.contains("ready"),
        terminating: !words.contains("ready"),
        weight: u16::from(!words.contains("drained")),
        ..service_ports::endpoint(address.parse::<SocketAddr>().unwrap())
    }
}

fn port(name: ServicePortName, check: Option<u16>, endpoints: &[Endpoint]) -> ServicePort {
    let cluster_ip: IpAddr = match name.family {
        Family::V4 => "10.0.0.1".parse().unwrap(),
        Family::V6 => "fd00::1".parse().unwrap(),
    };
    ServicePort {
        name,
        external_traffic_policy: TrafficPolicy::Local,
        health_check_node_port: check,
        endpoints: Arc::new(Endpoints {
            all: endpoints.into(),
            ..Endpoints::default()
        }),
        ..service_port("", cluster_ip)
    }
}

/// Follows service maps like the runner's.
struct Bench {
    serving: ServiceHealth,
    health: Arc<Health>,
    events: tokio::sync::mpsc::Receiver<Event>,
}

impl Bench {
    fn new() -> Bench {
        let health = Arc::new(Health::new(Duration::from_millis(1)));
        let (recorder, events) = Recorder::new(16);
        Bench {
            serving: ServiceHealth::start(
                || Ok([here()].into()),
                Listeners::default(),
                Arc::clone(&health),
                recorder,
                &Registry::new(),
            )
            .unwrap(),
            health,
            events,
        }
    }

    fn sync(&mut self, full: bool, changed: &[ServicePortName], ports: &[ServicePort]) {
        for family in Family::ALL {
            self.in_force(family, full, changed, ports);
        }
    }

    /// Records that changes of `family` are applied.
    fn in_force(
        &mut self,
        family: Family,
        full: bool,
        changed: &[ServicePortName],
        ports: &[ServicePort],
    ) {
        let changed = changed.iter().filter(|name| name.family == family);
        let changes = Changes {
            full,
            ports: changed.cloned().collect(),
            ..Changes::default()
        };
        let map = ports.iter().cloned().collect();
        self.serving.synced(family, &map, &changes);
    }

    /// Name, port, and number of endpoints in each family, of each Service.
    fn counts(&self) -> Vec<(String, u16, [Option<usize>; 2])> {
        let desired = self.serving.desired.borrow();
        let checks = desired.checks.iter();
        checks
            .map(|(s, c)| {
                let PerFamily { v4, v6 } = c.local_endpoints;
                (s.name.to_string(), c.port, [v4, v6])
            })
            .collect()
    }
}

/// Returns a free port, below those that the kernel assigns to callers.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        if std::net::TcpListener::bind((here(), port)).is_ok() {
            return port;
        }
    }
}

async fn get(port: u16) -> Option<String> {
    get_at(here(), port).await
}

async fn get_at(ip: IpAddr, port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(SocketAddr::new(ip, port)).await.ok()?;
    let request = b"GET /anything HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

/// Repeats the request until the answer is good.
async fn eventually(port: u16, good: impl Fn(Option<&str>) -> bool) -> Option<String> {
    eventually_at(here(), port, good).await
}

async fn eventually_at(
    ip: IpAddr,
    port: u16,
    good: impl Fn(Option<&str>) -> bool,
) -> Option<String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = get_at(ip, port).await;
        if good(answer.as_deref()) {
            return answer;
        }
        assert!(Instant::now() < deadline, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn endpoints_of_a_service_are_counted_once() {
    let mut bench = Bench::new();
    let local = [
        endpoint("10.1.0.1:8080", "local ready"),
        endpoint("10.1.0.2:8080", "local ready"),
        endpoint("10.1.0.3:8080", "local"),
        endpoint("10.1.0.4:8080", "ready"),
        endpoint("10.1.0.5:8080", "local ready drained"),
    ];
    let other = [
        endpoint("10.1.0.1:9090", "local ready"),
        endpoint("10.1.0.9:9090", "local ready"),
    ];
    let v6 = [endpoint("[fd01::1]:8080", "local ready")];
    let (http, more, six) = (
        name("web", "http", Family::V4),
        name("web", "more", Family::V4),
        name("web", "http", Family::V6),
    );
    let ports = [
        port(http.clone(), Some(30_000), &local),
        port(more.clone(), Some(30_000), &other),
        port(six, Some(30_000), &v6),
        port(name("none", "", Family::V4), None, &local),
    ];
    bench.sync(true, &[], &ports);
    assert_eq!(
        bench.counts(),
        [("web".to_owned(), 30_000, [Some(3), Some(1)])]
    );

    // Only changed ports are updated.
    bench.sync(false, std::slice::from_ref(&more), &ports[..1]);
    assert_eq!(
        bench.counts(),
        [("web".to_owned(), 30_000, [Some(2), Some(1)])]
    );
    bench.sync(false, &[], &[]);
    assert_eq!(bench.counts().len(), 1);
    let without = port(http.clone(), None, &local);
    bench.sync(false, &[http], &[without, ports[2].clone()]);
    assert_eq!(
        bench.counts(),
        [("web".to_owned(), 30_000, [None, Some(1)])]
    );
    bench.sync(true, &[], &[]);
    assert_eq!(bench.counts(), []);
}

#[tokio::test]
async fn a_health_check_is_answered_in_kube_proxys_words() {
    let mut bench = Bench::new();
    let http = name("hc", "", Family::V4);
    let check = free_port();
    let ready = [endpoint("10.1.0.1:80", "local ready")];
    bench.sync(true, &[], &[port(http.clone(), Some(check), &ready)]);
    let answer = eventually(check, |answer| answer.is_some()).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert_eq!(
        body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"hc\",\n\t\t\"name\": \"hc\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}"
    );
    let head = head.to_lowercase();
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    for line in [
        "x-load-balancing-endpoint-weight: 1",
        "content-type: application/json",
        "x-content-type-options: nosniff",
    ] {
        assert!(head.lines().any(|l| l == line), "{line} in {head}");
    }

    bench.sync(
        false,
        std::slice::from_ref(&http),
        &[port(http.clone(), Some(check), &[])],
    );
    let answer = get(check).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\"localEndpoints\": 0"));

    bench.sync(
        false,
        std::slice::from_ref(&http),
        &[port(http.clone(), Some(check), &ready)],
    );
    assert!(get(check).await.unwrap().starts_with("HTTP/1.1 200 "));
    bench.health.queued(Family::V4);
    let answer = eventually(check, |a| a.is_some_and(|a| a.contains("HTTP/1.1 503 "))).await;
    let answer = answer.unwrap();
    assert!(answer.contains("\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": false"));
}

/// A load balancer asks over the family in which it forwards.
#[tokio::test]
async fn each_family_has_its_own_health_check() {
    let mut bench = Bench::new();
    let v6 = IpAddr::from(std::net::Ipv6Addr::LOCALHOST);
    if std::net::TcpListener::bind((v6, 0)).is_err() {
        return;
    }
    // One listener for both families, or one address of each.
    let wildcard: &[IpAddr] = &[std::net::Ipv6Addr::UNSPECIFIED.into()];
    for addresses in [wildcard, &[here(), v6]] {
        let addresses: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        bench.serving.addresses = Box::new(move || Ok(addresses.clone()));
        let (both, four) = (free_port(), free_port());
        let (one, two) = (
            [endpoint("10.1.0.1:80", "local ready")],
            [
                endpoint("[fd01::1]:80", "local ready"),
                endpoint("[fd01::2]:80", "local ready"),
            ],
        );
        let of = |service, family, check, endpoints: &[Endpoint]| {
            port(name(service, "", family), Some(check), endpoints)
        };
        let check = async |to: IpAddr, port: u16, status: u16, count: usize| {
            let words = [
                format!("HTTP/1.1 {status} "),
                format!("\"localEndpoints\": {count},"),
            ];
            eventually_at(to, port, |answer| {
                answer.is_some_and(|answer| words.iter().all(|words| answer.contains(words)))
            })
            .await;
        };
        let ports = [
            of("both", Family::V4, both, &one),
            of("both", Family::V6, both, &[]),
            of("four", Family::V4, four, &one),
        ];
        bench.sync(true, &[], &ports);
        check(here(), both, 200, 1).await;
        check(v6, both, 503, 0).await;
        check(here(), four, 200, 1).await;
        let other = get_at(v6, four).await;
        assert!(other.is_none_or(|answer| answer.starts_with("HTTP/1.1 503 ")));
        let ports = [
            of("both", Family::V4, both, &[]),
            of("both", Family::V6, both, &two),
        ];
        bench.sync(true, &[], &ports);
        check(here(), both, 503, 0).await;
        check(v6, both, 200, 2).await;
    }
}

#[tokio::test]
async fn a_family_that_fails_does_not_concern_the_other() {
    let mut bench = Bench::new();
    let both = free_port();
    let ready = [endpoint("10.1.0.1:80", "local ready")];
    let of = |family| port(name("both", "", family), Some(both), &ready);
    let ports = [of(Family::V4), of(Family::V6)];
    bench.sync(true, &[], &ports);
    let is_healthy = |answer: Option<&str>| answer.is_some_and(|a| a.contains("HTTP/1.1 200 "));
    eventually(both, is_healthy).await;
    let overdue = async |bench: &Bench, family| {
        bench.health.queued(family);
        let overdue = async {
            while bench.health.snapshot().is_healthy(family) {
                tokio::task::yield_now().await;
            }
        };
        let overdue = tokio::time::timeout(Duration::from_secs(10), overdue);
        overdue.await.expect("it comes to be overdue");
    };
    bench.health.updated(Family::V4);
    bench.health.updated(Family::V6);
    overdue(&bench, Family::V6).await;
    assert!(is_healthy(get(both).await.as_deref()));
    bench.health.updated(Family::V6);
    overdue(&bench, Family::V4).await;
    eventually(both, |a| a.is_some_and(|a| a.contains("HTTP/1.1 503 "))).await;
}

#[tokio::test]
async fn ports_stay_open_while_addresses_cannot_be_listed() {
    let mut bench = Bench::new();
    let check = free_port();
    let ports = [port(name("a", "", Family::V4), Some(check), &[])];
    bench.sync(true, &[], &ports);
    let before = bench.serving.desired.borrow().clone();
    bench.serving.addresses = Box::new(|| Err(io::Error::from_raw_os_error(nix::libc::EMFILE)));
    bench.sync(true, &[], &ports);
    assert_eq!(*bench.serving.desired.borrow(), before);
    assert_eq!(before.addresses, [here()].into());
}

#[tokio::test]
async fn ports_come_go_and_change_hands() {
    let mut bench = Bench::new();
    let (a, b) = (name("a", "", Family::V4), name("b", "", Family::V4));
    let (first, second) = (free_port(), free_port());
    let says = |name: &'static str| {
        move |answer: Option<&str>| {
            answer.is_some_and(|a| a.contains(&format!("\"name\": \"{name}\"")))
        }
    };
    bench.sync(true, &[], &[port(a.clone(), Some(first), &[])]);
    eventually(first, says("a")).await;

    let swapped = [
        port(a.clone(), Some(second), &[]),
        port(b.clone(), Some(first), &[]),
    ];
    bench.sync(false, &[a.clone(), b.clone()], &swapped);
    eventually(first, says("b")).await;
    eventually(second, says("a")).await;
    bench.sync(
        false,
        &[a.clone(), b.clone()],
        &[port(b.clone(), Some(second), &[])],
    );
    eventually(second, says("b")).await;
    eventually(first, |answer| answer.is_none()).await;
    // A port that changes hands never conflicts with itself.
    assert!(bench.events.try_recv().is_err());

    drop(bench.serving);
    eventually(second, |answer| answer.is_none()).await;
}

#[tokio::test]
async fn a_port_that_is_taken_is_named_once_and_tried_again() {
    let mut bench = Bench::new();
    let taken = TcpListener::bind((here(), 0)).await.unwrap();
    let check = taken.local_addr().unwrap().port();
    let web = name("web", "", Family::V4);
    let ports = [port(web.clone(), Some(check), &[])];
    bench.sync(true, &[], &ports);
    let event = bench.events.recv().await.unwrap();
    assert_eq!(
        event.regarding,
        crate::events::Regarding::Service(web.service.clone())
    );
    assert!(event.note.contains(&check.to_string()), "{}", event.note);
    let listeners = bench.serving.listeners();
    let [refused] = &listeners.refused()[..] else {
        panic!("{:?}", listeners.refused());
    };
    assert_eq!(refused.address, SocketAddr::new(here(), check));
    assert!(refused.trouble.why.contains("ss -ltnp"), "{refused:?}");
    // A few retries fail.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(20)).await;
    tokio::time::resume();
    drop(taken);
    bench.sync(true, &[], &ports);
    let answer = eventually(check, |answer| answer.is_some()).await.unwrap();
    assert!(answer.contains("\"name\": \"web\""));
    assert!(bench.events.try_recv().is_err(), "it was reported already");
    assert!(listeners.refused().is_empty());
}

#[tokio::test]
async fn of_two_services_with_one_port_the_other_is_named() {
    let mut bench = Bench::new();
    let (first, second) = (
        name("first", "", Family::V4),
        name("second", "", Family::V4),
    );
    let check = free_port();
    let mut ports = vec![port(first, Some(check), &[])];
    bench.sync(true, &[], &ports);
    eventually(check, |answer| answer.is_some()).await;
    ports.push(port(second.clone(), Some(check), &[]));
    bench.sync(true, &[], &ports);
    let event = bench.events.recv().await.unwrap();
    assert!(event.note.contains("Service hc/first has"), "{event:?}");
    let listeners = bench.serving.listeners();
    let refused = listeners.refused();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].service, second.service);
    // The failure is also over when no Service has the port any more.
    ports.pop();
    bench.sync(true, &[], &ports);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !listeners.refused().is_empty() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn addresses_that_cannot_be_listed_are_logged_once_and_when_they_can() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build().unwrap();
    let _inside = runtime.enter();
    let mut bench = Bench::new();
    let check = port(name("web", "http", Family::V4), Some(1), &[]);
    let mut listed = 0;
    bench.serving.addresses = Box::new(move || {
        listed += 1;
        match listed {
            1 => Ok([here()].into()),
            2 | 3 => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
            _ => Ok(BTreeSet::new()),
        }
    });
    let log = crate::log::lines(0, || {
        for _ in 0..3 {
            bench.in_force(Family::V4, true, &[], std::slice::from_ref(&check));
        }
        let desired = bench.serving.desired.borrow().addresses.clone();
        assert_eq!(desired, [here()].into());
        for _ in 0..2 {
            bench.in_force(Family::V4, true, &[], std::slice::from_ref(&check));
        }
    });
    let [failed, over] = &log[..] else {
        panic!("{log:#?}");
    };
    assert!(failed.contains("stay at the addresses"), "{failed}");
    assert!(
        over.contains("follow the addresses of this node again"),
        "{over}"
    );
    assert!(bench.serving.desired.borrow().addresses.is_empty());
}
