//! Reports for the author of the folder, each logged once.

use std::{ffi::OsString, fmt, path::Path};

use tracing::{info, warn};

use crate::services::Invalid;

/// A report about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// A document cannot be read or used.
    Broken {
        file: OsString,
        document: usize,
        line: Option<usize>,
        reason: String,
        preserved: Preserved,
    },
    /// The whole file cannot be read.
    Unreadable {
        file: OsString,
        reason: String,
        preserved: Preserved,
    },
    /// A file that was broken is good again.
    GoodAgain { file: OsString },
    /// A value of an otherwise good object is left out.
    Skipped {
        file: OsString,
        document: usize,
        warning: Invalid,
    },
    /// Objects of a kind that a service proxy does not use.
    IgnoredKind { file: OsString, kind: String },
    /// The same object is there twice.
    Duplicate {
        object: String,
        loser: OsString,
        winner: OsString,
    },
}

/// What stays in force of a broken file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preserved {
    /// The last good version of the file stays in force.
    LastGood,
    /// The good documents of the file are used.
    GoodDocuments,
}

impl fmt::Display for Preserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Preserved::LastGood => "the file's last good version stays in force",
            Preserved::GoodDocuments => "the rest of the file is used",
        })
    }
}

impl Report {
    /// Writes the report to the log.
    pub(super) fn log(&self) {
        match self {
            Report::GoodAgain { .. } | Report::IgnoredKind { .. } => info!("{self}"),
            _ => warn!("{self}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Broken {
                file,
                document,
                line,
                reason,
                preserved,
            } => {
                write!(f, "{}: document {document}", show(file))?;
                if let Some(line) = line {
                    write!(f, ", line {line}")?;
                }
                write!(f, ": {reason}; {preserved}")
            }
            Report::Unreadable {
                file,
                reason,
                preserved,
            } => {
                write!(f, "{}: {reason}", show(file))?;
                match preserved {
                    Preserved::LastGood => write!(f, "; {preserved}"),
                    Preserved::GoodDocuments => write!(f, "; nothing of it is used"),
                }
            }
            Report::GoodAgain { file } => write!(f, "{}: good again", show(file)),
            Report::Skipped {
                file,
                document,
                warning,
            } => write!(
                f,
                "{}: document {document}: {warning}; this value is left out",
                show(file)
            ),
            Report::IgnoredKind { file, kind } => write!(
                f,
                "{}: {kind} is ignored: a service proxy reads v1 Service, v1 Node, \
                 discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR",
                show(file)
            ),
            Report::Duplicate {
                object,
                loser,
                winner,
            } if loser == winner => write!(
                f,
                "{}: {object} is there more than once: the last one counts",
                show(winner)
            ),
            Report::Duplicate {
                object,
                loser,
                winner,
            } => write!(
                f,
                "{object} is in {} and in {}: the latter counts, being last by name",
                show(loser),
                show(winner)
            ),
        }
    }
}

fn show(file: &OsString) -> std::path::Display<'_> {
    Path::new(file).display()
}
