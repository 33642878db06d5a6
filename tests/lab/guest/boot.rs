//! Boots a guest kernel on this machine's own files, and has it run a program.

mod qemu;
mod uml;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::super::process::Group;

/// Memory of a guest.
pub const MEMORY: &str = "1G";

/// A guest kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// User-Mode Linux with every module that comes with it, and the legacy iptables.
    Full,
    /// User-Mode Linux with IPv6, veth and bridges; no netfilter, and no module that adds it.
    Bare,
    /// A kernel of Debian's cloud images under QEMU, without some of its modules.
    Debian(Debian),
}

/// A kernel of Debian's cloud images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debian {
    /// Its folder: a suite of Debian, or [`AARCH64`].
    pub folder: &'static str,
    /// Names of the modules that cannot be loaded.
    pub withheld: &'static [&'static str],
}

/// The folder of the kernel for aarch64.
pub const AARCH64: &str = "arm64";

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Profile::Full => "full",
            Profile::Bare => "bare",
            Profile::Debian(_) => "debian",
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
pub fn unavailable(profile: Profile) -> Option<String> {
    match profile {
        Profile::Full | Profile::Bare => uml::unavailable(),
        Profile::Debian(debian) => qemu::unavailable(debian),
    }
}

/// The test binary and the program for a kernel for aarch64; `None` if `profile` is not one, or if
/// they were not built.
pub fn of_aarch64(profile: Profile) -> Option<(PathBuf, PathBuf)> {
    match profile {
        Profile::Debian(debian) if debian.folder == AARCH64 => qemu::of_aarch64(),
        _ => None,
    }
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
    job.script("init", include_str!("boot/init.sh"));

    let start = Instant::now();
    let parameters = [
        // The kernel passes parameters that it does not know to init.
        format!("TRIPOD_GUEST_JOB={}", job.path.display()),
        format!("TRIPOD_GUEST_PROFILE={}", profile.name()),
    ];
    let mut command = match profile {
        Profile::Full | Profile::Bare => uml::boot(memory, &id, &job, &parameters),
        Profile::Debian(debian) => qemu::boot(debian, memory, &job, &parameters),
    };
    command.current_dir(&job.path).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut guest = Group::spawn(&mut command).expect("starting a guest");
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

/// Builds a command that runs `program` in a PID namespace: all of its processes end with the first,
/// which ends with unshare(1), which ends with this process. The first is a shell: a guest's kernel
/// that panics sends itself SIGABRT until it ends (`uml_abort` in arch/um/os-Linux/util.c), which has
/// no effect on the first process of a namespace (pid_namespaces(7)).
fn alone(unshare: &mut Command) -> &mut Command {
    unshare
        .args(["--pid", "--fork", "--kill-child", "--"])
        .args(["sh", "-c", "\"$@\"; exit", "sh"])
}
