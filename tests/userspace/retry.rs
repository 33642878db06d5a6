//! A dead endpoint among living ones is a problem for Tripod, not for the client.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::RwLock;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::lab::{Backend, FirstByte, Lab, Service, Tripod, ask, figure, say, tcp};

on_each_capture!(
    a_killed_backend_fails_no_call,
    a_silent_backend_fails_no_call
);

on_each_capture!(
    a_backend_that_dies_before_it_answers_is_replaced,
    what_makes_backends_reset_is_sent_to_two_at_most,
    an_end_is_an_answer,
    a_client_that_gives_up_is_not_dialed_for,
    a_search_among_silent_endpoints_ends,
    with_retry_off_each_endpoint_that_fails_costs_one_call,
    a_node_without_local_ports_says_so,
    clients_that_end_first_do_not_use_up_the_local_ports,
);

const SHORT: usize = 2_000;
const LONG: usize = 100;

const RETRY: &str = "tripod.proxy/retry";

/// A connection that stays open.
struct Long {
    stream: TcpStream,
    /// The backend that answers on it.
    backend: String,
}

fn open(lab: &Lab, to: std::net::SocketAddr) -> Vec<Long> {
    (0..LONG)
        .map(|n| {
            let mut stream = tcp(&lab.client, to).unwrap_or_else(|e| panic!("long {n}: {e}"));
            let backend = say(&mut stream, "name").unwrap_or_else(|e| panic!("long {n}: {e}"));
            Long { stream, backend }
        })
        .collect()
}

fn still_served(connections: &mut [Long]) {
    for Long { stream, backend } in connections {
        let answer = say(stream, "name").expect("an open connection lives on");
        assert_eq!(answer, *backend);
    }
}

/// Checks that no call failed without `victim`, and that earlier clients of other backends are
/// still connected.
fn without(victim: &Backend, calls: &FirstByte, mut before: Vec<Long>) {
    let failures = calls.failures();
    assert_eq!(failures, Vec::<&str>::new(), "of {SHORT} short calls");
    before.retain(|long| long.backend != victim.name());
    still_served(&mut before);
}

/// A failed endpoint is avoided for a second at first. If that may have passed before all calls
/// were made, a Service that was not called yet gets new ones.
fn with_retry_off_each_endpoint_that_fails_costs_one_call(lab: &mut Lab) {
    let services = (0..10).map(|round: u8| {
        [("connect", 12), ("off", 13)].map(|(retry, first)| {
            let service = Service::new(&format!("{retry}-{round}"), first + 2 * round);
            service.annotated(RETRY, retry)
        })
    });
    let services: Vec<_> = services.collect();
    lab.three_backends();
    for service in services.iter().flatten() {
        lab.publish_all(service);
    }
    lab.backend("b").kill();
    let _tripod = lab.tripod();
    let fails = |to| {
        let begun = Instant::now();
        let failed = (0..9).filter(|_| ask(&lab.client, to).is_err()).count();
        (failed, begun.elapsed() < Duration::from_millis(800))
    };
    for family in [0, 1] {
        let mut rounds = services.iter();
        let failed = rounds.find_map(|[connect, off]| {
            assert_eq!(fails(connect.cluster()[family]).0, 0, "with retry: connect");
            let (failed, in_time) = fails(off.cluster()[family]);
            in_time.then_some(failed)
        });
        assert_eq!(failed, Some(1), "of nine calls within 0.8 s");
    }
}

fn a_killed_backend_fails_no_call(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    let to = web.cluster()[0];
    let before = open(lab, to);
    let mut victim = lab.backends.remove(1);
    let running = RwLock::new(());
    let calls = std::thread::scope(|scope| {
        let calls = scope.spawn(|| FirstByte::measure(&lab.client, to, SHORT, 16, &running));
        crate::lab::eventually("calls run", Duration::from_secs(10), || {
            match victim.counts(&lab.node).accepted {
                n if n > LONG as u64 / 3 + 100 => Ok(()),
                n => Err(format!("{n} so far")),
            }
        });
        // Between calls: one that already reached the victim would end with it.
        let pause = running.write();
        victim.kill();
        drop(pause);
        calls.join().expect("the caller")
    });
    without(&victim, &calls, before);
    let mut during = open(lab, to);
    assert!(during.iter().all(|long| long.backend != victim.name()));
    still_served(&mut during);
    let capture = lab.capture.name();
    figure(
        &format!("{capture}, killed backend, slowest first byte of {SHORT}"),
        format!("{:?}", calls.slowest()),
    );
}

fn a_silent_backend_fails_no_call(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    let to = web.cluster()[0];
    let running = RwLock::new(());
    let healthy = FirstByte::measure(&lab.client, to, SHORT, 32, &running);
    assert_eq!(healthy.failures(), Vec::<&str>::new(), "while all is well");
    let before = open(lab, to);
    let victim = lab.backends.remove(1);
    victim.blackhole();
    let calls = FirstByte::measure(&lab.client, to, SHORT, 32, &running);
    without(&victim, &calls, before);
    let mut during = open(lab, to);
    still_served(&mut during);
    // The longest time that the machine itself takes is not due to the backend.
    let extra = calls.slowest().saturating_sub(healthy.slowest());
    let capture = lab.capture.name();
    figure(
        &format!("{capture}, blackholed backend, first byte of {SHORT}"),
        format!(
            "slowest {:?} (healthy: median {:?}, slowest {:?})",
            calls.slowest(),
            healthy.median(),
            healthy.slowest()
        ),
    );
    // An attempt without an answer takes 250 ms, and a second one at least as long again.
    assert!(
        extra <= Duration::from_millis(700),
        "{extra:?} extra for a first byte"
    );
}

/// The kernel accepted the connection and the question for a process that never saw them;
/// when the process ends, the connection is reset.
fn a_backend_that_dies_before_it_answers_is_replaced(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    for to in web.cluster() {
        lab.backend("b").freeze();
        let mut waiting: Vec<_> = (0..9)
            .map(|_| {
                let mut stream = tcp(&lab.client, to).expect("a connection");
                stream.write_all(b"name\n").expect("a question");
                stream
            })
            .collect();
        // The living backends have answered; b has the other connections.
        let mut byte = [0];
        for stream in &waiting {
            stream
                .set_read_timeout(Some(Duration::from_millis(500)))
                .expect("a time limit");
        }
        waiting.retain(|stream| stream.peek(&mut byte).is_err());
        assert!(!waiting.is_empty(), "of nine calls, none went to b");
        lab.backend("b").kill();
        for stream in &mut waiting {
            stream
                .set_read_timeout(Some(Duration::from_secs(10)))
                .expect("a time limit");
            assert_eq!(stream.read(&mut byte).expect("an answer by another"), 1);
            assert_ne!(byte, *b"b");
        }
        lab.backend("b").restart();
    }
}

/// The number of connections that all backends have accepted, without those that ask for it.
fn accepted(lab: &Lab, asked: &mut u64) -> u64 {
    *asked += lab.backends.len() as u64;
    let counts = lab.backends.iter().map(|b| b.counts(&lab.node).accepted);
    counts.sum::<u64>() - *asked
}

/// They read the question, and reset nevertheless.
fn what_makes_backends_reset_is_sent_to_two_at_most(lab: &mut Lab) {
    let (web, alone) = (Service::new("web", 10), Service::new("alone", 11));
    let [connect, off] = [("connect", 12), ("off", 13)]
        .map(|(retry, number)| Service::new(retry, number).annotated(RETRY, retry));
    lab.three_backends().publish(&alone, &["a"]);
    for service in [&web, &connect, &off] {
        lab.publish_all(service);
    }
    let _tripod = lab.tripod();
    let mut asked = 0;
    for (service, most) in [(web, 2), (alone, 1), (connect, 1), (off, 1)] {
        for to in service.cluster() {
            let before = accepted(lab, &mut asked);
            let mut stream = tcp(&lab.client, to).expect("a connection");
            stream.write_all(b"reset\n").expect("a request");
            let error = stream.read(&mut [0]).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            let reached = accepted(lab, &mut asked) - before;
            assert_eq!(reached, most, "{} {to}", service.name);
        }
    }
}

/// A backend that has ended its direction has read the request, whatever it resets afterwards.
fn an_end_is_an_answer(lab: &mut Lab) {
    const CALLS: u64 = 50;
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let _tripod = lab.tripod();
    let mut asked = 0;
    for to in web.cluster() {
        let before = accepted(lab, &mut asked);
        for _ in 0..CALLS {
            let mut stream = tcp(&lab.client, to).expect("a connection");
            stream
                .write_all(b"\n")
                .expect("a request that needs no answer");
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            // The backend's kernel answers the first of these with a reset; by then
            // others are on their way.
            while stream.write_all(b"name\n").is_ok() {}
        }
        let reached = accepted(lab, &mut asked) - before;
        assert_eq!(reached, CALLS, "others were reached");
    }
}

fn a_client_that_gives_up_is_not_dialed_for(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    for backend in &lab.backends {
        backend.blackhole();
    }
    let tripod = lab.tripod();
    let come_to_be = |expected: f64| {
        crate::lab::eventually("connections", Duration::from_secs(2), || {
            match tripod.metric(&lab.node, "tripod_userspace_connections") {
                Some(open) if open == expected => Ok(()),
                other => Err(format!("{other:?}, not {expected}")),
            }
        });
    };
    for to in web.cluster() {
        let waiting: Vec<_> = (0..20)
            .map(|n| tcp(&lab.client, to).unwrap_or_else(|e| panic!("connection {n}: {e}")))
            .collect();
        for stream in &waiting {
            socket2::SockRef::from(stream)
                .set_linger(Some(Duration::ZERO))
                .expect("SO_LINGER");
        }
        come_to_be(20.0);
        drop(waiting);
        // All attempts together would take almost four seconds.
        come_to_be(0.0);
    }
}

/// A slice of endpoints that are no pods: nothing answers there.
fn silent_slice(service: &Service, ready: bool) -> String {
    let addresses = (30..=250).map(
        |last| json!({"addresses": [format!("10.244.0.{last}")], "conditions": {"ready": ready}}),
    );
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "name": "silent", "namespace": "default",
            "labels": {"kubernetes.io/service-name": service.name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "tcp", "protocol": "TCP", "port": 8080}],
        "endpoints": addresses.collect::<Vec<_>>(),
    })
    .to_string()
}

fn a_search_among_silent_endpoints_ends(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.publish(&web, &[]);
    lab.write("silent.json", &silent_slice(&web, true));
    let tripod = Tripod::start_with(lab, &["--userspace-dial-timeout=1s"]);
    let to = web.cluster()[0];
    let begun = Instant::now();
    let mut clients: Vec<_> = (0..3)
        .map(|_| tcp(&lab.client, to).expect("a connection"))
        .collect();
    // It may still wait for an answer.
    clients[0].shutdown(Shutdown::Write).expect("half-close");
    for stream in &mut clients {
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let took = begun.elapsed();
    assert!(
        (Duration::from_millis(900)..Duration::from_secs(4)).contains(&took),
        "{took:?}"
    );
    let failures = tripod.metric(&lab.node, "tripod_userspace_dial_failures_total");
    assert!(failures.is_some_and(|n| n <= 9.0), "{failures:?} attempts");

    // A working endpoint is found even for a client that has ended its direction meanwhile.
    lab.add_backends(&["a"]);
    lab.publish(&web, &["a"]);
    lab.write("silent.json", &silent_slice(&web, false));
    super::comes_to_reach("the living one", &["a"], || {
        let mut stream = tcp(&lab.client, to)?;
        stream.write_all(b"name\n")?;
        stream.shutdown(Shutdown::Write)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.trim().to_owned())
    });
}

/// Number of local ports that are left for connections to endpoints.
const FEW: usize = 20;

/// Sets whether local ports are reused early, and leaves [`FEW`] of them.
fn few_local_ports(lab: &Lab, reuse: u8) {
    let range = format!("net.ipv4.ip_local_port_range=50000 {}", 50_000 + FEW - 1);
    lab.node
        .show(&format!("sysctl -qw net.ipv4.tcp_tw_reuse={reuse}"));
    let set = lab.node.command("sysctl").args(["-qw", &range]).status();
    assert!(set.expect("sysctl").success());
}

fn a_node_without_local_ports_says_so(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    // As an administrator may configure it.
    few_local_ports(lab, 0);
    let tripod = lab.tripod();
    let to = web.cluster()[0];
    crate::lab::eventually("the log says so", Duration::from_secs(10), || {
        // The client ends the connection, so that Tripod's end of it lingers.
        let call = ask(&lab.client, to);
        match tripod.logged(&["no local port left", "default/web:tcp", "tcp_tw_reuse"]) {
            1 => Ok(()),
            n => Err(format!("{n} times; {call:?}")),
        }
    });
    assert_eq!(lab.node.show("sysctl -n net.ipv4.tcp_tw_reuse").trim(), "0");
}

fn clients_that_end_first_do_not_use_up_the_local_ports(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.add_backends(&["a"]).publish_all(&web);
    // The kernel's default.
    few_local_ports(lab, 2);
    let tripod = lab.tripod();
    let mut answered = 0;
    // A port is reused after a second.
    crate::lab::eventually("three times as many calls", Duration::from_secs(30), || {
        answered += usize::from(ask(&lab.client, web.cluster()[0]).is_ok());
        (answered > 3 * FEW)
            .then_some(())
            .ok_or_else(|| format!("{answered} were answered"))
    });
    tripod.logs_once(&["changed net.ipv4.tcp_tw_reuse from 2 to 1"]);
}
