//! The sets of capabilities of a thread, `capabilities(7)`.

use std::collections::HashSet;

use caps::{CapSet, Capability, errors::CapsError};
use nix::unistd::geteuid;

/// A set of capabilities of a thread, such as those that it keeps.
pub(super) type Capabilities = HashSet<Capability>;

/// Removes all capabilities except `needed` from every set of this thread. Returns an error text
/// for each set that could not be changed.
///
/// The remaining capabilities are also inheritable and ambient: programs that are started then have
/// them even if the user is not root, or has them only from the file of this program.
pub(super) fn keep(needed: &Capabilities) -> Vec<String> {
    let mut failures = Vec::new();
    let mut note = |what: &str, done: Result<(), CapsError>| {
        if let Err(error) = done {
            failures.push(format!("{what} capabilities: {error}"));
        }
    };
    // First, because it takes CAP_SETPCAP. Without that the set stays unchanged, which grants
    // nothing where no new privileges can be gained.
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP).unwrap_or(false) {
        note("bounding", bound(needed));
    }
    let left = match caps::read(None, CapSet::Permitted) {
        Ok(permitted) => permitted.intersection(needed).copied().collect(),
        Err(error) => {
            note("permitted", Err(error));
            return failures;
        }
    };
    // In this order each set is always within the set that bounds it. A capability that leaves the
    // permitted or the inheritable set also leaves the ambient one.
    note("effective", caps::set(None, CapSet::Effective, &left));
    note("inheritable", caps::set(None, CapSet::Inheritable, &left));
    note("permitted", caps::set(None, CapSet::Permitted, &left));
    let ambient = caps::set(None, CapSet::Ambient, &left);
    // Programs of root get them without the ambient set.
    if !geteuid().is_root() {
        note("ambient", ambient);
    }
    failures
}

fn bound(needed: &Capabilities) -> Result<(), CapsError> {
    for capability in caps::read(None, CapSet::Bounding)?.difference(needed) {
        caps::drop(None, CapSet::Bounding, *capability)?;
    }
    Ok(())
}

/// The names of this thread's effective capabilities, in alphabetical order, for messages.
pub(super) fn words() -> String {
    let effective = match caps::read(None, CapSet::Effective) {
        Ok(effective) => effective,
        Err(error) => return format!("unknown: {error}"),
    };
    let mut words: Vec<_> = effective.iter().map(ToString::to_string).collect();
    words.sort_unstable();
    if words.is_empty() {
        return "none".to_owned();
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use testing::is_root;

    use super::*;

    /// Changes only the thread of the test.
    #[test]
    fn what_is_not_kept_is_gone_from_every_set_and_for_programs() {
        if !is_root("gives capabilities away") {
            return;
        }
        let needed = Capabilities::from([Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW]);
        assert_eq!(keep(&needed), Vec::<String>::new());
        assert_eq!(words(), "CAP_NET_ADMIN, CAP_NET_RAW");
        let program = std::process::Command::new("cat")
            .arg("/proc/self/status")
            .output()
            .expect("cat");
        for status in [
            String::from_utf8(program.stdout).expect("text"),
            std::fs::read_to_string("/proc/thread-self/status").expect("a status"),
        ] {
            for set in ["Inh", "Prm", "Eff", "Bnd", "Amb"] {
                // CAP_NET_ADMIN is 12, CAP_NET_RAW 13 (linux/capability.h).
                let line = format!("Cap{set}:\t0000000000003000\n");
                assert!(status.contains(&line), "{line} in:\n{status}");
            }
        }
        // They cannot be regained.
        let more = Capabilities::from([Capability::CAP_SYS_ADMIN]);
        assert!(caps::set(None, CapSet::Permitted, &more).is_err());
        // Dropping a capability that the thread does not have is no failure.
        assert_eq!(keep(&more), Vec::<String>::new());
        assert_eq!(words(), "none");
    }
}
