//! A limit on the memory of a process and of what the kernel keeps for it: a cgroup of
//! the memory controller, version 1 (`memory.rst` in Documentation/admin-guide/cgroup-v1).

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::host::Host;

const CONTROLLER: &str = "/sys/fs/cgroup/memory";

/// A cgroup of this test alone, removed on drop.
#[derive(Debug)]
pub struct MemoryCgroup(PathBuf);

impl MemoryCgroup {
    /// Returns why there can be none here.
    pub fn missing() -> Option<&'static str> {
        // Once: tests that ask at the same time would try to make the same one.
        static MISSING: OnceLock<Option<String>> = OnceLock::new();
        MISSING.get_or_init(MemoryCgroup::found_missing).as_deref()
    }

    fn found_missing() -> Option<String> {
        let probe = Path::new(CONTROLLER).join(format!("tripod-probe-{}", std::process::id()));
        if !Path::new(CONTROLLER).join("memory.limit_in_bytes").exists() {
            return Some(format!("{CONTROLLER} is no memory controller, version 1"));
        }
        let made = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe));
        made.err().map(|error| format!("{CONTROLLER}: {error}"))
    }

    /// Returns a cgroup with a limit in bytes.
    pub fn new(limit: u64) -> MemoryCgroup {
        let folder = Path::new(CONTROLLER).join(format!("tripod-test-{}", std::process::id()));
        fs::create_dir(&folder).expect("a cgroup");
        let cgroup = MemoryCgroup(folder);
        for file in ["memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"] {
            fs::write(cgroup.0.join(file), limit.to_string()).expect("a limit");
        }
        cgroup
    }

    /// A command that will run in it on `node`, with that many descriptors. It sees the
    /// cgroups of the machine, which `ip netns exec` would hide.
    pub fn command(&self, node: &Host, descriptors: usize, program: &Path) -> Command {
        let mut command = super::process::die_with_parent("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", node.name()))
            .args(["--", "sh", "-c"])
            .arg(format!(
                "echo $$ > {}/cgroup.procs && ulimit -n {descriptors} && exec \"$0\" \"$@\"",
                self.0.display()
            ))
            .arg(program);
        command.process_group(0);
        command
    }

    /// Bytes that are in use now.
    pub fn usage(&self) -> u64 {
        self.number("memory.usage_in_bytes")
    }

    /// The most bytes that were ever in use.
    pub fn most(&self) -> u64 {
        self.number("memory.max_usage_in_bytes")
    }

    /// Bytes of the kernel's buffers of its TCP sockets, and the most that there ever were.
    pub fn tcp(&self) -> [u64; 2] {
        ["usage", "max_usage"].map(|kind| self.number(&format!("memory.kmem.tcp.{kind}_in_bytes")))
    }

    /// How often the limit was reached.
    pub fn reached(&self) -> u64 {
        self.number("memory.failcnt")
    }

    /// How many processes were killed for want of memory.
    pub fn killed(&self) -> u64 {
        let control = self.read("memory.oom_control");
        let killed = control
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "));
        killed
            .and_then(|n| n.parse().ok())
            .expect("a count of kills")
    }

    fn number(&self, file: &str) -> u64 {
        let text = self.read(file);
        text.trim()
            .parse()
            .unwrap_or_else(|error| panic!("{file}: {text:?}: {error}"))
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Fails while a process is in it, which a test that panics leaves to its end.
        let _ = fs::remove_dir(&self.0);
    }
}
