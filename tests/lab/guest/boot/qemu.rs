//! Kernels of Debian's cloud images under QEMU, which emulates the processor: hardware virtualisation is
//! not needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::super::process::die_with_parent;
use super::{AARCH64, Debian, Job, alone};

/// The tree, in which the guest finds the programs that it runs.
const TREE: &str = env!("CARGO_MANIFEST_DIR");

/// Name the test binary and the program for aarch64.
const TESTS: &str = "TRIPOD_AARCH64_TESTS";
const PROGRAM: &str = "TRIPOD_AARCH64";

/// The reason why `debian` cannot run here; `None` if it can.
pub fn unavailable(debian: Debian) -> Option<String> {
    // virtiofsd shares the root as root.
    if !nix::unistd::geteuid().is_root() {
        return Some("guests of QEMU need root".to_owned());
    }
    let kernel = folder(debian).join("vmlinuz");
    let qemu = match debian.folder {
        AARCH64 => "/usr/bin/qemu-system-aarch64",
        _ => "/usr/bin/qemu-system-x86_64",
    };
    let is_there = kernel.exists() && Path::new(qemu).exists();
    if !is_there {
        return Some("no QEMU, or no kernel for it: make kernels INSTALL=yes".to_owned());
    }
    let is_built = debian.folder != AARCH64 || of_aarch64().is_some();
    (!is_built).then(|| format!("{TESTS} and {PROGRAM} name no binaries: make kernels builds them"))
}

/// The test binary and the program for aarch64, which are below [`TREE`].
pub fn of_aarch64() -> Option<(PathBuf, PathBuf)> {
    let path = |variable| std::env::var_os(variable).map(PathBuf::from);
    Some((path(TESTS)?, path(PROGRAM)?))
}

/// The folder with `vmlinuz` and `lib/modules`; see tests/lab/guest/kernels.sh.
fn folder(debian: Debian) -> PathBuf {
    Path::new(TREE)
        .join("target/tools/kernels")
        .join(debian.folder)
}

/// Builds the command that boots `debian` and makes it do `job`.
pub fn boot(debian: Debian, memory: &str, job: &Job, parameters: &[String]) -> Command {
    job.script("qemu", include_str!("qemu.sh"));
    let mut command = die_with_parent("unshare");
    alone(&mut command)
        .arg("./qemu")
        .arg(folder(debian))
        .arg(memory)
        .arg(TREE)
        .args(parameters)
        .arg(format!(
            "TRIPOD_GUEST_WITHHELD={}",
            debian.withheld.join(",")
        ));
    command
}
