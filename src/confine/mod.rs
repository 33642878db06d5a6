//! Limits what this process can do, from its start on: it gives up the capabilities that it does
//! not need (`capabilities(7)`), and no program that it starts can get more (`PR_SET_NO_NEW_PRIVS`
//! of `prctl(2)`).
//!
//! Capabilities belong to threads. So they are given up twice, each time while there is only one
//! thread: at the start of the process those that no mode needs, and when the mode is known, before
//! any of its threads is made, those that were needed to find it out.

mod calls;
mod capabilities;
mod files;
mod reach;

use caps::Capability;
use nix::sys::prctl;

use self::capabilities::Capabilities;
pub use self::files::Files;

/// How far a process confines itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// It keeps everything that it was started with.
    None,
    /// It gives up capabilities that it does not need, and gets no new ones.
    #[default]
    Capabilities,
    /// In addition, it makes only the system calls that it needs.
    Calls,
    /// In addition, it reaches only the files that it needs.
    Files,
}

impl Confinement {
    /// Returns whether system calls are limited to those that are needed.
    pub fn is_of_calls(self) -> bool {
        matches!(self, Confinement::Calls | Confinement::Files)
    }

    /// Parses the word for a confinement.
    ///
    /// # Errors
    /// When it is none of the words; the error lists them.
    pub fn parse(word: &str) -> Result<Confinement, String> {
        match word {
            "none" => Ok(Confinement::None),
            "capabilities" => Ok(Confinement::Capabilities),
            "calls" => Ok(Confinement::Calls),
            "files" => Ok(Confinement::Files),
            _ => Err("it must be none, capabilities, calls or files".to_owned()),
        }
    }
}

/// A stage or purpose of the process, which decides what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Find out which mode this kernel can run, and prepare the node.
    Start,
    /// Serve Services in the mode that was chosen.
    Serve(Serving),
    /// Hold sockets of other processes.
    Hold,
}

/// The tasks of a serving process other than reading objects and configuring the kernel, which
/// depend on its mode, its settings and the state of its node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Whether it may have to start programs.
    pub programs: bool,
    /// Whether it uses io_uring, by rings that were made earlier.
    pub rings: bool,
    /// Whether it watches files for changes.
    pub watches_files: bool,
}

/// Confines this thread, and the threads and programs that it starts from now on, to the needs of
/// `task`. Capabilities that cannot be given up are logged, and kept: the process may lack a right
/// to drop them. Returns the further parts of `confinement` that this kernel refuses, each with the
/// remedy.
#[must_use]
pub fn confine(confinement: Confinement, task: Task, files: &Files<'_>) -> Vec<String> {
    let mut refused = Vec::new();
    if confinement == Confinement::None {
        return refused;
    }
    let mut failures = Vec::new();
    if let Err(errno) = prctl::set_no_new_privs() {
        failures.push(format!("new privileges: {}", errno.desc()));
    }
    let mut needed = needed(task);
    needed.extend(files.needed());
    failures.extend(capabilities::keep(&needed));
    if task != Task::Start {
        // Before the filter, which does not allow Landlock's calls.
        if confinement == Confinement::Files
            && let Err(error) = reach::restrict(files)
        {
            refused.push(format!(
                "Tripod is not confined to its files: {error}, or set --confine=calls"
            ));
        }
        if confinement.is_of_calls()
            && let Err(error) = calls::restrict(task)
        {
            refused.push(format!(
                "Tripod is not confined to its system calls: this kernel refuses the filter \
                 ({error}); run a kernel that has CONFIG_SECCOMP_FILTER, or set \
                 --confine=capabilities"
            ));
        }
    }
    if !failures.is_empty() {
        tracing::info!(
            "some privileges could not be dropped: {}",
            failures.join("; ")
        );
    }
    if task != Task::Start {
        tracing::info!("capabilities: {}", capabilities::words());
    }
    refused
}

/// Returns the capabilities that `task` needs, whatever files there are.
fn needed(task: Task) -> Capabilities {
    let words = match task {
        Task::Start => [SERVING, RELAYING, STARTING].concat(),
        // In each mode, a Service may choose to be relayed.
        Task::Serve(_) => [SERVING, RELAYING].concat(),
        Task::Hold => RELAYING.to_vec(),
    };
    words.into_iter().collect()
}

/// Capabilities for serving Services, in any mode.
const SERVING: &[Capability] = &[
    // Rules, routes, addresses, IPVS, ipset, conntrack; `/proc/sys/net`, also for others
    // than root (`net_ctl_permissions` in `net/sysctl_net.c`).
    Capability::CAP_NET_ADMIN,
    // The raw socket by which the legacy iptables speak to the kernel, also to remove what
    // another mode wrote with them.
    Capability::CAP_NET_RAW,
    // Ports below 1024: those of Services in userspace mode, and those of this process's own
    // endpoints.
    Capability::CAP_NET_BIND_SERVICE,
];

/// Capabilities for the work before the mode is known.
const STARTING: &[Capability] = &[
    // A network namespace for probes.
    Capability::CAP_SYS_ADMIN,
    // Modules that the kernel does not load by itself.
    Capability::CAP_SYS_MODULE,
    // A lower oom_score_adj.
    Capability::CAP_SYS_RESOURCE,
    // To take capabilities from the bounding set later.
    Capability::CAP_SETPCAP,
];

/// Without it the kernel makes pipes smaller once those of the user have 64 MiB
/// (`pipe_is_unprivileged_user` in `fs/pipe.c`), and counts descriptors that are on their
/// way to another process against the limit of open files (`too_many_unix_fds` in
/// `net/unix/scm.c`).
const RELAYING: &[Capability] = &[Capability::CAP_SYS_RESOURCE];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_is_kept_from_the_start() {
        let start = needed(Task::Start);
        let serves = Task::Serve(Serving::default());
        for task in [serves, Task::Hold] {
            assert!(needed(task).is_subset(&start), "{task:?}");
        }
        assert!(!needed(serves).contains(&Capability::CAP_SYS_ADMIN));
    }

    #[test]
    fn a_word_names_a_confinement() {
        assert_eq!(Confinement::parse("none"), Ok(Confinement::None));
        let default = Confinement::parse("capabilities");
        assert_eq!(default, Ok(Confinement::default()));
        let error = Confinement::parse("all").unwrap_err();
        assert!(
            error.contains("none, capabilities, calls or files"),
            "{error}"
        );
    }
}
