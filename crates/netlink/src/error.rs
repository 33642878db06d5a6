//! Errors of netlink calls, each with the operation and the object in its text.

use std::{fmt, io};

use nix::errno::Errno;

use crate::passing;

/// A message that is not built as its header says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// A netlink call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {object}: {reason}")]
pub struct Error {
    operation: &'static str,
    object: String,
    reason: Reason,
}

/// Why a netlink call failed.
#[derive(Debug)]
pub enum Reason {
    /// The kernel refused.
    Refused {
        /// The kernel's reason.
        errno: Errno,
        /// The kernel's text (extended acknowledgement), or an explanation; `None`: there is none.
        hint: Option<String>,
    },
    /// The socket failed.
    Socket(io::Error),
    /// The kernel's answer could not be read.
    Answer(Malformed),
    /// The listed objects changed during each of that many attempts to list them.
    Unstable(u32),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The system has no words for this number.
            Reason::Refused {
                errno: Errno::UnknownErrno,
                hint: Some(hint),
            } => f.write_str(hint),
            Reason::Refused {
                errno,
                hint: Some(hint),
            } => write!(f, "{} ({hint})", errno.desc()),
            Reason::Refused { errno, hint: None } => f.write_str(errno.desc()),
            Reason::Socket(error) => write!(f, "netlink socket: {error}"),
            Reason::Answer(what) => write!(f, "the kernel's answer is malformed: {what}"),
            Reason::Unstable(attempts) => {
                write!(f, "it changed during each of {attempts} attempts")
            }
        }
    }
}

impl From<Errno> for Reason {
    fn from(errno: Errno) -> Reason {
        Reason::Refused { errno, hint: None }
    }
}

impl From<io::Error> for Reason {
    fn from(error: io::Error) -> Reason {
        Reason::Socket(error)
    }
}

impl From<Malformed> for Reason {
    fn from(what: Malformed) -> Reason {
        Reason::Answer(what)
    }
}

impl Reason {
    pub(super) fn errno(&self) -> Option<Errno> {
        match self {
            Reason::Refused { errno, .. } => Some(*errno),
            Reason::Socket(error) => error.raw_os_error().map(Errno::from_raw),
            Reason::Answer(_) | Reason::Unstable(_) => None,
        }
    }
}

impl Error {
    /// Returns the error of an operation, a verb, on an object.
    pub fn new(
        operation: &'static str,
        object: impl Into<String>,
        reason: impl Into<Reason>,
    ) -> Error {
        Error {
            operation,
            object: object.into(),
            reason: reason.into(),
        }
    }

    /// Why the call failed.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// Returns whether the kernel refused.
    pub fn is_refused(&self) -> bool {
        matches!(self.reason, Reason::Refused { .. })
    }

    /// Returns whether the reason is temporary, such as a lack of memory or of descriptors, and so
    /// no answer to the request.
    pub fn is_passing(&self) -> bool {
        matches!(self.reason, Reason::Unstable(_)) || self.errno().is_some_and(passing::is_passing)
    }

    /// Explains a refusal by this text instead of the kernel's.
    #[must_use]
    pub fn hinted(mut self, text: impl Into<String>) -> Error {
        if let Reason::Refused { hint, .. } = &mut self.reason {
            *hint = Some(text.into());
        }
        self
    }

    /// Adds the `meaning` of a refusal, by its number and the operation, if the kernel gave no
    /// text.
    pub fn explained(
        mut self,
        meaning: impl FnOnce(Errno, &'static str) -> Option<String>,
    ) -> Error {
        if let Reason::Refused {
            errno,
            hint: hint @ None,
        } = &mut self.reason
        {
            *hint = meaning(*errno, self.operation);
        }
        self
    }

    /// Returns the kernel's reason, where it was the kernel that refused.
    pub fn errno(&self) -> Option<Errno> {
        self.reason.errno()
    }
}
