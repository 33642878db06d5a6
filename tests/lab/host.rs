//! One machine of the laboratory: a network namespace with a name.

use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, setns};

use super::process::die_with_parent;

/// A network namespace, removed on drop.
#[derive(Debug)]
pub struct Host {
    name: String,
    /// Its address of each family on the link to the others, IPv4 first.
    pub addresses: [IpAddr; 2],
}

impl Host {
    pub fn new(name: &str, v4: Ipv4Addr, v6: Ipv6Addr) -> Host {
        succeed(Command::new("ip").args(["netns", "add", name]), "");
        let host = Host {
            name: name.into(),
            addresses: [v4.into(), v6.into()],
        };
        host.enter(|| {
            for (key, value) in SYSCTLS {
                set_sysctl(key, value);
            }
        });
        host.ip(&["link set lo up"]);
        host
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs several ip(8) commands here in one batch.
    pub fn ip(&self, commands: &[&str]) {
        let mut ip = Command::new("ip");
        ip.args(["-n", &self.name, "-batch", "-"]);
        succeed(&mut ip, &commands.join("\n"));
    }

    /// Returns a command that will run here and end with this thread.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = die_with_parent("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Returns the output of a command here; it must succeed.
    pub fn show(&self, line: &str) -> String {
        let mut words = line.split_whitespace();
        let mut command = self.command(words.next().unwrap_or_default());
        succeed(command.args(words), "")
    }

    /// Runs `body` on a thread inside this namespace. Sockets that it creates stay here,
    /// wherever they are used later.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let namespace =
            File::open(format!("/run/netns/{}", self.name)).expect("the namespace's file");
        std::thread::scope(|scope| {
            let inside = scope.spawn(move || {
                // Affects only the calling thread; see setns(2).
                setns(namespace, CloneFlags::CLONE_NEWNET).expect("entering a namespace of ours");
                body()
            });
            match inside.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .output();
    }
}

/// Forwarding; no wait for duplicate address detection; no rate limit for answers to
/// refused packets (both limits, since the mask exempts from the global one, see
/// ip-sysctl.rst).
const SYSCTLS: [(&str, &str); 10] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/ipv6/conf/all/accept_dad", "0"),
    ("net/ipv6/conf/default/accept_dad", "0"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/icmp_ratelimit", "0"),
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratelimit", "0"),
    ("net/ipv4/ip_local_port_range", "32768 60999"),
];

pub fn set_sysctl(key: &str, value: &str) {
    std::fs::write(format!("/proc/sys/{key}"), value)
        .unwrap_or_else(|error| panic!("setting {key}={value}: {error}"));
}

/// Runs a command, which must succeed. Returns its output.
fn succeed(command: &mut Command, input: &str) -> String {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    if let Some(mut stdin) = child.stdin.take() {
        stdin
            .write_all(input.as_bytes())
            .expect("writing to a child of ours");
    }
    let output = child
        .wait_with_output()
        .expect("waiting for a child of ours");
    assert!(
        output.status.success(),
        "{command:?} with {input:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
