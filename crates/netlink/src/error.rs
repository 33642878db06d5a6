//! Errors of netlink calls, each with the operation and the object in its text.

use std::io;

use nix::errno::Errno;

use crate::passing;

/// A message that is not built as its header says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Why a netlink call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {operation} {object}: {}", reason(*.errno, .hint.as_deref()))]
    Refused {
        /// The operation, a verb.
        operation: &'static str,
        /// The object that it was asked for.
        object: String,
        /// The kernel's reason.
        errno: Errno,
        /// The kernel's text (extended acknowledgement), where there is one.
        hint: Option<String>,
    },
    /// The socket failed.
    #[error("cannot {operation} {object}: netlink socket: {source}")]
    Socket {
        /// The operation, a verb.
        operation: &'static str,
        /// The object that it was asked for.
        object: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel's answer could not be read.
    #[error("cannot {operation} {object}: the kernel's answer is malformed: {what}")]
    Answer {
        /// The operation, a verb.
        operation: &'static str,
        /// The object that it was asked for.
        object: String,
        /// The defect of the answer.
        what: Malformed,
    },
    /// The listed objects changed during each attempt to list them.
    #[error("cannot {operation} {object}: it changed during each of {attempts} attempts")]
    Unstable {
        /// The operation, a verb.
        operation: &'static str,
        /// The object that it was asked for.
        object: String,
        /// How often it was tried.
        attempts: u32,
    },
}

/// Returns the system's description and the hint; for a number that the system
/// has no words for, the hint alone.
fn reason(errno: Errno, hint: Option<&str>) -> String {
    match (errno, hint) {
        (Errno::UnknownErrno, Some(hint)) => hint.to_owned(),
        (errno, Some(hint)) => format!("{} ({hint})", errno.desc()),
        (errno, None) => errno.desc().to_owned(),
    }
}

impl Error {
    /// Returns whether the reason is temporary, such as a lack of memory or of descriptors, and so
    /// no answer to the request.
    pub fn is_passing(&self) -> bool {
        matches!(self, Error::Unstable { .. }) || self.errno().is_some_and(passing::is_passing)
    }

    /// Adds the `meaning` of a refusal, by its number and the operation, if the kernel gave no
    /// text.
    pub fn explained(
        mut self,
        meaning: impl FnOnce(Errno, &'static str) -> Option<String>,
    ) -> Error {
        if let Error::Refused {
            operation,
            errno,
            hint: hint @ None,
            ..
        } = &mut self
        {
            *hint = meaning(*errno, operation);
        }
        self
    }

    /// Returns the kernel's reason, where it was the kernel that refused.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused { errno, .. } => Some(*errno),
            Error::Socket { source, .. } => source.raw_os_error().map(Errno::from_raw),
            _ => None,
        }
    }
}
