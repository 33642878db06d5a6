//! The first sync, memory, and one changed endpoint.

use std::time::{Duration, Instant};

use crate::{
    document::machine::kernel,
    figures::{SCALE, blank, decimal},
    large::{BACKENDS, ENDPOINTS, Size},
    modes::ModeName,
    node::{call, part, until},
    process::{Busy, Tripod},
    server::Server,
};

/// How often one endpoint is changed to measure the latency ...
const CALLED: usize = 21;
/// ... and to measure the processor time.
const CHANGES: u32 = 25;
const EVERY: Duration = Duration::from_micros(200);
const LIMIT: Duration = Duration::from_secs(60);
/// Time for the work that follows a change, such as a check whether others changed something.
const SETTLED: Duration = Duration::from_secs(5);
/// Number of measurements without changes, each as long as one for a change.
const IDLE: u32 = 9;

/// Measures `tripod`, which was started at `begun` in the namespace of this thread.
pub fn measure(mode: ModeName, size: &Size, server: &Server, tripod: &Tripod, begun: Instant) {
    tripod.reaches_missing(1.0);
    let took = begun.elapsed();
    let first = tripod.busy();
    let [resident, peak] = tripod.memory();
    let failed = tripod.metric("tripod_service_ports_failed").unwrap_or(0.0);
    let descriptors = tripod.descriptors();

    let called = call(size.changed()).map(|_| latencies(size, server));
    let latencies = called.unwrap_or_default();
    let pause = latencies.last().copied().unwrap_or(LIMIT / 100) * 2 + Duration::from_millis(30);
    let each = one_change(size, server, tripod, pause);
    let row = vec![
        mode.to_owned(),
        size.services.to_string(),
        ENDPOINTS.to_string(),
        kernel(),
        decimal(took.as_secs_f64(), 3),
        decimal(first.own.as_secs_f64(), 3),
        decimal(first.children.as_secs_f64(), 2),
        decimal(resident, 1),
        decimal(peak, 1),
        decimal(failed, 0),
        descriptors.to_string(),
        part(&latencies, 50).map_or_else(blank, |ms| decimal(ms, 2)),
        part(&latencies, 90).map_or_else(blank, |ms| decimal(ms, 2)),
        decimal(each.own.as_secs_f64() * 1000.0, 3),
        decimal(each.children.as_secs_f64() * 1000.0, 1),
    ];
    println!("  {}", row.join(" "));
    SCALE.put(row);
}

/// Measures how long changes take until a call reaches the new endpoint.
fn latencies(size: &Size, server: &Server) -> Vec<Duration> {
    let mut took = Vec::new();
    for turn in 1..=CALLED {
        let backend = BACKENDS[turn % 2];
        let sent = Instant::now();
        server.change(|cluster| size.redirect(cluster, backend));
        let Some(seen) = until(size.changed(), backend, EVERY, LIMIT) else {
            continue;
        };
        took.push(seen - sent);
        // A burst of changes is held back for some milliseconds.
        std::thread::sleep(Duration::from_millis(30));
    }
    took.sort_unstable();
    took
}

/// Processor time of one change, including subsequent work and excluding the time that is spent
/// without changes. Nothing is called meanwhile. The first change of its kind does not count: it
/// may create objects that stay, such as rules for a set that had no members before. For the own
/// time it is the median: at times a shared machine takes twenty times as long for the same work.
/// For the time of programs, which is counted in ticks, it is the mean.
fn one_change(size: &Size, server: &Server, tripod: &Tripod, pause: Duration) -> Busy {
    server.change(|cluster| size.replace(cluster, CHANGES));
    std::thread::sleep(SETTLED);
    let mut idle: Vec<_> = (0..IDLE)
        .map(|_| spent(tripod, || std::thread::sleep(pause)))
        .collect();
    let mut busy: Vec<_> = (0..CHANGES)
        .map(|turn| {
            spent(tripod, || {
                server.change(|cluster| size.replace(cluster, turn));
                std::thread::sleep(pause);
            })
        })
        .collect();
    let [busy, idle] = [&mut busy, &mut idle].map(|all| typical(all));
    Busy {
        own: busy.own.saturating_sub(idle.own),
        children: busy.children.saturating_sub(idle.children),
    }
}

/// The median of own times, and the mean of those of programs.
fn typical(all: &mut [Busy]) -> Busy {
    all.sort_unstable_by_key(|busy| busy.own);
    let children: Duration = all.iter().map(|busy| busy.children).sum();
    Busy {
        own: all[all.len() / 2].own,
        children: children / all.len() as u32,
    }
}

fn spent(tripod: &Tripod, body: impl FnOnce()) -> Busy {
    let before = tripod.busy();
    body();
    tripod.busy().since(before)
}
