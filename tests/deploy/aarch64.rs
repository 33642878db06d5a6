//! The binary for aarch64 runs, as far as an emulator can show that.

use std::{path::PathBuf, process::Command};

use crate::lab::skip;

/// `make test-all` builds one and names it here.
const AARCH64: &str = "TRIPOD_AARCH64";
const EMULATOR: &str = "qemu-aarch64-static";

/// Returns its path, or `None` after the test was skipped.
pub fn binary() -> Option<PathBuf> {
    let binary = std::env::var_os(AARCH64).map(PathBuf::from);
    let binary = binary.filter(|binary| binary.is_file());
    if binary.is_none() {
        skip(format!(
            "{AARCH64} names no binary; make test-all builds one"
        ));
    }
    binary
}

/// Runs it with these arguments and returns its output; `None` if it cannot be run here.
fn emulated(arguments: &[&str]) -> Option<String> {
    let binary = binary()?;
    let done = Command::new(EMULATOR).arg(&binary).args(arguments).output();
    let Ok(done) = done else {
        skip(format!(
            "{EMULATOR} is not installed: apt-get install qemu-user-static"
        ));
        return None;
    };
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{arguments:?}: {errors}");
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[test]
fn it_says_its_version_and_architecture() {
    let Some(version) = emulated(&["--version=raw"]) else {
        return;
    };
    assert!(version.contains("linux/aarch64"), "{version}");
}

/// The words of the rules, without the order of a set's elements.
fn words(rules: &str) -> Vec<&str> {
    let mut words: Vec<&str> = rules.split([' ', ',', '\n']).collect();
    words.sort_unstable();
    words
}

/// Both compute the same from the same manifests.
#[test]
fn it_renders_the_same_rules() {
    let hello = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/hello");
    for mode in ["iptables", "nftables", "ipvs"] {
        let arguments = [
            "render",
            &format!("--proxy-mode={mode}"),
            &format!("--manifests={hello}"),
            "--hostname-override=node",
        ];
        let Some(rules) = emulated(&arguments) else {
            return;
        };
        let own = Command::new(crate::lab::tripod_binary())
            .args(arguments)
            .output()
            .expect("running tripod");
        let own = String::from_utf8_lossy(&own.stdout);
        assert!(words(&rules) == words(&own), "{mode}:\n{rules}\n{own}");
    }
}

/// The emulator does not support all of netlink, so many abilities are missing.
#[test]
fn it_finds_out_what_it_can_do() {
    let Some(table) = emulated(&["probe"]) else {
        return;
    };
    for mode in ["ipvs", "nftables", "iptables", "userspace"] {
        assert!(table.lines().any(|line| line.starts_with(mode)), "{table}");
    }
}
