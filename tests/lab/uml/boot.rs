//! Boots User-Mode Linux on this machine's own files, and has it run a program.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::super::process::{Group, die_with_parent};

/// Memory of a guest.
pub const MEMORY: &str = "1G";

/// The abilities of the guest kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Every module that comes with the kernel, and the legacy iptables.
    Full,
    /// IPv6, veth and bridges; no netfilter, and no module that adds it.
    Bare,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Profile::Full => "full",
            Profile::Bare => "bare",
        }
    }
}

/// The result of a guest's work.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the work; `None` if the guest did not finish it.
    pub status: Option<i32>,
    /// The guest's console.
    pub console: String,
    pub took: Duration,
}

/// The reason why no guest can run here; `None` if one can.
pub fn unavailable() -> Option<String> {
    let missing = |what| {
        Some(format!(
            "no {what}: apt-get install user-mode-linux kmod iptables"
        ))
    };
    if kernel().is_none() {
        return missing("linux.uml");
    }
    if modules().is_none() {
        return missing("/usr/lib/uml/modules");
    }
    None
}

fn kernel() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join("linux.uml"))
        .find(|file| file.exists())
}

/// The folder with the modules of the guest's kernel, named by its version.
fn modules() -> Option<PathBuf> {
    let mut versions = fs::read_dir("/usr/lib/uml/modules").ok()?.flatten();
    versions.next().map(|entry| entry.path())
}

/// From within a sandbox: boots a guest with this much memory, in the notation of its kernel,
/// runs `program` there with `arguments` and these environment variables, and waits at most `limit`
/// for its end.
pub fn run_with(
    profile: Profile,
    memory: &str,
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    limit: Duration,
) -> Outcome {
    static GUESTS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = GUESTS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let id = format!("tripod-{}-{number}", std::process::id());
    let job = Job::new(&id);

    let mut work = String::from("#!/bin/sh\n");
    for (name, value) in environment {
        work.push_str(&format!("export {name}={}\n", quoted(value)));
    }
    work.push_str(&format!("exec {}", quoted(&program.to_string_lossy())));
    for argument in arguments {
        work.push_str(&format!(" {}", quoted(argument)));
    }
    work.push('\n');
    job.script("work", &work);
    job.script("init", include_str!("init.sh"));

    let start = Instant::now();
    let mut guest =
        Group::spawn(&mut boot(profile, memory, &id, &job)).expect("starting linux.uml");
    let stdout = guest.child().stdout.take().expect("it is piped");
    let console = std::thread::spawn(move || console_of(stdout));
    guest.wait_until(start + limit);
    drop(guest);
    let status = fs::read_to_string(job.path.join("status")).ok();
    Outcome {
        status: status.and_then(|status| status.trim().parse().ok()),
        console: console.join().unwrap_or_default(),
        took: start.elapsed(),
    }
}

/// Builds the command that boots a guest and makes it do `job`.
fn boot(profile: Profile, memory: &str, id: &str, job: &Job) -> Command {
    // Each system call of a guest's process switches to the process that is the guest's kernel,
    // and back. If the two are on different processors, each switch wakes one up, which takes five
    // times as long.
    let mut command = match processor() {
        Some(processor) => {
            let mut pinned = die_with_parent("taskset");
            pinned.args(["--cpu-list", &processor.to_string(), "unshare"]);
            pinned
        }
        None => die_with_parent("unshare"),
    };
    // Each of the guest's processes is one on this machine. In a PID namespace they all
    // end with the first, which ends with unshare(1), which ends with this process. The first
    // is a shell: a guest's kernel that panics sends itself SIGABRT until it ends
    // (`uml_abort` in arch/um/os-Linux/util.c), which has no effect on the first process of a
    // namespace (pid_namespaces(7)).
    command
        .args(["--pid", "--fork", "--kill-child", "--"])
        .args(["sh", "-c", "\"$@\"; exit", "sh"])
        .arg(kernel().expect("linux.uml"))
        .args([
            "rootfstype=hostfs",
            "rootflags=/",
            "rw",
            "quiet",
            "con=null",
        ])
        .args(["con0=null,fd:1", "panic=1"])
        .arg(format!("mem={memory}"))
        .arg(format!("umid={id}"))
        .arg(format!("uml_dir={}/", job.path.display()))
        .arg(format!("init={}/init", job.path.display()))
        // The kernel passes parameters that it does not know to init.
        .arg(format!("TRIPOD_GUEST_JOB={}", job.path.display()))
        .arg(format!("TRIPOD_GUEST_PROFILE={}", profile.name()))
        .arg(format!(
            "TRIPOD_GUEST_MODULES={}",
            modules().expect("modules").display()
        ))
        .current_dir(&job.path)
        .envs(preload(job).map(|library| ("LD_PRELOAD", library)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// The processor for this guest: guests that run at the same time have numbers in the group of
/// `.config/nextest.toml`, which nextest passes in this variable.
fn processor() -> Option<usize> {
    let slot: usize = std::env::var("NEXTEST_TEST_GROUP_SLOT")
        .ok()?
        .parse()
        .ok()?;
    let ours = sched_getaffinity(Pid::from_raw(0)).expect("the processors that we may use");
    let mut usable = (0..CpuSet::count())
        .filter(|n| ours.is_set(*n) == Ok(true))
        .cycle();
    usable.nth(slot)
}

/// Builds the library that the guest's kernel needs to run a process on this processor;
/// `None` if it needs none.
fn preload(job: &Job) -> Option<PathBuf> {
    let processor = fs::read_to_string("/proc/cpuinfo").expect("the processor");
    if !processor.contains("amx_tile") {
        return None;
    }
    job.script("preload.rs", include_str!("preload.rs"));
    let built = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort"])
        .args(["-Copt-level=1", "-o", "libpreload.so", "preload.rs"])
        .current_dir(&job.path)
        .status();
    assert!(built.expect("running rustc").success(), "preload.rs");
    Some(job.path.join("libpreload.so"))
}

/// Prints everything that the guest prints as it arrives, and returns it.
fn console_of(output: impl Read) -> String {
    let mut console = String::new();
    let mut lines = BufReader::new(output);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        println!("guest: {text}");
        console.push_str(text);
        console.push('\n');
        line.clear();
    }
    console
}

/// A folder that host and guest share; it is in the sandbox's own `/run`, so that it disappears
/// with the sandbox.
struct Job {
    path: PathBuf,
}

impl Job {
    fn new(id: &str) -> Job {
        let path = Path::new("/run").join(id);
        fs::create_dir_all(&path).expect("a folder for the guest");
        Job { path }
    }

    fn script(&self, name: &str, content: &str) {
        use std::os::unix::fs::PermissionsExt;
        let file = self.path.join(name);
        fs::write(&file, content).expect("writing a script");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
            .expect("making it executable");
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
