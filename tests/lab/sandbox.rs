//! A sandbox for each test: the test binary is started again for that one test, in new user (when
//! not root), network and mount namespaces with an empty `/run`. Whatever a test leaves behind
//! disappears with the sandbox, even when the test is killed; and no root is needed where user
//! namespaces are allowed.

use std::{
    io::Read,
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use testing::{print_uncaptured, skip, test_name};

use super::process::{Group, die_with_parent};

/// Tells the binary that it runs in a sandbox.
const INSIDE: &str = "TRIPOD_LAB_SANDBOX";

/// The longest that one test may take: with the sizes of the acceptance list, with each feature
/// left out in turn, or on an emulated processor, some take half an hour. This only ends a test that
/// hangs; a guest has a shorter limit (`lab::guest`, `conformance`), so that its console is shown.
fn lifetime() -> Duration {
    let much = acceptance()
        || std::env::var_os("TRIPOD_CONFORMANCE_WITHOUT").is_some()
        || test_name().starts_with("conformance::kernels::");
    Duration::from_secs(if much { 3600 } else { 1200 }).max(soak_length() + SOAK_ENDS)
}

/// Time allowed for starting and ending a long run.
pub const SOAK_ENDS: Duration = Duration::from_secs(300);

/// How long to change Services under traffic: `TRIPOD_SOAK`, in seconds.
pub fn soak_length() -> Duration {
    let asked = std::env::var("TRIPOD_SOAK").ok();
    let seconds = asked.and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(10))
}

/// Whether a long run was requested, whose figures are kept.
pub fn is_soak() -> bool {
    std::env::var_os("TRIPOD_SOAK").is_some()
}

/// Runs `body`, a whole test, in a sandbox.
pub fn run(body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    if let Some(reason) = no_sandbox() {
        return skip(reason);
    }
    let name = test_name();
    let mut command = enter();
    command
        .arg(std::env::current_exe().expect("the path of the test binary"))
        .args(["--exact", &name, "--include-ignored", "--nocapture"])
        .env("RUST_BACKTRACE", "0")
        .env(INSIDE, "1");
    let (passed, output) = finish(command);
    report_cpu();
    let skipped = format!("SKIP {name}: ");
    for line in output.lines() {
        // libtest may have begun a line before it.
        let skip = line.find(&skipped).and_then(|at| line.get(at..));
        if let Some(line) = skip.or_else(|| line.starts_with(FIGURE).then_some(line)) {
            print_uncaptured(line);
        }
    }
    // A run of no tests would also pass.
    if !passed || !output.contains("1 passed") {
        // libtest prints the failure at its end, which is long and far down in the output.
        print_uncaptured(&format!("FAILURE {name}: {}", reason(&output)));
        panic!("{name} failed in its sandbox:\n{output}");
    }
}

/// Reports the processor time of all children, and the group of the test, for `tests/times.sh`.
/// With nextest, which gives each test a process, this is the time of the test.
fn report_cpu() {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the usage of children");
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let spent = seconds(usage.user_time()) + seconds(usage.system_time());
    if let Ok(group) = std::env::var("NEXTEST_TEST_GROUP") {
        print_uncaptured(&format!("CPU {spent:.2} {group}"));
    }
}

/// Says in one line, of at most [`MOST_OF_REASON`] characters, why a test that printed `output`
/// failed.
fn reason(output: &str) -> String {
    let lines = output
        .lines()
        .skip_while(|line| !line.contains("panicked at "));
    let lines = lines.take_while(|line| !line.starts_with("note: "));
    let reason = lines.collect::<Vec<_>>().join(" | ");
    match reason.is_empty() {
        true => "it did not panic".to_owned(),
        false => reason.chars().take(MOST_OF_REASON).collect(),
    }
}

/// Enough for a message and the first lines of a log.
const MOST_OF_REASON: usize = 1500;

/// Whether this is the process that was started again for one test.
pub fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

const FIGURE: &str = "FIGURE ";

/// Reports a measured figure, past the output capture of the test harness.
pub fn figure(name: &str, value: impl std::fmt::Display) {
    println!("\n{FIGURE}{name}: {value}");
}

/// Whether tests run with the sizes of the acceptance list instead of those for everyday runs.
pub fn acceptance() -> bool {
    std::env::var_os("TRIPOD_ACCEPTANCE").is_some()
}

fn enter() -> Command {
    let flags = if nix::unistd::geteuid().is_root() {
        "-nm"
    } else {
        "-Urnm"
    };
    let mut command = die_with_parent("unshare");
    command.args([flags, "--", "sh", "-c"]);
    // iptables keeps its lock and ip(8) its namespaces in /run. Thousands of
    // connections need more descriptors than the usual soft limit.
    command.arg(r#"mount -t tmpfs lab /run && ulimit -n "$(ulimit -Hn)" && exec "$@""#);
    command.arg("sandbox");
    command
}

fn no_sandbox() -> Option<&'static str> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    REASON
        .get_or_init(|| {
            let mut command = enter();
            command.args(["sh", "-c", "ip netns add a && ip -n a link add v type veth peer name w"]);
            match finish(command) {
                (true, _) => None,
                (false, output) => Some(format!(
                    "network namespaces cannot be made here (run as root, or allow user namespaces; \
                     needs iproute2 and util-linux): {}",
                    output.trim()
                )),
            }
        })
        .as_deref()
}

/// Runs a command to its end. Returns whether it succeeded, and its output.
fn finish(mut command: Command) -> (bool, String) {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().expect("a pipe"))
        .stderr(writer);
    let mut group = match Group::spawn(&mut command) {
        Ok(group) => group,
        Err(error) => return (false, format!("{:?}: {error}", command.get_program())),
    };
    drop(command); // and with it our writing ends
    let output = Arc::new(Mutex::new(Vec::new()));
    let (ended, end) = mpsc::channel::<()>();
    let written = output.clone();
    std::thread::spawn(move || {
        let _ended = ended;
        let mut part = [0; 16 * 1024];
        while let Ok(length @ 1..) = reader.read(&mut part) {
            lock(&written).extend_from_slice(&part[..length]);
        }
    });
    let status = group.wait_until(Instant::now() + lifetime());
    let late = status.is_none();
    drop(group);
    // A process that left the group may keep the pipe open forever.
    let _ = end.recv_timeout(Duration::from_secs(10));
    let mut output = String::from_utf8_lossy(&lock(&output)).into_owned();
    if late {
        output.push_str(&format!("\nkilled after {:?}\n", lifetime()));
    }
    (status.is_some_and(|status| status.success()), output)
}

fn lock(output: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}
