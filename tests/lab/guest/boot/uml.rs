//! User-Mode Linux: a kernel as an ordinary process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::super::super::process::die_with_parent;
use super::{Job, alone};

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

/// Builds the command that boots a guest and makes it do `job`.
pub fn boot(memory: &str, id: &str, job: &Job, parameters: &[String]) -> Command {
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
    alone(&mut command)
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
        .args(parameters)
        .arg(format!(
            "TRIPOD_GUEST_MODULES={}",
            modules().expect("modules").display()
        ))
        .envs(preload(job).map(|library| ("LD_PRELOAD", library)));
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
