//! When descriptors run out, accepting waits; no client is turned away, and Tripod keeps
//! the descriptors that it needs itself.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use super::gap::{start_beside, start_holder};
use super::{SOON, comes_to_fail, comes_to_reach};
use crate::lab::{Lab, Service, Tripod, ask, ask_within, eventually, figure, get, say, tcp};

/// All connections come from one client.
const NO_LIMIT: &str = "--userspace-max-connections-per-client=none";

on_each_capture!(
    connections_wait_for_descriptors,
    connections_leave_what_the_process_needs,
    a_flood_of_one_service_leaves_the_others_alone,
    more_services_than_descriptors_leave_some_to_connections,
    a_service_of_thousands_of_ports_leaves_others_theirs,
    a_process_that_gives_way_takes_no_more_descriptors,
    sockets_of_a_killed_process_count_once,
);

/// Opens connections and sends a question on each, without reading an answer yet.
fn ask_many(lab: &Lab, to: SocketAddr, connections: usize) -> Vec<TcpStream> {
    let ask = |n| {
        let mut stream = tcp(&lab.client, to).unwrap_or_else(|e| panic!("connection {n}: {e}"));
        writeln!(stream, "name").expect("a question");
        stream
            .set_read_timeout(Some(Duration::from_millis(1)))
            .expect("a time limit");
        stream
    };
    (0..connections).map(ask).collect()
}

/// Waits until connections wait for descriptors that other connections hold.
fn run_out(
    lab: &Lab,
    tripod: &Tripod,
    waiting: &mut Vec<TcpStream>,
    answered: &mut Vec<TcpStream>,
) {
    eventually("descriptors run out", Duration::from_secs(10), || {
        collect_answers(waiting, answered);
        let paused = tripod.metric(&lab.node, "tripod_userspace_accept_paused_total");
        if !answered.is_empty() && !waiting.is_empty() && paused.is_some_and(|n| n > 0.0) {
            return Ok(());
        }
        let answered = answered.len();
        Err(format!("{answered} answered, {paused:?} pauses"))
    });
}

fn connections_wait_for_descriptors(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let tripod = Tripod::start_with_descriptors(lab, 128, &[NO_LIMIT]);
    let to = web.cluster()[0];
    // The kernel accepts them all; Tripod has descriptors for some.
    let (mut waiting, mut answered) = (ask_many(lab, to, 60), Vec::new());
    run_out(lab, &tripod, &mut waiting, &mut answered);
    // It is out of descriptors, but does not spin.
    tripod.spends_little_time();

    all_are_served(&mut waiting, &mut answered);
    answered.clear();
    let mut stream = tcp(&lab.client, to).expect("a connection");
    say(&mut stream, "name").expect("an answer");
}

/// Descriptors of threads, their epoll instances, netlink sockets, probes, and programs
/// that are started: available however many connections there are.
fn connections_leave_what_the_process_needs(lab: &mut Lab) {
    const LIMIT: usize = 256;
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.three_backends().publish_all(&web);
    lab.publish_all(&other);
    let flags = [NO_LIMIT, "--userspace-workers=8"];
    let tripod = Tripod::start_with_descriptors(lab, LIMIT, &flags);
    let to = web.cluster()[0];
    let (mut waiting, mut answered) = (ask_many(lab, to, LIMIT), Vec::new());
    run_out(lab, &tripod, &mut waiting, &mut answered);
    let open = tripod.descriptors();
    assert!(open + 32 <= LIMIT, "{open} of {LIMIT} descriptors are open");
    // For this, redirect capture starts programs.
    lab.withdraw(&other);
    comes_to_fail("the Service that is gone", || {
        ask(&lab.client, other.cluster()[0])
    });
    assert_eq!(tripod.logged(&["sync failed"]), 0);
    let healthz = SocketAddr::new(lab.node.addresses[0], 10256);
    for _ in 0..8 {
        let answer = get(&lab.node, healthz, "/healthz").expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// One Service may use a quarter of the descriptors; the flood waits, and none of it is lost.
fn a_flood_of_one_service_leaves_the_others_alone(lab: &mut Lab) {
    const LIMIT: usize = 512;
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.three_backends().publish_all(&web);
    lab.publish_all(&other);
    let flags = [NO_LIMIT, "--userspace-workers=2"];
    let tripod = Tripod::start_with_descriptors(lab, LIMIT, &flags);
    let (mut waiting, mut answered) = (ask_many(lab, web.cluster()[0], LIMIT), Vec::new());
    run_out(lab, &tripod, &mut waiting, &mut answered);
    let begun = Instant::now();
    for _ in 0..20 {
        for to in other.cluster() {
            ask(&lab.client, to).unwrap_or_else(|error| panic!("{to}: {error}"));
        }
    }
    figure(
        "calls during a flood",
        format!("40 in {:?}", begun.elapsed()),
    );
    collect_answers(&mut waiting, &mut answered);
    assert!(!waiting.is_empty(), "the flood is not over");
    tripod.logs_once(&["new connections wait", "default/web"]);

    all_are_served(&mut waiting, &mut answered);
}

/// Services that have listeners are served, and only the others are reported as not applied.
fn more_services_than_descriptors_leave_some_to_connections(lab: &mut Lab) {
    const LIMIT: usize = 256;
    lab.three_backends();
    let services: Vec<_> = (10..110)
        .map(|number| Service::new(&format!("web-{number}"), number))
        .collect();
    services.iter().for_each(|service| lab.publish_all(service));
    let tripod = Tripod::start_with_descriptors(lab, LIMIT, &[]);
    // Logged after the Services that are not applied.
    tripod.logs_once(&["INFO serving"]);
    // TCP and UDP, IPv4 and IPv6; the log has one line for each family.
    assert!((1..=2).contains(&tripod.logged(&["not applied"])));
    let failed = tripod.metric(&lab.node, "tripod_service_ports_failed");
    let in_force = 4 * services.len() - failed.expect("a gauge") as usize;
    assert!((LIMIT / 2..LIMIT).contains(&in_force), "{in_force} applied");

    let patience = Duration::from_secs(10);
    let is_served = |to: &SocketAddr| ask_within(&lab.client, *to, patience).is_ok();
    let served = |service: &Service| service.cluster().iter().filter(|to| is_served(to)).count();
    let tcp: usize = std::thread::scope(|scope| {
        let calls = services.iter().map(|one| scope.spawn(|| served(one)));
        let calls: Vec<_> = calls.collect();
        let answers = calls.into_iter().map(|call| call.join().expect("calls"));
        answers.sum()
    });
    figure(
        "Services beyond the descriptors",
        format!("{in_force} of {} applied, {tcp} by TCP", 4 * services.len()),
    );
    assert!((1..=in_force).contains(&tcp), "{tcp} of {in_force}");
}

/// Publishes a Service with more ports than there are descriptors. Its namespace sorts first.
fn publish_huge(lab: &Lab) {
    let ports = (1..=2_000).map(|port| json!({"name": format!("p{port}"), "port": port}));
    let huge = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "aaa", "name": "huge"},
        "spec": {"clusterIP": "10.96.9.9", "ports": ports.collect::<Vec<_>>()},
    });
    lab.write("huge.json", &huge.to_string());
}

fn are_served(lab: &Lab, services: &[Service]) {
    for to in services.iter().flat_map(Service::cluster) {
        comes_to_reach("a Service next to it", &["a"], || ask(&lab.client, to));
    }
}

fn a_service_of_thousands_of_ports_leaves_others_theirs(lab: &mut Lab) {
    const LIMIT: usize = 1_024;
    lab.add_backends(&["a"]);
    let service = |number: u8| Service::new(&format!("web-{number}"), number);
    let services: Vec<_> = (10..30).map(service).collect();
    services.iter().for_each(|one| lab.publish(one, &["a"]));
    publish_huge(lab);
    let start = |services: &[Service]| {
        let tripod = Tripod::start_with_descriptors(lab, LIMIT, &[]);
        tripod.logs_once(&["INFO serving"]);
        tripod.logs_once(&["aaa/huge", "more ServicePorts are not applied", "ulimit"]);
        assert_eq!(tripod.logged(&["ERROR"]), 1);
        are_served(lab, services);
        tripod
    };
    let mut tripod = start(&services);
    let later = [service(40)];
    lab.publish(&later[0], &["a"]);
    are_served(lab, &later);
    assert_eq!(tripod.logged(&["ERROR"]), 1);
    tripod.kill();
    let all: Vec<_> = services.into_iter().chain(later).collect();
    start(&all);
}

/// Otherwise nothing would be left for other Services when it serves again.
fn a_process_that_gives_way_takes_no_more_descriptors(lab: &mut Lab) {
    const LIMIT: usize = 1_024;
    lab.add_backends(&["a"]);
    let [before, later] = [10, 11].map(|n| Service::new(&format!("web-{n}"), n));
    lab.publish(&before, &["a"]);
    publish_huge(lab);
    let old = Tripod::start_with_descriptors(lab, LIMIT, &[]);
    old.logs_once(&["INFO serving"]);
    let failed = || old.metric(&lab.node, "tripod_service_ports_failed");
    let (failed_before, open) = (failed(), old.descriptors());
    let mut new = start_beside(lab, 1, 1);
    let more = old.descriptors().saturating_sub(open);
    assert!(more < 16, "{more} more descriptors are open");
    new.kill();
    are_served(lab, &[before]);
    lab.publish(&later, &["a"]);
    are_served(lab, &[later]);
    assert_eq!(failed(), failed_before);
    assert_eq!(old.logged(&["applied again"]), 0);
}

/// The listeners of all Services take more than half of the descriptors, and the next process gets
/// them before it opens any.
fn sockets_of_a_killed_process_count_once(lab: &mut Lab) {
    const LIMIT: usize = 500;
    lab.add_backends(&["a"]);
    let services: Vec<_> = (10..70)
        .map(|number| Service::new(&format!("web-{number}"), number))
        .collect();
    services.iter().for_each(|one| lab.publish(one, &["a"]));
    let holder = start_holder(lab);
    let before = holder.descriptors();
    let start = || {
        let tripod = Tripod::start_with_descriptors(lab, LIMIT, &["--userspace-workers=2"]);
        // Logged after any Services that are not applied.
        tripod.logs_once(&["INFO serving"]);
        assert_eq!(tripod.logged(&["not applied"]), 0);
        eventually("the holder has all sockets", SOON, || {
            match holder.descriptors() - before {
                // TCP and UDP, IPv4 and IPv6, and the connection.
                held if held == 4 * services.len() + 1 => Ok(()),
                held => Err(format!("{held} descriptors")),
            }
        });
        tripod
    };
    start().kill();
    let _next = start();
}

/// Waits until all have their answer, while answered connections are closed.
fn all_are_served(waiting: &mut Vec<TcpStream>, answered: &mut Vec<TcpStream>) {
    eventually(
        "all are served as others close",
        Duration::from_secs(30),
        || {
            answered.clear();
            collect_answers(waiting, answered);
            match waiting.len() {
                0 => Ok(()),
                n => Err(format!("{n} still wait")),
            }
        },
    );
}

/// Moves answered connections from `waiting` to `answered`.
fn collect_answers(waiting: &mut Vec<TcpStream>, answered: &mut Vec<TcpStream>) {
    for mut stream in std::mem::take(waiting) {
        let mut answer = [0; 16];
        match stream.read(&mut answer) {
            Ok(n) if n > 0 => answered.push(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => waiting.push(stream),
            other => panic!("a waiting connection was lost: {other:?}"),
        }
    }
}
