//! How much longer calls of one Service take while another one is flooded.

use std::net::{SocketAddr, TcpStream};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::milliseconds;
use crate::{
    faults::measured::measured,
    lab::{FirstByte, Host, Lab, Service, Tripod, acceptance, figure, say},
};

on_each_capture!(calls_beside_a_flood);

/// Threads of the flood: each keeps connecting, asking and resetting.
const THREADS: usize = 8;

/// Calls of the other Service measured in one round.
const CALLS: usize = 500;

/// A p99 up to this is accepted in any case: on a busy machine the p99 of calls without
/// any load is about that.
const FLOOR: Duration = Duration::from_millis(10);

/// How many times to measure until a load costs little enough. Other work of the machine may
/// sometimes double a p99 of few rounds, but not several times in a row; a flood that costs more
/// does so each time.
const ATTEMPTS: usize = 4;

/// The load while the other Service is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Nothing,
    /// The same clients call the endpoints directly instead of through Tripod: they and the
    /// backends take as much of the machine's time.
    Past,
    /// The clients call the Service.
    Flood,
}

/// A flood of one Service at most doubles the p99 of another one, compared with no load or with the
/// same load bypassing Tripod, whichever is more.
fn calls_beside_a_flood(lab: &mut Lab) {
    let (web, other) = (Service::new("web", 10), Service::new("other", 11));
    lab.add_backends(&["a", "b"]);
    lab.publish(&web, &["a"]);
    lab.publish(&other, &["b"]);
    let _tripod = Tripod::start(lab);
    let flooded = web.cluster()[0];
    let past = lab.backends[0].direct();
    let beside = other.cluster()[0];
    let mut ratios = Vec::new();
    for _ in 0..ATTEMPTS {
        let [nothing, past, flood] = measure(lab, beside, past, flooded);
        let without = nothing.max(past).max(FLOOR);
        let ratio = flood.as_secs_f64() / without.as_secs_f64();
        figure(
            &format!("p99 during a flood, {} capture", lab.capture.name()),
            format!("{flood:?}, {without:?} without: {ratio:.2} times"),
        );
        if ratio <= 2.0 {
            return;
        }
        ratios.push(ratio);
    }
    panic!("the p99 during a flood is {ratios:.2?} times that without");
}

/// Measures the 99th percentile under each load, as the median of the rounds.
fn measure(lab: &Lab, beside: SocketAddr, past: SocketAddr, flooded: SocketAddr) -> [Duration; 3] {
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
    seen.map(|(load, halves, mosts, calls)| {
        let (half, most) = (median(halves), median(mosts));
        figure(
            &format!("{load:?}, {} capture", lab.capture.name()),
            format!("p50 {half:?}, p99 {most:?}, {calls} calls of the load"),
        );
        let name = format!("{load:?}").to_lowercase();
        for (percentile, time) in [("p50", half), ("p99", most)] {
            let figure = format!("{name}_{percentile}_ms");
            let value = milliseconds(time);
            measured("calls_beside_a_flood", lab.capture, &figure, value);
        }
        most
    })
}

/// Calls `beside` while the address of `load` is called. Returns percentiles, and the number of
/// calls that the load made.
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
