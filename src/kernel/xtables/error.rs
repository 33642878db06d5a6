//! Why a program could not do what it was for.

use std::io;

use super::rule::Table;
use crate::{kernel::passing, net::Family};

/// Why a program could not do what it was for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be run to its end.
    #[error("cannot run {program}: {source}")]
    Run {
        /// Which.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It failed.
    #[error("{program}: {message}{}", .line.as_ref().map_or_else(String::new, |l| format!(" (at: {l})")))]
    Failed {
        /// Which.
        program: String,
        /// What it said.
        message: String,
        /// The line of our batch that it complained about, if it told one.
        line: Option<String>,
    },
    /// The table has rules that the program cannot read, and so could not tell
    /// ours from others'.
    #[error(
        "{program}: table {table} holds rules of nft's own, which iptables cannot read; move them \
         to a table of another name"
    )]
    Incompatible {
        /// Which.
        program: String,
        /// Of this table.
        table: Table,
    },
    /// There are rules, but not the program for them.
    #[error(
        "{family}: there are rules of ours in nf_tables, and no iptables-nft here that could \
         remove them (Debian package iptables)"
    )]
    Absent {
        /// Of this family.
        family: Family,
    },
    /// None of them works.
    #[error("no {family} nat: {reason}")]
    Unusable {
        /// For this family.
        family: Family,
        /// What each one said.
        reason: String,
    },
    /// Whether any of them works is not known.
    #[error("not known whether there is {family} nat: {reason}")]
    Unknown {
        /// For this family.
        family: Family,
        /// What each one said.
        reason: String,
    },
}

/// What the legacy programs say when they do not get the lock.
const LOCKED: &str = "holding the xtables lock";

impl Error {
    /// For lack of privilege, not of a feature.
    pub fn is_permission(&self) -> bool {
        match self {
            Error::Run { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Error::Failed { message, .. } => {
                message.contains("ermission denied") || message.contains("not permitted")
            }
            Error::Incompatible { .. }
            | Error::Absent { .. }
            | Error::Unusable { .. }
            | Error::Unknown { .. } => false,
        }
    }

    /// For a reason that passes: somebody else held the lock or changed the
    /// rules at the same time, or memory was short (EAGAIN, EINTR, ENOBUFS;
    /// ERESTART has no words of its own in the C library).
    pub fn is_passing(&self) -> bool {
        const PASSING: [&str; 7] = [
            LOCKED,
            "Resource temporarily unavailable",
            "Interrupted system call",
            "No buffer space available",
            "Cannot allocate memory",
            "Device or resource busy",
            "iptables: Resource problem",
        ];
        match self {
            Error::Run { .. }
            | Error::Incompatible { .. }
            | Error::Absent { .. }
            | Error::Unusable { .. }
            | Error::Unknown { .. } => false,
            Error::Failed { message, .. } => PASSING.iter().any(|words| message.contains(words)),
        }
    }

    /// What was asked was not answered: for a reason that passes, or because the
    /// program did not get so far (no process or memory for it, a time-out).
    pub fn is_unanswered(&self) -> bool {
        match self {
            Error::Run { source, .. } => passing::is_passing_io(source),
            Error::Unknown { .. } => true,
            _ => self.is_passing(),
        }
    }

    /// It could not be started, for a reason that passes.
    pub(super) fn is_unstarted(&self) -> bool {
        matches!(self, Error::Run { source, .. }
            if passing::is_passing_io(source) && source.kind() != io::ErrorKind::TimedOut)
    }

    /// Because somebody else held the lock for seconds.
    pub(super) fn is_lock(&self) -> bool {
        matches!(self, Error::Failed { message, .. } if message.contains(LOCKED))
    }

    /// Because the kernel takes no netlink message of that size (EMSGSIZE).
    pub(super) fn is_too_long(&self) -> bool {
        matches!(self, Error::Failed { message, .. } if message.contains("Message too long"))
    }
}
