//! How much longer calls of one Service take while another one is flooded.

use std::net::{SocketAddr, TcpStream};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::lab::{FirstByte, Host, Lab, Service, Tripod, acceptance, figure, say};

on_each_capture!(alone: calls_beside_a_flood);

/// Threads of the flood: each connects, asks, and resets, over and over.
const THREADS: usize = 8;

/// Calls of the other Service that are measured in one round.
const CALLS: usize = 500;

/// What goes on while the other Service is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Nothing,
    /// The same clients call the endpoints by themselves, past Tripod: they and the
    /// backends take as much of the machine's time.
    Past,
    /// They call the Service.
    Flood,
}

/// The 50th and the 99th percentile, each the median of the rounds.
fn calls_beside_a_flood(lab: &mut Lab) {
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.add_backends(&["a", "b"]);
    lab.publish(&web, &["a"]);
    lab.publish(&other, &["b"]);
    let _tripod = Tripod::start(lab);
    let flooded = web.cluster()[0];
    let past = lab.backends[0].direct();
    let beside = other.cluster()[0];
    let rounds = if acceptance() { 15 } else { 3 };
    let all = [Load::Nothing, Load::Past, Load::Flood];
    let mut seen = all.map(|load| (load, Vec::new(), Vec::new(), 0));
    for _ in 0..rounds {
        for (load, halves, mosts, calls) in &mut seen {
            let target = match load {
                Load::Nothing => None,
                Load::Past => Some(past),
                Load::Flood => Some(flooded),
            };
            let (half, most, of_load) = round(&lab.client, beside, target);
            halves.push(half);
            mosts.push(most);
            *calls += of_load;
        }
    }
    let mut slowest = Vec::new();
    for (load, halves, mosts, calls) in seen {
        let (half, most) = (median(halves), median(mosts));
        slowest.push(most);
        figure(
            &format!("{load:?}, {} capture", lab.capture.name()),
            format!("p50 {half:?}, p99 {most:?}, {calls} calls of the load"),
        );
    }
    // Twice is what it is to be at most; the rest is for the noise of few rounds.
    let [nothing, past, flood] = slowest[..] else {
        unreachable!("there are three loads")
    };
    let without = nothing.max(past).max(Duration::from_millis(10));
    assert!(
        flood < 4 * without,
        "p99 {flood:?} beside a flood, {without:?} without"
    );
}

/// Calls `beside` while `load` is called; answers percentiles, and how many calls the load
/// made.
fn round(
    client: &Host,
    beside: SocketAddr,
    load: Option<SocketAddr>,
) -> (Duration, Duration, usize) {
    let (over, calls) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut delays = std::thread::scope(|scope| {
        for to in load.iter().flat_map(|to| [to; THREADS]) {
            scope.spawn(|| client.enter(|| call_and_reset(*to, &over, &calls)));
        }
        let measured = FirstByte::measure(client, beside, CALLS, 1, &RwLock::new(()));
        over.store(true, Relaxed);
        assert_eq!(measured.failures(), [""; 0]);
        measured.delays
    });
    delays.sort_unstable();
    let percentile = |percent| delays[(delays.len() - 1) * percent / 100];
    (percentile(50), percentile(99), calls.into_inner())
}

fn call_and_reset(to: SocketAddr, over: &AtomicBool, calls: &AtomicUsize) {
    while !over.load(Relaxed) {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).expect("a socket");
        socket.set_linger(Some(Duration::ZERO)).expect("a socket");
        socket.connect(&to.into()).expect("a connection");
        say(&mut TcpStream::from(socket), "name").expect("an answer");
        calls.fetch_add(1, Relaxed);
    }
}

fn median(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}
