//! One upgrade after another while clients open connections at a fixed pace, whether or not earlier
//! ones were answered: none is refused, and with a running successor none is reset.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::gap::{are_held, start_beside, start_holder};
use super::succession::{Open, PATIENCE, Stop, call, none_failed};
use crate::{
    faults::measured::measured,
    lab::{Lab, Service, acceptance, eventually},
};

on_each_capture!(side_by_side, with_a_gap);

/// The size of a run.
struct Size {
    upgrades: u16,
    /// New connections per second.
    pace: u32,
    /// Connections that are open during each upgrade.
    open: usize,
}

impl Size {
    fn get() -> Size {
        if acceptance() {
            Size {
                upgrades: 50,
                pace: 1_000,
                open: 200,
            }
        } else {
            Size {
                upgrades: 2,
                pace: 100,
                open: 20,
            }
        }
    }

    /// Opens connections that must survive the request to end.
    fn open(&self, lab: &Lab, web: &Service) -> Open {
        let all = web.cluster().into_iter().cycle().take(self.open);
        Open::to(lab, &all.collect::<Vec<_>>())
    }
}

/// One in this many calls is over UDP.
const UDP_SHARE: usize = 10;

#[derive(Default)]
struct Calls {
    over: AtomicBool,
    made: AtomicUsize,
    ended: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Calls {
    /// Makes call number `number` in the calling thread's namespace.
    fn make(&self, number: usize, to: SocketAddr) {
        let udp = number.is_multiple_of(UDP_SHARE);
        let begun = Instant::now();
        let answer = if udp { ask_udp(to) } else { call(to).map(drop) };
        if let Err(error) = answer {
            let protocol = if udp { "udp" } else { "tcp" };
            let text = format!("{to}/{protocol} after {:?}: {error}", begun.elapsed());
            self.failures.lock().expect("no panic").push(text);
        }
        self.ended.fetch_add(1, Relaxed);
    }

    /// Waits for the calls of a tenth of a second, made and ended from now on.
    fn more(&self, pace: u32) {
        let enough = self.made.load(Relaxed) + pace as usize / 10;
        eventually("more calls end", PATIENCE, || {
            match self.ended.load(Relaxed) {
                ended if ended >= enough => Ok(()),
                ended => Err(format!("{ended} of {enough}")),
            }
        });
    }
}

fn ask_udp(to: SocketAddr) -> io::Result<()> {
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.connect(to)?;
    socket.send(b"name")?;
    socket.recv(&mut [0; 64]).map(drop)
}

/// Makes calls at `pace` while `body` runs; each has a thread of its own, so that none
/// waits for another.
fn at_pace(
    (test, lab): (&str, &Lab),
    addresses: &[SocketAddr],
    pace: u32,
    body: impl FnOnce(&Calls),
) {
    let calls = &Calls::default();
    let caller = || {
        // Ports of connections that this end closed are reused after a second instead of
        // a minute (ip-sysctl.rst): there are 28,000 per address.
        std::fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "1").expect("a sysctl");
        std::thread::scope(|scope| {
            let begun = Instant::now();
            for (number, to) in (0..).zip(addresses.iter().cycle()) {
                if calls.over.load(Relaxed) {
                    break;
                }
                // This is the pace itself; nothing is awaited.
                let due = Duration::from_secs(1) * number as u32 / pace;
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
                calls.made.fetch_add(1, Relaxed);
                scope.spawn(move || calls.make(number, *to));
            }
        });
    };
    let begun = Instant::now();
    let mut seconds = 0.0;
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| lab.client.enter(caller));
        let over = Stop(&calls.over);
        body(calls);
        seconds = begun.elapsed().as_secs_f64().round();
        drop(over);
        caller.join().expect("the caller does not panic");
    });
    let failures = calls.failures.lock().expect("no panic");
    let made = calls.made.load(Relaxed);
    let over_udp = failures.iter().filter(|text| text.contains("/udp "));
    for (name, count) in [
        ("calls", made),
        ("failed", failures.len()),
        ("failed_over_udp", over_udp.count()),
    ] {
        measured(test, lab.capture, name, count as f64);
    }
    measured(test, lab.capture, "seconds", seconds);
    none_failed(made, &failures);
}

/// As with `maxSurge: 1`: the new process runs before the old one ends, which relays its
/// connections until they end.
fn side_by_side(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let size = Size::get();
    let mut old = start_beside(lab, 0, 2);
    at_pace(("side_by_side", lab), &web.cluster(), size.pace, |calls| {
        for upgrade in 1..=size.upgrades {
            let mut open = size.open(lab, &web);
            let new = start_beside(lab, upgrade % 2, 2);
            calls.more(size.pace);
            old.ask_to_end();
            calls.more(size.pace);
            open.are_served("the old process was asked to end");
            drop(open);
            assert!(old.ended().success(), "the old process ended badly");
            old = new;
        }
    });
}

/// As with `maxUnavailable: 1`: the old process, which relays its connections until they end,
/// is gone before the new one starts, and the holder has the sockets.
fn with_a_gap(lab: &mut Lab) {
    let web = Service::new("web", 10);
    lab.three_backends().publish_all(&web);
    let lab = &*lab;
    let size = Size::get();
    let _holder = start_holder(lab);
    let mut proxy = start_beside(lab, 0, 2);
    are_held(&proxy, 8);
    at_pace(("with_a_gap", lab), &web.cluster(), size.pace, |calls| {
        for _ in 1..=size.upgrades {
            let mut open = size.open(lab, &web);
            proxy.ask_to_end();
            proxy.logs_once(&["ending when all connections have ended"]);
            calls.more(size.pace);
            open.are_served("the old process was asked to end");
            drop(open);
            assert!(proxy.ended().success(), "the old process ended badly");
            proxy = start_beside(lab, 0, 2);
            are_held(&proxy, 8);
            calls.more(size.pace);
        }
    });
}
