//! The program as a process.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// Longer than anything takes unless it hangs.
const DEADLINE: Duration = Duration::from_secs(60);
const METRICS: &str = "127.0.0.1:10249";

/// A running `tripod`; killed when dropped.
pub struct Tripod(Child);

impl Tripod {
    /// Starts the one built with this benchmark, or the one that `TRIPOD`
    /// names, as the node of the objects.
    pub fn start(flags: &[&str], kubeconfig: &Path) -> Tripod {
        let program = std::env::var_os("TRIPOD").unwrap_or(env!("CARGO_BIN_EXE_tripod").into());
        let child = Command::new(program)
            .args(flags)
            .arg("--kubeconfig")
            .arg(kubeconfig)
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
            .spawn();
        Tripod(child.expect("tripod starts"))
    }

    /// Waits until so many Services are without an endpoint on this node.
    pub async fn reaches_missing(&self, services: f64) {
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
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A metric, by its name with its labels.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let mut stream = TcpStream::connect(METRICS).ok()?;
        let request = "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let mut lines = answer.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Processor time so far, in seconds: utime and stime are fields 14 and 15
    /// of proc_pid_stat(5), in ticks of 10 ms.
    pub fn cpu(&self) -> f64 {
        let stat = self.read("stat");
        let after = stat.rsplit(')').next().unwrap_or_default();
        let fields = after.split_whitespace().skip(11).take(2);
        let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
        ticks / 100.0
    }

    /// How long all its threads have run so far, in the kernel and outside: the
    /// first field of `/proc/PID/task/TID/schedstat`, in nanoseconds.
    pub fn ran(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0.id()));
        let tasks = tasks.into_iter().flatten().flatten();
        let nanos = tasks.filter_map(|task| {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanos.sum())
    }

    /// Resident memory now and at its highest, in MiB.
    pub fn memory(&self) -> [f64; 2] {
        let status = self.read("status");
        ["VmRSS:", "VmHWM:"].map(|name| {
            let mut lines = status.lines();
            let line = lines.find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
            kib.unwrap_or(0.0) / 1024.0
        })
    }

    /// Returns how many descriptors it has open.
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
