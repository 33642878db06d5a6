//! A limit on the memory of a process, including the kernel's memory on its behalf: a cgroup of the
//! memory controller (`cgroup-v1/memory.rst` and `cgroup-v2.rst` in Documentation/admin-guide).

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::host::Host;

/// Version of the memory controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// Buffers of TCP sockets have a separate limit.
    One,
    /// Buffers of sockets count as memory of the process.
    Two,
}

impl CgroupVersion {
    /// Returns the version that is mounted on this machine; `None` if neither is.
    pub fn mounted() -> Option<CgroupVersion> {
        if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
            return Some(CgroupVersion::One);
        }
        let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").ok()?;
        let has_memory = controllers.split_whitespace().any(|name| name == "memory");
        has_memory.then_some(CgroupVersion::Two)
    }

    /// The folder of the root cgroup.
    fn root(self) -> &'static Path {
        Path::new(match self {
            CgroupVersion::One => "/sys/fs/cgroup/memory",
            CgroupVersion::Two => "/sys/fs/cgroup",
        })
    }
}

/// A cgroup for one test, removed on drop.
#[derive(Debug)]
pub struct MemoryCgroup {
    version: CgroupVersion,
    folder: PathBuf,
}

impl MemoryCgroup {
    /// The reason why none can be created here; `None` if one can.
    pub fn missing() -> Option<&'static str> {
        // Only once: tests that ask at the same time would try to create the same one.
        static MISSING: OnceLock<Option<String>> = OnceLock::new();
        MISSING.get_or_init(MemoryCgroup::found_missing).as_deref()
    }

    fn found_missing() -> Option<String> {
        let Some(version) = CgroupVersion::mounted() else {
            return Some("/sys/fs/cgroup has no memory controller".to_owned());
        };
        let probe = version.root();
        let probe = probe.join(format!("tripod-probe-{}", std::process::id()));
        let made = fs::create_dir(&probe).and_then(|()| fs::remove_dir(&probe));
        made.err()
            .map(|error| format!("{}: {error}", probe.display()))
    }

    /// Creates a cgroup with a limit in bytes.
    pub fn new(limit: u64) -> MemoryCgroup {
        let version = CgroupVersion::mounted().expect("a memory controller");
        let root = version.root();
        let limits: &[&str] = match version {
            CgroupVersion::One => &["memory.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"],
            CgroupVersion::Two => {
                fs::write(root.join("cgroup.subtree_control"), "+memory").expect("a controller");
                &["memory.max"]
            }
        };
        let folder = root.join(format!("tripod-test-{}", std::process::id()));
        fs::create_dir(&folder).expect("a cgroup");
        let cgroup = MemoryCgroup { version, folder };
        for file in limits {
            fs::write(cgroup.folder.join(file), limit.to_string()).expect("a limit");
        }
        cgroup
    }

    pub fn version(&self) -> CgroupVersion {
        self.version
    }

    /// Raises the limit of version 2 to that many bytes, if it is lower. A limit that was read
    /// before stays the lower one.
    pub fn raise_limit(&self, limit: u64) {
        let file = "memory.max";
        if self.number(file) < limit {
            fs::write(self.folder.join(file), limit.to_string()).expect("a limit");
        }
    }

    /// Returns a command that will run in it on `node`, with that many descriptors. It sees the
    /// cgroups of the machine, which `ip netns exec` would hide.
    pub fn command(&self, node: &Host, descriptors: usize, program: &Path) -> Command {
        if self.version == CgroupVersion::One {
            // Pages of the program that it reads from the disk itself would count as its memory.
            let read = fs::File::open(program).and_then(|mut f| io::copy(&mut f, &mut io::sink()));
            read.expect("the program");
        }
        let mut command = super::process::die_with_parent("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", node.name()))
            .args(["--", "sh", "-c"])
            .arg(format!(
                "echo $$ > {}/cgroup.procs && ulimit -n {descriptors} && exec \"$0\" \"$@\"",
                self.folder.display()
            ))
            .arg(program);
        command.process_group(0);
        command
    }

    /// Number of bytes in use now.
    pub fn usage(&self) -> u64 {
        self.number(match self.version {
            CgroupVersion::One => "memory.usage_in_bytes",
            CgroupVersion::Two => "memory.current",
        })
    }

    /// Returns the largest number of bytes that were ever in use.
    pub fn most(&self) -> u64 {
        self.number(match self.version {
            CgroupVersion::One => "memory.max_usage_in_bytes",
            CgroupVersion::Two => "memory.peak",
        })
    }

    /// Bytes of the kernel's buffers of its TCP sockets, and their peak; in version 2 the present
    /// bytes of all its sockets.
    pub fn tcp(&self) -> [u64; 2] {
        match self.version {
            CgroupVersion::One => ["usage", "max_usage"]
                .map(|kind| self.number(&format!("memory.kmem.tcp.{kind}_in_bytes"))),
            CgroupVersion::Two => [self.named("memory.stat", "sock"); 2],
        }
    }

    /// How often the limit was reached.
    pub fn reached(&self) -> u64 {
        match self.version {
            CgroupVersion::One => self.number("memory.failcnt"),
            CgroupVersion::Two => self.named("memory.events", "max"),
        }
    }

    /// How many processes were killed because memory ran out.
    pub fn killed(&self) -> u64 {
        let file = match self.version {
            CgroupVersion::One => "memory.oom_control",
            CgroupVersion::Two => "memory.events",
        };
        self.named(file, "oom_kill")
    }

    /// Returns the number in the line of a file that begins with `name`.
    fn named(&self, file: &str, name: &str) -> u64 {
        let text = self.read(file);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let number = lines.find(|(of, _)| *of == name);
        number
            .and_then(|(_, number)| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("{file} has no {name}: {text:?}"))
    }

    fn number(&self, file: &str) -> u64 {
        let text = self.read(file);
        text.trim()
            .parse()
            .unwrap_or_else(|error| panic!("{file}: {text:?}: {error}"))
    }

    fn read(&self, file: &str) -> String {
        let read = fs::read_to_string(self.folder.join(file));
        read.unwrap_or_else(|error| panic!("{file}: {error}"))
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // Fails while a process is in it; a test that panics leaves one.
        let _ = fs::remove_dir(&self.folder);
    }
}
