//! The program as a process.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    libc,
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::modes::NO_PERIODIC_SYNC;

/// Longer than any step takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(300);
const METRICS: &str = "127.0.0.1:10249";
/// The metric with the time of the last sync, which kube-proxy has as well.
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";

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
    /// Starts Tripod as the node of the objects.
    pub fn start(flags: &[&str], source: [&str; 2]) -> Tripod {
        // A separate /run: several run at the same time, each in a network namespace.
        let alone = "mount -t tmpfs tmpfs /run && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", alone, "sh"])
            .arg(program())
            .args(flags)
            .args(NO_PERIODIC_SYNC)
            .args(source);
        Tripod::spawn(command)
    }

    /// Starts Tripod with the objects of a folder and the /run of this process, in which it finds
    /// the one before it.
    pub fn next(flags: &[&str], folder: &Path) -> Tripod {
        let mut command = Command::new(program());
        command
            .args(flags)
            .args(NO_PERIODIC_SYNC)
            .arg("--manifests")
            .arg(folder);
        Tripod::spawn(command)
    }

    /// Starts any program that understands the flags of kube-proxy.
    pub fn other(program: &Path, flags: &[&str], kubeconfig: &Path) -> Tripod {
        let mut command = Command::new(program);
        command.args(flags).arg("--kubeconfig").arg(kubeconfig);
        Tripod::spawn(command)
    }

    fn spawn(mut command: Command) -> Tripod {
        let child = command
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
        match child {
            Ok(child) => Tripod(child),
            Err(error) => panic!("cannot run {:?}: {error}", command.get_program()),
        }
    }

    /// Whether it has synced these IP families.
    pub fn has_synced(&self, families: &[&str]) -> bool {
        let metrics = read_metrics().unwrap_or_default();
        families.iter().all(|family| {
            let mut lines = metrics
                .lines()
                .filter_map(|line| line.strip_prefix(LAST_SYNC));
            // Old versions of kube-proxy count both families together.
            lines.any(|line| match line.rsplit_once(' ') {
                Some((labels, value)) => {
                    let is_meant = labels.is_empty() || labels.contains(family);
                    is_meant && value.parse::<f64>().is_ok_and(|time| time > 0.0)
                }
                None => false,
            })
        })
    }

    /// Whether it is the process that answers at the metrics address: one that takes over from
    /// another process answers there when it serves.
    pub fn answers_metrics(&self, predecessor: f64) -> bool {
        self.started().is_some_and(|started| started != predecessor)
    }

    /// When the process that answers at the metrics address started.
    pub fn started(&self) -> Option<f64> {
        self.metric("process_start_time_seconds")
    }

    /// Whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(Some(_)))
    }

    /// Asks it to end.
    pub fn terminate(&self) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).expect("process ids are positive"));
        kill(pid, Signal::SIGTERM).expect("a signal to a child");
    }

    /// Asks it to end, and waits until it has.
    pub fn end(mut self) {
        self.terminate();
        let begun = Instant::now();
        while !self.has_ended() {
            assert!(
                begun.elapsed() < DEADLINE,
                "the process ignores SIGTERM for {DEADLINE:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
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
        let answer = read_metrics()?;
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

/// The program built with this benchmark, or the one that `TRIPOD` names.
pub fn program() -> PathBuf {
    let given = std::env::var_os("TRIPOD");
    given.unwrap_or(env!("CARGO_BIN_EXE_tripod").into()).into()
}

/// Version 1.0, because kube-proxy sends answers of 1.1 in chunks.
fn read_metrics() -> Option<String> {
    let mut stream = TcpStream::connect(METRICS).ok()?;
    let request = "GET /metrics HTTP/1.0\r\nHost: bench\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

impl Drop for Tripod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
