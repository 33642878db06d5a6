//! The system calls that each task needs: the groups of calls, and the condition of each.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{
    BackendError, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition, SeccompRule,
};

use super::{
    super::{Serving, Task},
    groups,
};

/// The groups of system calls that are needed to serve.
fn groups_for(serving: Serving) -> impl Iterator<Item = &'static [c_long]> {
    let Serving {
        watches_files,
        rings,
        programs,
    } = serving;
    let groups = [
        (true, groups::ITSELF),
        (true, groups::EVENTS),
        (true, groups::FILES),
        (true, groups::SOCKETS),
        (watches_files, groups::WATCHED_FILES),
        (rings, groups::RINGS),
        (programs, groups::PROGRAMS),
        (programs, groups::OLDER_OF_PROGRAMS),
    ];
    let needed = groups.into_iter().filter(|(is_needed, _)| *is_needed);
    needed.map(|(_, calls)| calls)
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
pub(super) fn needed(task: Task) -> Result<BTreeMap<c_long, Vec<SeccompRule>>, BackendError> {
    let (serving, relays, domains) = match task {
        Task::Start | Task::Hold => (Serving::default(), &[][..], &DOMAINS_OF_HOLDER[..]),
        Task::Serve(serving) => (serving, groups::RELAYS, &DOMAINS[..]),
    };
    let calls = groups_for(serving).flatten().chain(relays);
    let mut rules: BTreeMap<_, _> = calls.map(|call| (*call, Vec::new())).collect();
    if serving.rings {
        // A ring can be enabled; no other operation on rings is allowed.
        let enable = on_argument(1, SeccompCmpOp::Eq, ENABLE_RINGS)?;
        rules.insert(libc::SYS_io_uring_register, vec![enable]);
    }
    if serving.programs {
        return Ok(rules);
    }
    let thread = libc::CLONE_THREAD as u64;
    // clone3(2) has its flags in memory, which a filter cannot see. Where it is missing, the C
    // library makes threads by clone(2).
    let makes_thread = on_first(SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![makes_thread]);
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
        let beside = Serving {
            programs: false,
            rings: true,
            watches_files: true,
        };
        for call in groups_for(beside).flatten() {
            *all.entry(call).or_default() += 1;
        }
        all.retain(|_, times| *times > 1);
        assert_eq!(all.len(), 0, "{all:?}");
    }

    /// The table of the document matches the code.
    #[test]
    fn the_document_says_who_needs_each_group() {
        let document = include_str!("../../../docs/security.md");
        let none = Serving::default();
        let [files, rings, programs] = [
            Serving {
                watches_files: true,
                ..none
            },
            Serving {
                rings: true,
                ..none
            },
            Serving {
                programs: true,
                ..none
            },
        ];
        let always = "always";
        for (calls, purpose, serving, who) in [
            (
                groups::ITSELF,
                "memory, clocks, signals, what a process asks about itself",
                none,
                always,
            ),
            (groups::EVENTS, "waiting for events", none, always),
            (groups::FILES, "files", none, always),
            (groups::SOCKETS, "sockets that are open", none, always),
            (
                groups::WATCHED_FILES,
                "noticing changes of files (inotify)",
                files,
                "with `--manifests` or `--config`",
            ),
            (
                groups::RINGS,
                "receiving and sending by io_uring, with rings that were made before",
                rings,
                "in userspace mode, unless `--userspace-io=epoll`",
            ),
            (
                groups::PROGRAMS,
                "programs and processes (execve, fork), and what only programs call",
                programs,
                "where programs may be started, see below",
            ),
        ] {
            let are_allowed = |serving| groups_for(serving).any(|group| group == calls);
            assert!(are_allowed(serving), "{purpose}");
            assert_eq!(are_allowed(none), who == always, "{purpose}");
            let row = format!("| {purpose} | {who} |");
            assert!(document.contains(&row), "docs/security.md lacks: {row}");
        }
    }
}
