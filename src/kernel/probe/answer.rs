//! The outcome of a try: the ability works, it does not, or that is unknown.

use std::io;

use netlink::{Reason, passing, sysctl};
use nix::errno::Errno;

use super::{Ability, Findings, words};

/// The outcome of trying an ability: `Ok` if it works.
pub(super) type Tried = Result<(), Unable>;

/// The stored answer in `findings` for `ability`, else the outcome of trying it.
pub(super) fn found_or(
    findings: Option<&Findings>,
    ability: &Ability,
    attempt: impl FnOnce() -> Tried,
) -> Tried {
    let known = findings.and_then(|findings| findings.tried(ability));
    known.unwrap_or_else(attempt)
}

/// Why a try failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unable {
    /// It does not work here, for this reason.
    Missing(String),
    /// It failed for a passing reason, which proves nothing.
    Unknown(String),
}

impl Unable {
    fn new(passing: bool, why: String) -> Unable {
        if passing {
            Unable::Unknown(why)
        } else {
            Unable::Missing(why)
        }
    }
}

impl From<Errno> for Unable {
    fn from(errno: Errno) -> Unable {
        Unable::new(passing::is_passing(errno), words(errno))
    }
}

/// Takes the kernel's own words; the caller knows what was tried.
impl From<&netlink::Error> for Unable {
    fn from(error: &netlink::Error) -> Unable {
        match error.reason() {
            // ipset has error numbers that the system does not know; the hint
            // explains them.
            Reason::Refused {
                errno: Errno::UnknownErrno,
                hint: Some(hint),
            } => Unable::Missing(hint.clone()),
            Reason::Refused { errno, .. } => Unable::from(*errno),
            Reason::Socket(source) => Unable::from(source),
            Reason::Unstable(_) => Unable::Unknown(error.to_string()),
            Reason::Answer(_) => Unable::Missing(error.to_string()),
        }
    }
}

impl From<netlink::Error> for Unable {
    fn from(error: netlink::Error) -> Unable {
        Unable::from(&error)
    }
}

impl From<&io::Error> for Unable {
    fn from(error: &io::Error) -> Unable {
        match error.raw_os_error() {
            Some(number) => Unable::from(Errno::from_raw(number)),
            None => Unable::new(passing::is_passing_io(error), error.to_string()),
        }
    }
}

impl From<io::Error> for Unable {
    fn from(error: io::Error) -> Unable {
        Unable::from(&error)
    }
}

impl From<sysctl::Error> for Unable {
    fn from(error: sysctl::Error) -> Unable {
        Unable::new(error.is_passing(), error.reason())
    }
}

impl From<xtables::Error> for Unable {
    fn from(error: xtables::Error) -> Unable {
        match error {
            xtables::Error::Unusable { reason, .. } => Unable::Missing(reason),
            xtables::Error::Unknown { reason, .. } => Unable::Unknown(reason),
            error => Unable::new(error.is_unanswered(), error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use net::Family;

    use super::*;

    #[test]
    fn a_passing_failure_does_not_mean_missing() {
        let refused = |errno| {
            let errno: Errno = errno;
            Unable::from(netlink::Error::new("create", "set x", errno))
        };
        let unknown = |unable: &Unable| matches!(unable, Unable::Unknown(_));
        assert_eq!(
            refused(Errno::ENOENT),
            Unable::Missing("not in this kernel".to_owned())
        );
        assert_eq!(
            refused(Errno::ENOMEM),
            Unable::Unknown("Out of memory".to_owned())
        );
        for errno in [Errno::EAGAIN, Errno::ENOBUFS, Errno::EMFILE] {
            assert!(unknown(&refused(errno)), "{errno}");
        }
        let run = |source: io::Error| xtables::Error::Run {
            program: "iptables-restore".to_owned(),
            source,
        };
        let fork = io::Error::from_raw_os_error(Errno::EAGAIN as i32);
        let failed = |message: &str| xtables::Error::Failed {
            program: "iptables-restore".to_owned(),
            message: message.to_owned(),
            line: None,
            is_killed: false,
        };
        let cases = [
            (run(fork), true),
            (run(io::ErrorKind::TimedOut.into()), true),
            (run(io::ErrorKind::NotFound.into()), false),
            (
                failed("line 3: RULE_APPEND failed (Cannot allocate memory)"),
                true,
            ),
            (
                failed("Extension statistic revision 0 not supported"),
                false,
            ),
            (
                xtables::Error::Unusable {
                    family: Family::V4,
                    reason: "none".to_owned(),
                },
                false,
            ),
        ];
        for (error, expected) in cases {
            let text = error.to_string();
            assert_eq!(unknown(&Unable::from(error)), expected, "{text}");
        }
    }
}
