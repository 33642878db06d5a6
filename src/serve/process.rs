//! `process_…` metrics under the names that every Prometheus client library uses: the resources
//! that this process uses. Read from `/proc` at each scrape (proc(5)).

use std::fs;

use nix::{
    sys::resource::{Resource, UsageWho, getrlimit, getrusage},
    sys::time::TimeValLike,
    unistd::{SysconfVar, sysconf},
};
use prometheus::{CounterVec, GaugeVec, Opts, Registry, core::Collector};
use tokio::runtime::Handle;

use crate::{
    family_metrics::{Scrape, at_scrape},
    kernel::open_files,
};

/// Name, help, and a function that reads the value; `None` if unavailable at the moment.
type Metric = (&'static str, &'static str, fn() -> Option<f64>);

const COUNTERS: [Metric; 3] = [
    (
        "process_cpu_seconds_total",
        "User and system CPU time of this process, in seconds.",
        cpu_seconds,
    ),
    (
        "process_network_receive_bytes_total",
        "Bytes of IP packets received in this network namespace.",
        || {
            ip_octets(
                &fs::read_to_string("/proc/self/net/netstat").ok()?,
                "InOctets",
            )
        },
    ),
    (
        "process_network_transmit_bytes_total",
        "Bytes of IP packets sent in this network namespace.",
        || {
            ip_octets(
                &fs::read_to_string("/proc/self/net/netstat").ok()?,
                "OutOctets",
            )
        },
    ),
];

const GAUGES: [Metric; 7] = [
    (
        "process_max_fds",
        "File descriptors that this process may have open.",
        || limit(Resource::RLIMIT_NOFILE),
    ),
    (
        "process_open_fds",
        "File descriptors that this process has open.",
        || open_files::number().map(|number| number as f64),
    ),
    (
        "process_resident_memory_bytes",
        "Resident memory of this process, in bytes.",
        || Some(status("VmRSS:")? * KIB),
    ),
    (
        "process_start_time_seconds",
        "When this process started, in seconds since 1970.",
        start_time,
    ),
    ("process_threads", "Threads of this process.", || {
        status("Threads:")
    }),
    (
        "process_virtual_memory_bytes",
        "Virtual memory of this process, in bytes.",
        || Some(status("VmSize:")? * KIB),
    ),
    (
        "process_virtual_memory_max_bytes",
        "Virtual memory that this process may have, in bytes.",
        || limit(Resource::RLIMIT_AS),
    ),
];

const KIB: f64 = 1024.0;

/// Name and help of the number of tasks.
const TASKS: (&str, &str) = (
    "go_goroutines",
    "Threads of this process, under the name where dashboards for kube-proxy look for goroutines.",
);

/// Registers the metrics with `registry`. Tasks are those of the runtime that this is called on:
/// another one answers scrapes over TLS.
///
/// # Errors
/// When it has metrics of these names already.
pub(super) fn register(registry: &Registry) -> prometheus::Result<()> {
    let runtime = Handle::try_current().ok();
    at_scrape(registry, move || read(runtime.as_ref()))
}

/// Reads the metrics; `runtime` has the tasks of this process.
fn read(runtime: Option<&Handle>) -> Scrape {
    let mut made: Vec<Box<dyn Collector>> = Vec::new();
    for (name, help, read) in COUNTERS {
        let counter = CounterVec::new(Opts::new(name, help), &[])?;
        if let Some(value) = read() {
            // The kernel's counts only grow; a counter would panic otherwise.
            counter
                .with_label_values::<&str>(&[])
                .inc_by(value.max(0.0));
        }
        made.push(Box::new(counter));
    }
    let gauges = GAUGES.map(|(name, help, read)| (name, help, read()));
    let tasks = (TASKS.0, TASKS.1, runtime.map(tasks));
    for (name, help, value) in gauges.into_iter().chain([tasks]) {
        let gauge = GaugeVec::new(Opts::new(name, help), &[])?;
        if let Some(value) = value {
            gauge.with_label_values::<&str>(&[]).set(value);
        }
        made.push(Box::new(gauge));
    }
    Ok(made)
}

fn cpu_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Some(micros as f64 / 1e6)
}

fn tasks(runtime: &Handle) -> f64 {
    runtime.metrics().num_alive_tasks() as f64
}

fn limit(resource: Resource) -> Option<f64> {
    getrlimit(resource).ok().map(|(soft, _)| soft as f64)
}

fn status(field: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

fn start_time() -> Option<f64> {
    let ticks = start_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?;
    let per_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot = system
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    Some(boot.trim().parse::<f64>().ok()? + ticks / per_second as f64)
}

/// Reads field 22 of `/proc/pid/stat`, counted from after the program's name, which may hold spaces
/// and parentheses: the start time in clock ticks.
fn start_ticks(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(22 - 3)?.parse().ok()
}

/// Reads a value of the `IpExt` table of `/proc/net/netstat`: a line of names, a line of values.
fn ip_octets(netstat: &str, name: &str) -> Option<f64> {
    let mut lines = netstat.lines().filter(|line| line.starts_with("IpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let column = names.split_whitespace().position(|column| column == name)?;
    values.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_tables_of_proc_are_read() {
        let stat = "7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(start_ticks(stat), Some(4711.0));
        let netstat = "TcpExt: InOctets\nTcpExt: 1\nIpExt: A InOctets OutOctets\nIpExt: 2 3 4\n";
        assert_eq!(ip_octets(netstat, "InOctets"), Some(3.0));
        assert_eq!(ip_octets(netstat, "OutOctets"), Some(4.0));
        assert_eq!(ip_octets(netstat, "Nothing"), None);
    }

    #[tokio::test]
    async fn this_process_is_described() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let families = registry.gather();
        let value = |name: &str| {
            let family = families.iter().find(|f| f.name() == name).expect(name);
            let metric = &family.get_metric()[0];
            metric.get_gauge().get_value() + metric.get_counter().get_value()
        };
        assert_eq!(families.len(), COUNTERS.len() + GAUGES.len() + 1);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let age = now.as_secs_f64() - value("process_start_time_seconds");
        assert!((-2.0..3600.0).contains(&age), "{age} s old");
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_open_fds") <= value("process_max_fds"));
        assert!(value("process_resident_memory_bytes") > 1e6);
        assert!(value("process_virtual_memory_bytes") <= value("process_virtual_memory_max_bytes"));
    }

    #[tokio::test]
    async fn tasks_are_those_of_the_runtime_that_registers() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let _tasks: Vec<_> = (0..7)
            .map(|_| tokio::spawn(std::future::pending::<()>()))
            .collect();
        let tasks = std::thread::spawn(move || {
            let other = tokio::runtime::Builder::new_current_thread().build();
            let families = other.unwrap().block_on(async { registry.gather() });
            let tasks = families.iter().find(|f| f.name() == TASKS.0).expect("it");
            tasks.get_metric()[0].get_gauge().get_value()
        });
        assert_eq!(tasks.join().unwrap(), 7.0);
    }
}
