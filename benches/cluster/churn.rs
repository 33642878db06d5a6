//! A thousand changes a second for a minute. Measures how long an endpoint change of one Service
//! takes meanwhile from the API server to the kernel: until a call reaches the new endpoint.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    figures::{CHURN, blank, decimal},
    large::{BACKENDS, Size},
    modes::ModeName,
    node::{call, part, until},
    process::Tripod,
    server::Server,
};

/// Number of changes each second ...
const A_SECOND: u32 = 1000;
/// ... and number of seconds, unless the environment sets it.
const SECONDS: u64 = 60;
/// Pause between two calls of the Service until its new endpoint answers.
const EVERY: Duration = Duration::from_millis(2);
/// Time limit for one change.
const LIMIT: Duration = Duration::from_secs(30);

/// The duration of the storm.
fn length() -> Duration {
    let asked = std::env::var("TRIPOD_BENCH_CHURN").ok();
    let seconds = asked.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(SECONDS))
}

/// Measures `tripod` in the namespace of this thread.
pub fn measure(mode: ModeName, size: &Size, server: &Server, tripod: &Tripod) {
    if call(size.changed()).is_none() {
        // In userspace mode it may be one of those for which there was no descriptor.
        println!("  the Service that is called is not applied: no changes were measured");
        return;
    }
    let end = Arc::new(AtomicBool::new(false));
    let sender = std::thread::spawn({
        let (end, server, size) = (Arc::clone(&end), server.clone(), size.clone());
        move || storm(&end, &server, &size)
    });
    let (begun, before) = (Instant::now(), tripod.busy());
    let length = length();
    let mut took = Vec::new();
    let mut lost = 0;
    for turn in 1.. {
        if begun.elapsed() >= length {
            break;
        }
        let backend = BACKENDS[turn % 2];
        let sent = Instant::now();
        server.change(|cluster| size.redirect(cluster, backend));
        match until(size.changed(), backend, EVERY, LIMIT) {
            Some(seen) => took.push(seen - sent),
            None => lost += 1,
        }
    }
    let busy = tripod.busy().since(before);
    let elapsed = begun.elapsed().as_secs_f64();
    end.store(true, Relaxed);
    let changes = sender.join().expect("changes are sent");
    took.sort_unstable();
    let percent = |time: Duration| time.as_secs_f64() / elapsed * 100.0;
    let row = vec![
        mode.to_owned(),
        size.services.to_string(),
        decimal(f64::from(changes) / elapsed, 0),
        decimal(elapsed, 0),
        took.len().to_string(),
        lost.to_string(),
        part(&took, 50).map_or_else(blank, |ms| decimal(ms, 1)),
        part(&took, 99).map_or_else(blank, |ms| decimal(ms, 1)),
        decimal(percent(busy.own), 1),
        decimal(percent(busy.children), 1),
        decimal(tripod.memory()[1], 1),
    ];
    println!("  {}", row.join(" "));
    CHURN.put(row);
}

/// Makes changes until `end`, and counts them.
fn storm(end: &AtomicBool, server: &Server, size: &Size) -> u32 {
    let begun = Instant::now();
    let mut sent = 0;
    while !end.load(Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * f64::from(A_SECOND)) as u32;
        while sent < due {
            sent += 1;
            server.change(|cluster| size.replace(cluster, sent));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    sent
}
