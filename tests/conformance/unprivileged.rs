//! The table is run by a Tripod that is not root: it has the capabilities of docs/security.md and
//! no others, and can gain none.

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::columns::{Column, Tools};
use crate::lab::skip;

/// The user that runs Tripod here: `nobody` of most systems.
const USER: u32 = 65534;

/// A capability as setpriv(1) names it, and its number (`linux/capability.h`).
type Capability = (&'static str, u32);

const NET_BIND_SERVICE: Capability = ("net_bind_service", 10);
const NET_ADMIN: Capability = ("net_admin", 12);
const NET_RAW: Capability = ("net_raw", 13);

/// Returns the capabilities that a mode needs.
fn capabilities(column: &Column) -> Vec<Capability> {
    let mut needed = vec![NET_ADMIN];
    // iptables asks for the numbers of IP sets over a raw socket (`get_version` of libxt_set.h).
    let is_raw = column.tools == Tools::Legacy || column.mode == "ipvs";
    if is_raw && column.writes_with_iptables() {
        needed.push(NET_RAW);
    }
    // In nftables mode for Services that choose userspace mode.
    if matches!(column.mode, "userspace" | "nftables") {
        needed.push(NET_BIND_SERVICE);
    }
    needed
}

/// Returns whether there is such a user here: an ordinary user's namespace has only one
/// (`user_namespaces(7)`).
fn is_possible() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").expect("a map of users");
    map.split_whitespace().nth(2) == Some("4294967295")
}

/// Makes the preparations that take root.
pub fn prepare() {
    if !is_possible() {
        return skip(format!(
            "run by an ordinary user, in whose namespace there is no user {USER}: all cases are \
             run, but by a Tripod that is root there"
        ));
    }
    // As on a node; the test's folder has the mode of /tmp.
    fs::set_permissions("/run", fs::Permissions::from_mode(0o755)).expect("the mode of /run");
    fs::create_dir_all("/run/tripod").expect("a folder");
    let lock = Path::new("/run/xtables.lock");
    fs::File::create(lock).expect("the lock of iptables");
    for path in [Path::new("/run/tripod"), lock] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).expect("an owner");
    }
}

/// Makes `command`, to which Tripod's path and flags are added, start it with the needs of the mode
/// of `column`.
pub fn confine(command: &mut Command, column: &Column) {
    if !is_possible() {
        command.arg("--");
        return;
    }
    let mut set = "-all".to_owned();
    for (name, _) in capabilities(column) {
        set = format!("{set},+{name}");
    }
    command
        .args(["--pdeathsig=KILL", "--no-new-privs", "--clear-groups"])
        .args([format!("--reuid={USER}"), format!("--regid={USER}")])
        .arg(format!("--inh-caps={set}"))
        .arg(format!("--ambient-caps={set}"))
        .arg(format!("--bounding-set={set}"))
        .arg("--");
}

/// Checks that each thread of the process `pid` has the listed capabilities, and no others.
pub fn check(pid: u32, column: &Column) {
    if !is_possible() {
        return;
    }
    let listed = capabilities(column);
    let listed: u64 = listed.iter().map(|(_, number)| 1 << number).sum();
    for task in fs::read_dir(format!("/proc/{pid}/task")).expect("threads") {
        let status = task.expect("a thread").path().join("status");
        // It may have ended.
        let Ok(status) = fs::read_to_string(status) else {
            continue;
        };
        let field = |name: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            let value = value.unwrap_or_else(|| panic!("no {name} in:\n{status}"));
            value.to_owned()
        };
        assert_eq!(field("Uid"), format!("{USER}\t{USER}\t{USER}\t{USER}"));
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(field(set), format!("{listed:016x}"), "{set} of:\n{status}");
        }
        assert_eq!(field("NoNewPrivs"), "1");
        // A filter; a guest's kernel may have none.
        let filters = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
        assert!(field("Seccomp") == "2" || !filters, "{status}");
    }
}
