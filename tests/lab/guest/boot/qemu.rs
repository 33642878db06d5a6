//! Kernels of Debian's cloud images under QEMU, which emulates the processor: hardware virtualisation is
//! not needed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::super::process::die_with_parent;
use super::{Debian, Job, alone};

/// The reason why `debian` cannot run here; `None` if it can.
pub fn unavailable(debian: Debian) -> Option<String> {
    // virtiofsd shares the root as root.
    if !nix::unistd::geteuid().is_root() {
        return Some("guests of QEMU need root".to_owned());
    }
    let kernel = folder(debian).join("vmlinuz");
    let is_there = kernel.exists() && Path::new("/usr/bin/qemu-system-x86_64").exists();
    (!is_there).then(|| "no QEMU, or no kernel for it: make kernels INSTALL=yes".to_owned())
}

/// The folder with `vmlinuz` and `lib/modules`; see tests/lab/guest/kernels.sh.
fn folder(debian: Debian) -> PathBuf {
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/kernels");
    PathBuf::from(kernels).join(debian.suite)
}

/// Builds the command that boots `debian` and makes it do `job`.
pub fn boot(debian: Debian, memory: &str, job: &Job, parameters: &[String]) -> Command {
    job.script("qemu", include_str!("qemu.sh"));
    let mut command = die_with_parent("unshare");
    alone(&mut command)
        .arg("./qemu")
        .arg(folder(debian))
        .arg(memory)
        .args(parameters)
        .arg(format!(
            "TRIPOD_GUEST_WITHHELD={}",
            debian.withheld.join(",")
        ));
    command
}
