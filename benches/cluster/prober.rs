//! A client that calls a Service all the time, and remembers how long calls waited.

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::node::call;

/// Pause between an answer and the next call.
const PAUSE: Duration = Duration::from_millis(1);
/// A call that waits longer is counted.
pub const LONG: Duration = Duration::from_millis(10);

/// How long calls waited for their answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    pub calls: u32,
    /// Calls without an answer.
    pub failed: u32,
    /// Calls that took longer than [`LONG`], with those that failed.
    pub long: u32,
    pub longest: Duration,
}

/// A running client.
pub struct Prober {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Waits>,
}

impl Prober {
    /// Starts to call `ip`, a Service or an endpoint itself, in the namespace of this thread.
    pub fn start(ip: Ipv4Addr) -> Prober {
        let end = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let end = Arc::clone(&end);
            move || probe(ip, &end)
        });
        Prober { end, thread }
    }

    /// Stops after the current call.
    pub fn stop(self) -> Waits {
        self.end.store(true, Relaxed);
        self.thread.join().expect("the prober does not panic")
    }
}

fn probe(ip: Ipv4Addr, end: &AtomicBool) -> Waits {
    let mut waits = Waits::default();
    while !end.load(Relaxed) {
        let begun = Instant::now();
        let is_answered = call(ip).is_some();
        let took = begun.elapsed();
        waits.calls += 1;
        waits.failed += u32::from(!is_answered);
        waits.long += u32::from(!is_answered || took > LONG);
        waits.longest = waits.longest.max(took);
        std::thread::sleep(PAUSE);
    }
    waits
}

/// Calls to a Service, and, at the same time, to an endpoint itself: what both waited for is not
/// the proxy but the machine.
pub struct Pair {
    through: Option<Prober>,
    direct: Prober,
}

/// The waits of a [`Pair`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Compared {
    /// Of calls to the Service; `None` while there was none.
    pub through: Option<Waits>,
    pub direct: Waits,
}

impl Pair {
    pub fn start(service: Option<Ipv4Addr>, endpoint: Ipv4Addr) -> Pair {
        Pair {
            through: service.map(Prober::start),
            direct: Prober::start(endpoint),
        }
    }

    pub fn stop(self) -> Compared {
        Compared {
            through: self.through.map(Prober::stop),
            direct: self.direct.stop(),
        }
    }
}
