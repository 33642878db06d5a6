//! The system calls that each task needs: the groups of calls, and the condition of each.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompRule,
};

use super::{
    super::{Serving, Task},
    groups,
};

/// Calls for one purpose, and which tasks need them.
pub(super) struct Group {
    /// The purpose of the calls, in the words of docs/security.md.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "a test holds the document to it")
    )]
    pub(super) purpose: &'static str,
    pub(super) calls: &'static [libc::c_long],
    pub(super) condition: Condition,
}

/// Which tasks need a group of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    /// Where the objects are manifests, or the configuration is a file.
    WatchesFiles,
    /// Where the process relays connections itself.
    Relays,
    /// Where the process uses io_uring.
    Rings,
    /// Where the process may have to start programs.
    Programs,
}

/// The groups of system calls, each with the condition under which it is allowed.
pub(super) const GROUPS: [Group; 8] = [
    Group {
        purpose: "memory, clocks, signals, what a process asks about itself",
        calls: groups::ITSELF,
        condition: Condition::Always,
    },
    Group {
        purpose: "waiting for events",
        calls: groups::EVENTS,
        condition: Condition::Always,
    },
    Group {
        purpose: "files",
        calls: groups::FILES,
        condition: Condition::Always,
    },
    Group {
        purpose: "sockets that are open",
        calls: groups::SOCKETS,
        condition: Condition::Always,
    },
    Group {
        purpose: "noticing changes of files (inotify)",
        calls: groups::WATCHED_FILES,
        condition: Condition::WatchesFiles,
    },
    Group {
        purpose: "carrying bytes (splice, pipes)",
        calls: groups::RELAYS,
        condition: Condition::Relays,
    },
    Group {
        purpose: "receiving and sending by io_uring, with rings that were made before",
        calls: groups::RINGS,
        condition: Condition::Rings,
    },
    Group {
        purpose: "programs and processes (execve, fork), and what only programs call",
        calls: groups::PROGRAMS,
        condition: Condition::Programs,
    },
];

impl Condition {
    pub(super) fn is_met(self, task: Task) -> bool {
        let serving = match task {
            // Nothing is filtered at the start.
            Task::Start => return true,
            Task::Hold => Serving::default(),
            Task::Serve(serving) => serving,
        };
        match self {
            Condition::Always => true,
            Condition::WatchesFiles => serving.watches_files,
            Condition::Relays => serving.relays,
            Condition::Rings => serving.rings,
            Condition::Programs => serving.programs,
        }
    }
}

/// The kinds of sockets that Tripod opens to serve.
const DOMAINS: [libc::c_int; 4] = [
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// IORING_REGISTER_ENABLE_RINGS (include/uapi/linux/io_uring.h).
const ENABLE_RINGS: u64 = 12;

/// The kinds of sockets that the holder opens: the one at which proxies connect. Sockets of
/// Services are sent to it.
const DOMAINS_OF_HOLDER: [libc::c_int; 1] = [libc::AF_UNIX];

/// Returns the calls that `task` needs, and the conditions of their arguments: a call without
/// any is allowed whatever those are.
///
/// # Errors
/// Those of building the conditions, which are the same each time.
pub(super) fn needed(task: Task) -> Result<BTreeMap<libc::c_long, Vec<SeccompRule>>, BackendError> {
    let groups = GROUPS.iter().filter(|group| group.condition.is_met(task));
    let calls = groups.flat_map(|group| group.calls);
    let mut rules: BTreeMap<_, _> = calls.map(|call| (*call, Vec::new())).collect();
    if Condition::Rings.is_met(task) {
        // A ring can be enabled; no other operation on rings is allowed.
        let enable = on_argument(1, SeccompCmpOp::Eq, ENABLE_RINGS)?;
        rules.insert(libc::SYS_io_uring_register, vec![enable]);
    }
    if Condition::Programs.is_met(task) {
        let older = groups::OLDER_OF_PROGRAMS.iter();
        rules.extend(older.map(|call| (*call, Vec::new())));
        return Ok(rules);
    }
    let thread = libc::CLONE_THREAD as u64;
    // clone3(2) has its flags in memory, which a filter cannot see. Where it is missing, the C
    // library makes threads by clone(2).
    let makes_thread = on_first(SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![makes_thread]);
    let domains = match task {
        Task::Hold => &DOMAINS_OF_HOLDER[..],
        Task::Start | Task::Serve(_) => &DOMAINS,
    };
    let of_domain = |domain: &libc::c_int| on_first(SeccompCmpOp::Eq, domain.unsigned_abs().into());
    let opens: Vec<_> = domains.iter().map(of_domain).collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, opens);
    // Only pairs of unix sockets are made.
    let pair = on_first(SeccompCmpOp::Eq, libc::AF_UNIX.unsigned_abs().into())?;
    rules.insert(libc::SYS_socketpair, vec![pair]);
    Ok(rules)
}

/// Returns the rule that the first argument of a call meets the `comparison`.
fn on_first(comparison: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    on_argument(0, comparison, value)
}

/// Returns the rule that argument number `number` of a call, from 0 on, meets the `comparison`.
fn on_argument(
    number: u8,
    comparison: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, BackendError> {
    SeccompRule::new(vec![SeccompCondition::new(
        number, Dword, comparison, value,
    )?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_programs_are_in_two_groups() {
        let mut all = BTreeMap::<_, usize>::new();
        let beside = |group: &&Group| group.condition != Condition::Programs;
        for group in GROUPS.iter().filter(beside) {
            for call in group.calls {
                *all.entry(call).or_default() += 1;
            }
        }
        all.retain(|_, times| *times > 1);
        assert_eq!(all.len(), 0, "{all:?}");
    }

    /// The table of the document matches the code.
    #[test]
    fn the_document_says_who_needs_each_group() {
        let document = include_str!("../../../docs/security.md");
        for group in GROUPS {
            let who = match group.condition {
                Condition::Always => "always",
                Condition::WatchesFiles => "with `--manifests` or `--config`",
                Condition::Relays => {
                    "in userspace mode, and where node ports on loopback addresses are served"
                }
                Condition::Rings => "in userspace mode, unless `--userspace-io=epoll`",
                Condition::Programs => "where programs may be started, see below",
            };
            let row = format!("| {} | {who} |", group.purpose);
            assert!(document.contains(&row), "docs/security.md lacks: {row}");
        }
    }
}
