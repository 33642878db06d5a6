//! What the folder's author should know.

use std::{ffi::OsString, fmt, path::Path};

use tracing::{info, warn};

use crate::services::Invalid;

/// Something to say about a file, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// A document cannot be read or used.
    Broken {
        file: OsString,
        document: usize,
        line: Option<usize>,
        reason: String,
        kept: Kept,
    },
    /// The whole file cannot be read.
    Unreadable {
        file: OsString,
        reason: String,
        kept: Kept,
    },
    /// A file that was broken is good again.
    Mended { file: OsString },
    /// A value of an otherwise good object is left out.
    Skipped {
        file: OsString,
        document: usize,
        warning: Invalid,
    },
    /// Objects of a kind that is not for us.
    IgnoredKind { file: OsString, kind: String },
    /// The same object twice.
    Duplicate {
        object: String,
        loser: OsString,
        winner: OsString,
    },
}

/// What stays in force of a broken file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Its last good version.
    LastGood,
    /// Its good documents.
    GoodDocuments,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kept::LastGood => "the file's last good version stays in force",
            Kept::GoodDocuments => "the rest of the file is used",
        })
    }
}

impl Report {
    /// Writes it to the log.
    pub(super) fn log(&self) {
        match self {
            Report::Mended { .. } | Report::IgnoredKind { .. } => info!("{self}"),
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
                kept,
            } => {
                write!(f, "{}: document {document}", show(file))?;
                if let Some(line) = line {
                    write!(f, ", line {line}")?;
                }
                write!(f, ": {reason}; {kept}")
            }
            Report::Unreadable { file, reason, kept } => {
                write!(f, "{}: {reason}", show(file))?;
                match kept {
                    Kept::LastGood => write!(f, "; {kept}"),
                    Kept::GoodDocuments => write!(f, "; nothing of it is used"),
                }
            }
            Report::Mended { file } => write!(f, "{}: good again", show(file)),
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
                "{}: {kind} is ignored: a service proxy reads v1 Service, v1 Node and \
                 discovery.k8s.io/v1 EndpointSlice",
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
