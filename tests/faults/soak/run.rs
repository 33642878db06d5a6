//! Services are added, removed and get other endpoints while others are called.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    ops::RangeFrom,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use super::sample::{Sample, objects};
use crate::{
    faults::fault::Mode,
    lab::{
        Capture, Lab, Service, Tripod, ask, eventually, figure, is_soak, say, soak_length,
        tcp_from, tcp_from_new_port, tripod_binary, udp, udp_say,
    },
};

/// Changes per second.
const CHANGES: u32 = 10;
/// Calls per second of each of two callers.
const CALLS: u32 = 25;
/// One in this many calls uses UDP.
const UDP_SHARE: u64 = 5;
/// Number of connections that are open all the time.
const OPEN: usize = 12;
/// Their ports, below the range of `net.ipv4.ip_local_port_range`.
const OPEN_FROM: RangeFrom<u16> = 10_000..;
/// Number of Services that are added and removed.
const COMING: u8 = 40;
/// Number of samples of a run.
const SAMPLES: u32 = 120;
const SOON: Duration = Duration::from_secs(30);
/// Time after the last change until all temporary objects are gone: UDP flows end after they were
/// idle for 30 s.
const GONE: Duration = Duration::from_secs(60);
/// Tolerance for the number of entries of connection tracking.
const MORE_FLOWS: u64 = 100;
/// Additional memory that the process may need after the first quarter of the time, in KiB.
const SLACK: u64 = 4096;

/// The endpoints of a Service, one choice after the other.
const CHOICES: [&[&str]; 5] = [
    &["a", "b", "c"],
    &["a", "b"],
    &["b", "c"],
    &["c"],
    &["a", "c"],
];

pub fn soak(mode: Mode) {
    let length = soak_length();
    let mut lab = Lab::new(match mode {
        Mode::Local => Capture::Local,
        _ => Capture::Redirect,
    });
    lab.three_backends();
    let called = [
        Service::new("steady", 1).with_load_balancer(),
        Service::new("sticky", 2).sticky(60),
    ];
    for service in &called {
        lab.publish_all(service);
    }
    let tripod = start(mode, &lab);
    let addresses: Vec<_> = called.iter().flat_map(Service::cluster).collect();
    for to in &addresses {
        eventually("the Services answer", SOON, || {
            ask(&lab.client, *to).map_err(|error| error.to_string())
        });
    }
    let before = (objects(mode, &lab), tripod.descriptors());
    let files = tripod.open_files(&lab.node);
    let samples = under_calls(&lab, &addresses, |calls| {
        churn(mode, &lab, &called, (&tripod, calls), length)
    });
    for service in &called {
        lab.publish_all(service);
    }
    let ended = Instant::now();
    eventually("nothing is left of what came and went", GONE, || {
        // Clients of sticky Services and open flows end over time.
        let now = (objects(mode, &lab), tripod.descriptors());
        if now.0 <= before.0 && now.1 <= before.1 {
            Ok(())
        } else {
            let mut why = format!("{now:?} objects and descriptors, before {before:?}");
            if ended.elapsed() + Duration::from_secs(1) > GONE {
                why += &format!("\nbefore: {files}\nnow: {}", tripod.open_files(&lab.node));
            }
            Err(why)
        }
    });
    check(mode, &samples, &tripod);
}

fn start(mode: Mode, lab: &Lab) -> Tripod {
    let mut command = lab.node.command(tripod_binary());
    command
        .args(mode.flags())
        .args(["--strict-proxy-mode", "--v=1", "--hostname-override=node"])
        .arg("--manifests")
        .arg(lab.manifests())
        // Pods are on one bridge: their answers must pass the node.
        .arg("--masquerade-all")
        .arg("--conntrack-max-per-core=0");
    Tripod::start_on(&lab.node, command)
}

/// The calls of a run.
#[derive(Default)]
struct Calls {
    over: AtomicBool,
    made: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Calls {
    fn failed(&self, what: String) {
        self.failures.lock().expect("no caller panics").push(what);
    }

    fn count(&self) -> (u64, u64) {
        let failures = self.failures.lock().expect("no caller panics");
        (self.made.load(Relaxed), failures.len() as u64)
    }
}

/// Runs `body` while callers call `addresses`. Fails if a call fails.
fn under_calls<T>(lab: &Lab, addresses: &[SocketAddr], body: impl FnOnce(&Calls) -> T) -> T {
    let calls = Calls::default();
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            at_pace(&calls, |number| {
                let to = addresses[number as usize % addresses.len()];
                if number.is_multiple_of(UDP_SHARE) {
                    (format!("datagram to {to}"), datagram(lab, to))
                } else {
                    (format!("call of {to}"), call(lab, to))
                }
            })
        });
        let open = open(lab, addresses);
        scope.spawn(|| {
            let open = Mutex::new(open);
            at_pace(&calls, |number| {
                let mut open = open.lock().expect("one caller");
                let at = number as usize % open.len();
                let (to, stream) = &mut open[at];
                let answer = say(stream, "name").map(drop);
                (format!("open connection to {to}"), answer)
            });
        });
        let done = body(&calls);
        calls.over.store(true, Relaxed);
        done
    });
    let failures = calls.failures.lock().expect("no caller panics");
    assert!(failures.is_empty(), "{failures:#?}");
    done
}

/// Asks over a new connection. Its port is one that no call had for minutes: IPVS finds the
/// connection of an answer by client and real server (`ip_vs_conn_out_get`), and finds the
/// wrong one if a client calls two Services from one port and both choose the same endpoint.
fn call(lab: &Lab, to: SocketAddr) -> io::Result<()> {
    say(&mut tcp_from_new_port(&lab.client, to)?, "name").map(drop)
}

/// Opens connections from ports that no other connection gets, as [`call`] does.
fn open(lab: &Lab, addresses: &[SocketAddr]) -> Vec<(SocketAddr, TcpStream)> {
    let all = addresses.iter().cycle().zip(OPEN_FROM).take(OPEN);
    let opened = all.map(|(to, port)| {
        let any: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let from = SocketAddr::new(any, port);
        let stream = tcp_from(&lab.client, from, *to);
        (*to, stream.expect("a connection"))
    });
    opened.collect()
}

/// Asks from a new socket, and once more if necessary: a datagram may be on its way to a removed
/// endpoint, or its answer on the way back; UDP leaves such losses to the program.
fn datagram(lab: &Lab, to: SocketAddr) -> io::Result<()> {
    let socket = udp(&lab.client, to)?;
    let first = udp_say(&socket, "first");
    first.or_else(|_| udp_say(&socket, "again")).map(drop)
}

fn at_pace(calls: &Calls, call: impl Fn(u64) -> (String, io::Result<()>)) {
    let begun = Instant::now();
    for number in 0.. {
        if calls.over.load(Relaxed) {
            break;
        }
        // This sleep sets the pace; it is not a wait for something.
        let due = Duration::from_secs(1) * number as u32 / CALLS;
        thread::sleep(due.saturating_sub(begun.elapsed()));
        let began = begun.elapsed();
        let (what, answer) = call(number);
        calls.made.fetch_add(1, Relaxed);
        if let Err(error) = answer {
            let took = begun.elapsed() - began;
            calls.failed(format!("{what} at {began:.1?}, for {took:.1?}: {error}"));
        }
    }
}

/// Changes Services for `length`. Returns the measurements meanwhile.
fn churn(
    mode: Mode,
    lab: &Lab,
    called: &[Service],
    (tripod, calls): (&Tripod, &Calls),
    length: Duration,
) -> Vec<Sample> {
    let coming: Vec<_> = (0..COMING)
        .map(|number| Service::new(&format!("coming-{number}"), 10 + number).with_node_port())
        .collect();
    let mut there = [false; COMING as usize];
    let mut samples: Vec<Sample> = Vec::new();
    let begun = Instant::now();
    let (mut changes, mut random) = (0, 1_u32);
    while begun.elapsed() < length {
        // A linear congruential generator (Numerical Recipes): the same changes in each run.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let choice = CHOICES[(random >> 16) as usize % 256 % CHOICES.len()];
        let at = (random >> 24) as usize % coming.len();
        if changes % 4 == 0 {
            lab.publish(&called[changes as usize / 4 % called.len()], choice);
        } else if there[at] && random & 0x1000 == 0 {
            lab.withdraw(&coming[at]);
            there[at] = false;
        } else {
            lab.publish(&coming[at], choice);
            there[at] = true;
        }
        changes += 1;
        let elapsed = begun.elapsed();
        if elapsed >= length / SAMPLES * samples.len() as u32 {
            let (calls, failed) = calls.count();
            let sample = Sample {
                changes,
                calls,
                failed,
                ..Sample::take(mode, lab, tripod, elapsed)
            };
            if is_soak() {
                figure(&format!("soak {mode:?}"), sample);
            }
            samples.push(sample);
        }
        let due = Duration::from_secs(1) * changes as u32 / CHANGES;
        thread::sleep(due.saturating_sub(begun.elapsed()));
    }
    for (service, there) in coming.iter().zip(there) {
        if there {
            lab.withdraw(service);
        }
    }
    samples
}

/// Checks that nothing grows, once everything has existed for a while.
fn check(mode: Mode, samples: &[Sample], tripod: &Tripod) {
    assert_eq!(tripod.logged(&["ERROR"]), 0, "{}", tripod.log());
    let later = &samples[samples.len() / 4..];
    let (Some(first), Some(last)) = (later.first(), later.last()) else {
        panic!("{mode:?}: {samples:?}");
    };
    assert!(last.changes > 0 && last.calls > 0, "{last:?}");
    assert!(
        last.memory_kib <= first.memory_kib * 11 / 10 + SLACK,
        "{mode:?}: memory grows: {first:?} {last:?}"
    );
    // In a short run entries of ended connections have not begun to expire.
    if is_soak() {
        assert!(
            last.flows <= first.flows * 11 / 10 + MORE_FLOWS,
            "{mode:?}: entries of connection tracking grow: {first:?} {last:?}"
        );
    }
}
