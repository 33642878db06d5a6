//! The program under test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::call;
use super::container::{in_container, init_container};
use super::host::Host;
use super::process::Group;
use super::topology::Lab;
use super::wait::eventually;

/// The binary under test: the one in `TRIPOD`, or the one built with the tests.
pub fn tripod_binary() -> PathBuf {
    std::env::var_os("TRIPOD").map_or_else(|| env!("CARGO_BIN_EXE_tripod").into(), Into::into)
}

/// The longest time from start to readiness. It only ends a test that hangs.
const READY: Duration = Duration::from_secs(180);

/// Adds a flag, unless `command` has it already.
fn add_unless_given(command: &mut Command, flag: &str, value: &str) {
    let given = command.get_args().any(|argument| {
        let argument = argument.to_string_lossy();
        argument
            .strip_prefix(flag)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    });
    if !given {
        command.arg(format!("{flag}={value}"));
    }
}

/// A running `tripod` on the node; killed on drop.
pub struct Tripod {
    process: Group,
    log: Arc<Mutex<String>>,
}

impl Tripod {
    pub fn start(lab: &Lab) -> Tripod {
        let mut tripod = Tripod::launch(lab, lab.node.command(tripod_binary()));
        tripod.wait_ready(&lab.node);
        // With `auto`, it must have chosen the way that works here.
        for family in ["IPv4", "IPv6"]
            .iter()
            .filter(|_| lab.capture.flag() == "auto")
        {
            let chosen = format!("{family}: {} capture", lab.capture.name());
            tripod.logs_once(&[&chosen]);
        }
        tripod
    }

    /// Like [`Tripod::start`], with a low limit on open files and further flags.
    pub fn start_with_descriptors(lab: &Lab, limit: usize, flags: &[&str]) -> Tripod {
        let mut command = lab.node.command("sh");
        command
            .args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")])
            .arg(tripod_binary())
            .args(flags);
        Tripod::start_as(lab, command)
    }

    /// Like [`Tripod::start`], with further flags.
    pub fn start_with(lab: &Lab, flags: &[&str]) -> Tripod {
        let mut command = lab.node.command(tripod_binary());
        command.args(flags);
        Tripod::start_as(lab, command)
    }

    /// Like [`Tripod::start`], with the caller's command, to which flags are added.
    pub fn start_as(lab: &Lab, command: Command) -> Tripod {
        let mut tripod = Tripod::launch(lab, command);
        tripod.wait_ready(&lab.node);
        tripod
    }

    fn launch(lab: &Lab, mut command: Command) -> Tripod {
        command
            .arg("--proxy-mode=userspace")
            .arg(format!("--userspace-capture={}", lab.capture.flag()))
            .arg("--manifests")
            .arg(lab.manifests())
            // The pod networks, which distinguish pods from outside callers.
            .arg("--cluster-cidr=10.244.0.0/24,fd00:244::/64")
            .args(["--hostname-override", "node"])
            .arg("--userspace-drain-timeout=1s")
            .args(["--ipvs-scheduler", "wrr", "--v", "2"])
            .args(["--metrics-bind-address", "127.0.0.1:10249"]);
        // A periodic full sync must not repair a change that went unnoticed.
        add_unless_given(&mut command, "--iptables-sync-period", "1h");
        add_unless_given(&mut command, "--udp-timeout", "2s");
        Tripod::spawn(command)
    }

    /// Starts another process on the node, in `mode`, and waits until its rules are applied. Its
    /// ports depend on its `number`, so that it can start while another runs.
    pub fn start_beside(lab: &Lab, mode: &str, number: u16, flags: &[&str]) -> Tripod {
        let command = lab.node.command(tripod_binary());
        Tripod::start_beside_as(command, lab, mode, number, flags)
    }

    /// Like [`Tripod::start_beside`], as the DaemonSet's pod.
    pub fn start_pod_beside(lab: &Lab, mode: &str, number: u16, flags: &[&str]) -> Tripod {
        init_container(&lab.node, &format!("--proxy-mode={mode}"));
        Tripod::start_beside_as(in_container(&lab.node), lab, mode, number, flags)
    }

    fn start_beside_as(
        mut command: Command,
        lab: &Lab,
        mode: &str,
        number: u16,
        flags: &[&str],
    ) -> Tripod {
        let port =
            |name: &str, base: u16| format!("--{name}-bind-address=127.0.0.1:{}", base + number);
        command
            .arg(format!("--proxy-mode={mode}"))
            .arg("--manifests")
            .arg(lab.manifests())
            .arg("--hostname-override=node")
            .args([port("healthz", 11000), port("metrics", 12000)])
            .args(["--conntrack-max-per-core=0", "--v=4"])
            .args(flags);
        let tripod = Tripod::spawn(command);
        eventually(&format!("{mode} is applied"), READY, || {
            match tripod.logged(&["synced", mode]) {
                0 => Err(tripod.log()),
                _ => Ok(()),
            }
        });
        tripod
    }

    /// Starts a complete command on `node` and waits until Tripod is ready.
    pub fn start_on(node: &Host, command: Command) -> Tripod {
        let mut tripod = Tripod::spawn(command);
        tripod.wait_ready(node);
        tripod
    }

    /// Starts a complete command without waiting for anything.
    pub fn spawn(mut command: Command) -> Tripod {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = Group::spawn(&mut command).expect("starting tripod");
        let stderr = process.child().stderr.take().expect("it is piped");
        let log = Arc::new(Mutex::new(String::new()));
        let copy = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // Shown if the test fails.
                eprintln!("tripod: {line}");
                let mut log = copy.lock().expect("no holder panics");
                log.push_str(&line);
                log.push('\n');
            }
        });
        Tripod { process, log }
    }

    fn wait_ready(&mut self, node: &Host) {
        eventually("tripod is ready", READY, || {
            if let Some(status) = self.process.wait_until(Instant::now()) {
                panic!("tripod ended instead of becoming ready: {status}");
            }
            match get(node, SocketAddr::new(node.addresses[0], 10256), "/healthz") {
                Ok(answer)
                    if answer.starts_with("HTTP/1.1 200") && answer.contains("\"status\"") =>
                {
                    Ok(())
                }
                Ok(answer) => Err(answer),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Everything logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no holder panics").clone()
    }

    /// Counts the lines of the log that contain all of `words`.
    pub fn logged(&self, words: &[&str]) -> usize {
        self.log()
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count()
    }

    /// Waits until exactly one line of the log has all these words: anything that a sync finds
    /// unsupported is logged after the sync, when calls may have been answered already.
    pub fn logs_once(&self, words: &[&str]) {
        let what = format!("the log says {words:?}");
        eventually(&what, Duration::from_secs(20), || {
            match self.logged(words) {
                1 => Ok(()),
                n => Err(format!("{n} times in:\n{}", self.log())),
            }
        });
    }

    /// Waits until a line of the log has all these words: the log is copied from a pipe, so a line
    /// logged before some other event may arrive here after it.
    pub fn logs(&self, words: &[&str]) {
        let what = format!("the log says {words:?}");
        eventually(&what, Duration::from_secs(20), || {
            match self.logged(words) {
                0 => Err(self.log()),
                _ => Ok(()),
            }
        });
    }

    /// The sum of a metric over its labels; `None` if there is no such metric.
    pub fn metric(&self, node: &Host, name: &str) -> Option<f64> {
        let [value] = self.metrics(node, [name]);
        value
    }

    /// Like [`Tripod::metric`], for several metrics at one moment. An overloaded process may not
    /// answer each request.
    pub fn metrics<const N: usize>(&self, node: &Host, names: [&str; N]) -> [Option<f64>; N] {
        let at = ([127, 0, 0, 1], 10249).into();
        let answer = eventually("metrics are answered", Duration::from_secs(60), || {
            let why = match get(node, at, "/metrics") {
                Ok(answer) if answer.starts_with("HTTP/1.1 200") => return Ok(answer),
                Ok(answer) => answer,
                Err(error) => error.to_string(),
            };
            assert!(self.is_running(), "tripod has ended: {why}");
            Err(why)
        });
        names.map(|name| sum(&answer, name))
    }

    /// Whether the process is still running.
    fn is_running(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        // Field 3 of proc_pid_stat(5); the name in parentheses, field 2, may hold spaces. A zombie
        // has ended.
        let state = stat.as_ref().ok().and_then(|stat| stat.rsplit_once(") "));
        state.is_some_and(|(_, state)| !state.starts_with('Z'))
    }

    /// Resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        status
            .unwrap_or_default()
            .lines()
            .find_map(|line| {
                line.strip_prefix(field)?
                    .trim()
                    .strip_suffix(" kB")?
                    .parse()
                    .ok()
            })
            .expect("memory of a running process")
    }

    /// The number of open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .expect("a running process")
            .count()
    }

    /// Describes its descriptors: the number of each kind, and its sockets one by one.
    pub fn open_files(&self, node: &Host) -> String {
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        let folder = format!("/proc/{}/fd", self.pid());
        for entry in std::fs::read_dir(folder).expect("a running process") {
            let link = entry
                .ok()
                .and_then(|entry| std::fs::read_link(entry.path()).ok());
            let name = link.map(|link| link.to_string_lossy().into_owned());
            let kind = name.map(|name| name.split(":[").next().map(str::to_owned));
            *kinds.entry(kind.flatten().unwrap_or_default()).or_default() += 1;
        }
        let sockets = node.command("ss").args(["-anpOH"]).output();
        let sockets = sockets.expect("ss runs").stdout;
        format!("{kinds:?}\n{}", String::from_utf8_lossy(&sockets))
    }

    /// Checks that it takes little processor time while it has nothing to do. On a slow machine
    /// earlier work may take some seconds to end; a process that spins does so all the time.
    pub fn spends_little_time(&self) {
        let window = Duration::from_secs(1);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let start = self.processor_time();
            // The length of the measurement; nothing is awaited.
            std::thread::sleep(window);
            let busy = self.processor_time() - start;
            if busy < window / 4 {
                return;
            }
            seen.push(busy);
        }
        panic!("{seen:?} of processor time, each in {window:?}");
    }

    /// The processor time used so far.
    pub fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("a running process");
        // Fields 14 and 15 of proc_pid_stat(5); the name in parentheses, field 2, may hold spaces.
        // A tick is 10 ms on every Linux today.
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let ticks: u64 = after_name
            .split(' ')
            .skip(11)
            .take(2)
            .filter_map(|w| w.parse::<u64>().ok())
            .sum();
        Duration::from_millis(ticks * 10)
    }

    /// Sends SIGTERM. Returns its exit status.
    pub fn terminate(&mut self) -> ExitStatus {
        self.ask_to_end();
        self.ended()
    }

    /// Sends SIGTERM without waiting for the end.
    pub fn ask_to_end(&self) {
        self.process.signal(Signal::SIGTERM);
    }

    /// Waits for the end after [`Tripod::ask_to_end`]. Returns the exit status.
    pub fn ended(&mut self) -> ExitStatus {
        self.ended_within(Duration::from_secs(30))
    }

    /// Like [`Tripod::ended`], with another time limit.
    pub fn ended_within(&mut self, limit: Duration) -> ExitStatus {
        let ended = self.process.wait_until(Instant::now() + limit);
        ended.unwrap_or_else(|| panic!("tripod does not end within {limit:?} of SIGTERM"))
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Sends SIGSTOP: the process does nothing until [`Tripod::thaw`].
    pub fn freeze(&self) {
        self.process.signal(Signal::SIGSTOP);
    }

    /// Sends SIGCONT: the process continues after [`Tripod::freeze`].
    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Peak resident memory, in KiB.
    pub fn resident_peak_kib(&self) -> u64 {
        self.memory("VmHWM:")
    }
}

/// Sums a metric over its labels in an answer of `/metrics`.
fn sum(answer: &str, name: &str) -> Option<f64> {
    let values = answer.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with(['{', ' ']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// Gets one HTTP answer, head and body.
pub fn get(host: &Host, at: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = call::tcp(host, at)?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
