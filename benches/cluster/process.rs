//! The program as a process.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::libc;

use crate::modes::NO_PERIODIC_SYNC;

/// Longer than any step takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(300);
const METRICS: &str = "127.0.0.1:10249";

/// A running `tripod`; killed when dropped.
pub struct Tripod(Child);

/// Processor time so far.
#[derive(Clone, Copy)]
pub struct Busy {
    /// Of all its threads, in kernel and user space.
    pub own: Duration,
    /// Of the programs that it started and that have exited.
    pub children: Duration,
}

impl Busy {
    /// Returns the difference to an earlier measurement.
    pub fn since(self, before: Busy) -> Busy {
        Busy {
            own: self.own.saturating_sub(before.own),
            children: self.children.saturating_sub(before.children),
        }
    }
}

impl Tripod {
    /// Starts the program built with this benchmark, or that which `TRIPOD` names, as the node of
    /// the objects.
    pub fn start(flags: &[&str], source: [&str; 2]) -> Tripod {
        let program = std::env::var_os("TRIPOD").unwrap_or(env!("CARGO_BIN_EXE_tripod").into());
        // A separate /run: several run at the same time, each in a network namespace.
        let alone = "mount -t tmpfs tmpfs /run && exec \"$@\"";
        let child = Command::new("unshare")
            .args(["-m", "sh", "-c", alone, "sh"])
            .arg(program)
            .args(flags)
            .args(NO_PERIODIC_SYNC)
            .args(source)
            .args([
                "--hostname-override=node-a",
                "--metrics-bind-address",
                METRICS,
            ])
            .stdout(Stdio::null())
            .stderr(match std::env::var_os("TRIPOD_BENCH_LOG") {
                Some(_) => Stdio::inherit(),
                None => Stdio::null(),
            })
            .process_group(0)
            .spawn();
        Tripod(child.expect("tripod starts"))
    }

    /// Starts it as a client of the API server that this file names.
    pub fn of_cluster(flags: &[&str], kubeconfig: &Path) -> Tripod {
        Tripod::start(flags, ["--kubeconfig", &kubeconfig.to_string_lossy()])
    }

    /// Starts it with the objects of a folder.
    pub fn of_folder(flags: &[&str], folder: &Path) -> Tripod {
        Tripod::start(flags, ["--manifests", &folder.to_string_lossy()])
    }

    /// Waits until this number of Services is without an endpoint on this node.
    pub fn reaches_missing(&self, services: f64) {
        let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"internal\"}";
        let begun = Instant::now();
        while self.metric(name) != Some(services)
            || self.metric("tripod_service_ports") == Some(0.0)
        {
            assert!(
                begun.elapsed() < DEADLINE,
                "{:?}, not {services}",
                self.metric(name)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Reads a metric by its name with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(METRICS).ok()?;
        let request = "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let mut lines = answer.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Reads the processor time so far.
    pub fn busy(&self) -> Busy {
        Busy {
            own: self.own_time(),
            children: self.time_of_children(),
        }
    }

    /// Including ended threads.
    fn own_time(&self) -> Duration {
        let pid = libc::pid_t::try_from(self.0.id()).expect("process ids are positive");
        // CPUCLOCK_SCHED of a process: `linux/posix-timers_types.h`.
        let clock = (!pid << 3) | 2;
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a timespec that outlives the call.
        let done = unsafe { libc::clock_gettime(clock, &mut time) };
        assert_eq!(done, 0, "the process is there");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    /// cutime and cstime, fields 16 and 17 of proc_pid_stat(5), in ticks of 10 ms.
    fn time_of_children(&self) -> Duration {
        let stat = self.read("stat");
        let after = stat.rsplit(')').next().unwrap_or_default();
        let fields = after.split_whitespace().skip(13).take(2);
        let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Resident memory now and at its peak, in MiB.
    pub fn memory(&self) -> [f64; 2] {
        let status = self.read("status");
        ["VmRSS:", "VmHWM:"].map(|name| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            kib.unwrap_or(0.0) / 1024.0
        })
    }

    /// Counts its open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0.id())).map_or(0, Iterator::count)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).unwrap_or_default()
    }
}

impl Drop for Tripod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
