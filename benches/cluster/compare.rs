//! Two programs with the same objects of the same API server: any kube-proxy, and Tripod. Prints a
//! table, and writes no document: which kube-proxy is measured is up to the reader.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use crate::{
    ApiServer,
    figures::decimal,
    large::{BACKENDS, Size},
    modes::Mode,
    node::{call_within, in_namespace, part, until},
    objects::node,
    prepare,
    prober::Prober,
    process::{Tripod, program},
    server::Server,
};

/// Names the other program.
pub const KUBE_PROXY: &str = "KUBE_PROXY";
/// Numbers of Services, unless arguments name others.
pub const SIZES: [u32; 2] = [1000, 5000];

/// How long a start, or a change, may take.
const LIMIT: Duration = Duration::from_secs(300);
/// Patience with a Service that may not be served yet.
const SOON: Duration = Duration::from_millis(50);
const EVERY: Duration = Duration::from_millis(5);
/// Number of changes, and the pause between two calls until one is seen.
const CHANGES: usize = 5;
const EVERY_IN_CHANGE: Duration = Duration::from_millis(1);

/// Flags for both programs, next to the mode. The limits of conntrack are settings of the node,
/// which a network namespace cannot write. A periodic sync would be counted as costs of changes.
const FLAGS: [&str; 6] = [
    "--conntrack-max-per-core=0",
    "--conntrack-tcp-timeout-established=0",
    "--conntrack-tcp-timeout-close-wait=0",
    "--iptables-sync-period=1h",
    "--ipvs-sync-period=1h",
    "--healthz-bind-address=127.0.0.1:10256",
];

/// The other program, or what to do to have one.
pub fn kube_proxy() -> Result<PathBuf, String> {
    let named = std::env::var_os(KUBE_PROXY).map(PathBuf::from);
    let named = named.ok_or_else(|| {
        format!(
            "{KUBE_PROXY} is not set: name the program to compare with, such as \
             make compare {KUBE_PROXY}=/usr/local/bin/kube-proxy"
        )
    })?;
    if named.is_file() {
        Ok(named)
    } else {
        Err(format!(
            "{KUBE_PROXY}={} is no file: name the program itself",
            named.display()
        ))
    }
}

/// Measures both programs, and prints the table.
pub fn measure(mode: &'static Mode, sizes: &[u32], kube_proxy: &Path) {
    println!("\n{}: {} and tripod", mode.title, kube_proxy.display());
    println!(
        "{:>9}  {:<10} {:>13} {:>14} {:>14} {:>9} {:>9} {:>12}",
        "Services",
        "program",
        "first sync, s",
        "change p50, ms",
        "change max, ms",
        "peak, MiB",
        "CPU, s",
        "calls failed"
    );
    for services in sizes.iter().copied() {
        for (name, path) in [("kube-proxy", kube_proxy), ("tripod", &*program())] {
            let path = path.to_owned();
            let measured = in_namespace(move || of_program(mode, services, &path)).join();
            let cells = match measured {
                Ok(Ok(cells)) => cells,
                Ok(Err(reason)) => {
                    println!("{services:>9}  {name:<10} {reason}");
                    continue;
                }
                Err(_) => {
                    println!("{services:>9}  {name:<10} was not measured to the end");
                    continue;
                }
            };
            let [first, p50, max, memory, busy, failed] = cells;
            println!(
                "{services:>9}  {name:<10} {first:>13} {p50:>14} {max:>14} {memory:>9} {busy:>9} \
                 {failed:>12}"
            );
        }
    }
    println!(
        "First sync: from the start of the process until 16 of the Services answer. Change: one \
         endpoint, from the event until a call reaches the new one. Peak: resident memory of the \
         process. CPU: of the process and of programs that it ran, until after {CHANGES} changes. \
         Calls failed: of those every millisecond from the end of a process until the next one \
         has synced."
    );
}

/// The figures of one program, in the namespace of this thread.
fn of_program(mode: &'static Mode, services: u32, path: &Path) -> Result<[String; 6], String> {
    prepare(mode);
    let ApiServer { server, tcp, .. } = &ApiServer::open("compare");
    let size = Size::new(services);
    server.change(|cluster| {
        cluster.put(node("node-a", "zone-1"));
        size.fill(cluster);
    });
    // The first flag of a mode is its name; the others are Tripod's own.
    let flags: Vec<&str> = mode.flags[..1].iter().chain(&FLAGS).copied().collect();
    let start = || Tripod::other(path, &flags, &tcp.file("kubeconfig"));

    let begun = Instant::now();
    let mut process = start();
    wait_for("synced", &mut process, |process| {
        let is_served = || {
            let mut called = size.called().into_iter();
            called.all(|ip| call_within(ip, SOON).is_some())
        };
        process.has_synced(&["IPv4"]) && is_served()
    })?;
    let first = begun.elapsed();
    let took = changes(server, &size)?;
    let (peak, busy) = (process.memory()[1], process.busy());
    let failed = restart(&size, process, start)?;
    let ms = |percent| part(&took, percent).map_or_else(String::new, |ms| decimal(ms, 1));
    Ok([
        decimal(first.as_secs_f64(), 2),
        ms(50),
        ms(100),
        decimal(peak, 0),
        decimal((busy.own + busy.children).as_secs_f64(), 2),
        failed,
    ])
}

/// Waits until a condition holds.
fn wait_for(
    what: &str,
    process: &mut Tripod,
    condition: impl Fn(&Tripod) -> bool,
) -> Result<(), String> {
    let begun = Instant::now();
    while !condition(process) {
        if process.has_ended() {
            return Err("exited: set TRIPOD_BENCH_LOG=1 to see its log".to_owned());
        }
        if begun.elapsed() > LIMIT {
            return Err(format!("not {what} within {} s", LIMIT.as_secs()));
        }
        std::thread::sleep(EVERY);
    }
    Ok(())
}

/// How long single changes took, sorted.
fn changes(server: &Server, size: &Size) -> Result<Vec<Duration>, String> {
    let mut took = Vec::new();
    for turn in 1..=CHANGES {
        let backend = BACKENDS[turn % 2];
        let sent = Instant::now();
        server.change(|cluster| size.redirect(cluster, backend));
        let seen = until(size.changed(), backend, EVERY_IN_CHANGE, LIMIT);
        let seen =
            seen.ok_or_else(|| format!("a change was not applied within {} s", LIMIT.as_secs()))?;
        took.push(seen - sent);
    }
    took.sort_unstable();
    Ok(took)
}

/// Ends the process and starts it again. Returns how many calls failed meanwhile, of how many.
fn restart(size: &Size, old: Tripod, start: impl Fn() -> Tripod) -> Result<String, String> {
    let calls = Prober::start(size.called()[0]);
    old.end();
    let mut new = start();
    let done = wait_for("synced", &mut new, |new| new.has_synced(&["IPv4"]));
    let waits = calls.stop();
    done.map(|()| format!("{} of {}", waits.failed, waits.calls))
}
