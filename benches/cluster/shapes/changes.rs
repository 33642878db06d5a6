//! Changes, one at a time and a thousand a second, from the API server to the kernel.
//!
//! Each measured change is two: one more endpoint of a Service of the shape, and another endpoint
//! of a Service that is called. Both arrive in this order, so that the call that reaches the other
//! endpoint shows that the first change is applied, too.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{
    Shape, limit,
    row::Row,
    shape::{Called, called},
    starts::{families, wait_for},
};
use crate::{
    ApiServer,
    figures::decimal,
    large::BACKENDS,
    modes::Mode,
    node::{part, until},
    prober::Pair,
    process::Tripod,
    server::Server,
};

/// Number of single changes.
const CHANGES: u32 = 21;
/// Pause between two calls until the change is seen.
const EVERY: Duration = Duration::from_micros(200);
const EVERY_IN_STORM: Duration = Duration::from_millis(2);
/// A burst of changes is held back for some milliseconds: single ones are this far apart.
const APART: Duration = Duration::from_millis(50);
/// The storm: changes a second, and its length.
const A_SECOND: u32 = 1000;
const STORM: Duration = Duration::from_secs(10);
/// Numbers of changes of the storm follow those of single changes.
const FIRST_OF_STORM: u32 = 1000;

/// Measures in the namespace of this thread, with a server that has no objects yet.
pub fn measure(mode: &Mode, shape: Shape, api_server: &ApiServer, row: &mut Row) {
    let ApiServer { server, tcp, .. } = api_server;
    server.change(|cluster| {
        called()
            .into_iter()
            .chain(shape.objects())
            .for_each(|object| cluster.put(object));
    });
    let tripod = Tripod::of_cluster(mode.flags, &tcp.file("kubeconfig"));
    let synced = wait_for(Instant::now(), || tripod.has_synced(families(shape)));
    if synced.is_none() {
        row.set(
            "change_p50_ms",
            format!("not started within {} s", limit().as_secs()),
        );
        return row.put();
    }
    let mut sender = Sender {
        server: server.clone(),
        shape,
        turn: 0,
    };
    single(&mut sender, row);
    row.put();
    storm(&mut sender, &tripod, row);
    row.put();
}

/// Sends measured changes.
struct Sender {
    server: Server,
    shape: Shape,
    turn: u32,
}

impl Sender {
    /// Makes a change. Returns how long it took until it was applied.
    fn change(&mut self, pause: Duration) -> Option<Duration> {
        self.turn += 1;
        let backend = BACKENDS[self.turn as usize % 2];
        let endpoint = self.shape.with_one_more(self.turn);
        let sent = Instant::now();
        self.server.change(|cluster| {
            cluster.put(endpoint);
            cluster.put(Called::Changing.slice(backend));
        });
        let seen = until(Called::Changing.address(), backend, pause, limit())?;
        Some(seen - sent)
    }
}

fn single(sender: &mut Sender, row: &mut Row) {
    let calls = Pair::start(Some(Called::Steady.address()), BACKENDS[0]);
    let mut took = Vec::new();
    for _ in 0..CHANGES {
        let Some(time) = sender.change(EVERY) else {
            break;
        };
        took.push(time);
        std::thread::sleep(APART);
    }
    let waits = calls.stop();
    took.sort_unstable();
    match took.last() {
        Some(longest) => {
            set_part(row, "change_p50_ms", &took, 50);
            row.milliseconds("change_max_ms", *longest);
        }
        None => row.set(
            "change_p50_ms",
            format!("not within {} s", limit().as_secs()),
        ),
    }
    row.waits(
        ["change_wait_ms", "change_direct_ms", "change_calls_failed"],
        waits,
    );
}

fn storm(sender: &mut Sender, tripod: &Tripod, row: &mut Row) {
    let end = Arc::new(AtomicBool::new(false));
    let others = std::thread::spawn({
        let (end, server, shape) = (Arc::clone(&end), sender.server.clone(), sender.shape);
        move || send(&end, &server, shape)
    });
    let calls = Pair::start(Some(Called::Steady.address()), BACKENDS[0]);
    let begun = Instant::now();
    let mut took = Vec::new();
    while begun.elapsed() < STORM {
        let Some(time) = sender.change(EVERY_IN_STORM) else {
            break;
        };
        took.push(time);
    }
    let elapsed = begun.elapsed().as_secs_f64();
    end.store(true, Relaxed);
    let sent = others.join().expect("changes are sent");
    // Everything that was sent before is applied with this one.
    let caught_up = sender.change(EVERY);
    let waits = calls.stop();
    row.set("storm_a_second", decimal(f64::from(sent) / elapsed, 0));
    took.sort_unstable();
    set_part(row, "storm_p50_ms", &took, 50);
    set_part(row, "storm_p99_ms", &took, 99);
    match caught_up {
        Some(time) => row.milliseconds("storm_caught_up_ms", time),
        None => row.set(
            "storm_caught_up_ms",
            format!("not within {} s", limit().as_secs()),
        ),
    }
    if let Some(through) = waits.through {
        row.milliseconds("storm_wait_ms", through.longest);
    }
    row.set("storm_peak_mib", decimal(tripod.memory()[1], 0));
}

fn set_part(row: &mut Row, column: &'static str, sorted: &[Duration], percent: usize) {
    if let Some(ms) = part(sorted, percent) {
        row.set(column, decimal(ms, 2));
    }
}

/// Makes changes at the rate of the storm until `end`, and counts them. If the machine is too slow
/// for them, it makes fewer.
fn send(end: &AtomicBool, server: &Server, shape: Shape) -> u32 {
    let begun = Instant::now();
    let mut sent = 0;
    while !end.load(Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * f64::from(A_SECOND)) as u32;
        while sent < due && !end.load(Relaxed) {
            sent += 1;
            let slice = shape.with_one_more(FIRST_OF_STORM + sent);
            server.change(|cluster| cluster.put(slice));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    sent
}
