//! Errors of the programs.

use std::io;

use net::Family;
use netlink::passing;

use super::rule::Table;

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be run to its end.
    #[error("cannot run {program}: {source}")]
    Run {
        /// The program's name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The program ran and failed.
    #[error("{program}: {message}{}", .line.as_ref().map_or_else(String::new, |l| format!(" (at: {l})")))]
    Failed {
        /// The program's name.
        program: String,
        /// The program's standard error.
        message: String,
        /// The line of our batch that it complained about, if it named one.
        line: Option<String>,
        /// A signal ended it, so that it is not known how far it had come.
        is_killed: bool,
    },
    /// The table has rules that the program cannot read, and so not distinguish
    /// from ours.
    #[error(
        "{program}: table {table} holds rules of nft's own, which iptables cannot read; move them \
         to a table of another name"
    )]
    Incompatible {
        /// The program's name.
        program: String,
        /// The table that it cannot read.
        table: Table,
    },
    /// There are rules, but not the program for them.
    #[error(
        "{family}: nf_tables has rules of Tripod, and there is no iptables-nft that could remove \
         them: install it (Debian package iptables)"
    )]
    Absent {
        /// The family of the rules.
        family: Family,
    },
    /// It is not known to which engine of the kernel a program speaks.
    #[error(
        "{family}: cannot tell which engine of the kernel a program uses ({reason}); rules of \
         Tripod may be in one that no other program reaches: repair or remove that program"
    )]
    Unidentified {
        /// The family of the rules.
        family: Family,
        /// The outcome of asking the programs.
        reason: String,
    },
    /// The kernel does not say which chains there are.
    #[error("{family}: cannot list the chains that nf_tables has: {source}")]
    Unlisted {
        /// The family of the chains.
        family: Family,
        /// The kernel's reason.
        source: netlink::Error,
    },
    /// None of them works.
    #[error("no {family} nat: {reason}")]
    Unusable {
        /// The family of the rules.
        family: Family,
        /// The error of each program, or why it was not tried.
        reason: String,
    },
    /// Whether any of them works is not known.
    #[error("not known whether there is {family} nat: {reason}")]
    Unknown {
        /// The family of the rules.
        family: Family,
        /// The error of each program, or why it was not tried.
        reason: String,
    },
}

/// Message of the legacy programs when they do not get the lock.
const LOCKED: &str = "holding the xtables lock";

impl Error {
    /// Returns true if only table mangle is known to be unreadable, on which few packets of
    /// Services depend.
    pub fn is_about_mangle(&self) -> bool {
        let table = Table::Mangle;
        matches!(self, Error::Incompatible { table: unread, .. } if *unread == table)
    }

    /// Returns true if a privilege is missing, not a feature.
    pub fn is_permission(&self) -> bool {
        match self {
            Error::Run { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Error::Failed { message, .. } => {
                message.contains("ermission denied") || message.contains("not permitted")
            }
            _ => false,
        }
    }

    /// Returns true for a temporary reason: another process held the lock or changed the rules at
    /// the same time, or memory was short (EAGAIN, EINTR, ENOBUFS; the C library has no message for
    /// ERESTART). Rules that still jump to a chain that is being deleted are no temporary reason.
    pub fn is_passing(&self) -> bool {
        const IN_USE: &str = "DEL failed (Device or resource busy): chain";
        const PASSING: [&str; 7] = [
            LOCKED,
            "Resource temporarily unavailable",
            "Interrupted system call",
            "No buffer space available",
            "Cannot allocate memory",
            "Device or resource busy",
            "iptables: Resource problem",
        ];
        matches!(self, Error::Failed { message, .. }
            if PASSING.iter().any(|words| message.contains(words)) && !message.contains(IN_USE))
    }

    /// Returns true if the program gave no answer: for a temporary reason, or because it did not
    /// get so far (no process or memory for it, a time-out).
    pub fn is_unanswered(&self) -> bool {
        match self {
            Error::Run { source, .. } => passing::is_passing_io(source),
            Error::Unknown { .. } => true,
            _ => self.is_passing(),
        }
    }

    /// Returns true if a signal ended the program: it is not known how far it had come.
    pub(super) fn is_killed(&self) -> bool {
        matches!(self, Error::Failed { is_killed, .. } if *is_killed)
    }

    /// Returns true if it could not be started, for a reason that passes.
    pub(super) fn is_unstarted(&self) -> bool {
        matches!(self, Error::Run { source, .. }
            if passing::is_passing_io(source) && source.kind() != io::ErrorKind::TimedOut)
    }

    /// Returns true if another process held the lock for seconds.
    pub(super) fn is_lock(&self) -> bool {
        matches!(self, Error::Failed { message, .. } if message.contains(LOCKED))
    }

    /// Returns true if the kernel takes no netlink message of that size (EMSGSIZE).
    pub(super) fn is_too_long(&self) -> bool {
        matches!(self, Error::Failed { message, .. } if message.contains("Message too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_in_use_is_no_passing_reason() {
        let failed = |message: &str| Error::Failed {
            program: "iptables-nft-restore".to_owned(),
            message: message.to_owned(),
            line: None,
            is_killed: false,
        };
        // As version 1.8.9 prints it.
        let in_use = "line 3: CHAIN_DEL failed (Device or resource busy): chain B";
        assert!(!failed(in_use).is_passing());
        assert!(failed("RULE_APPEND failed (Device or resource busy)").is_passing());
    }
}
