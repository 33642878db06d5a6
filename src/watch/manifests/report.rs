//! Reports for the author of the folder, each logged once.

use std::{ffi::OsString, fmt, path::Path};

use tracing::{info, warn};

/// A report about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// A document cannot be parsed or used.
    Broken {
        file: OsString,
        document: usize,
        line: Option<usize>,
        reason: String,
    },
    /// The whole file cannot be read.
    Unreadable {
        file: OsString,
        reason: String,
        /// Whether its previous objects stay in use.
        stays: bool,
    },
    /// Objects are kept because their new versions are broken.
    Stays { file: OsString, objects: String },
    /// Objects that the file no longer has are kept, because a part of it that names no object
    /// cannot be parsed.
    NotRemoved { file: OsString, objects: String },
    /// Objects that had been kept follow the file again.
    Over { file: OsString, objects: String },
    /// A file that was broken is good again.
    GoodAgain { file: OsString },
    /// A value of an otherwise good object is left out.
    Skipped {
        file: OsString,
        document: usize,
        warning: String,
    },
    /// Objects of a kind that a service proxy does not use.
    IgnoredKind { file: OsString, kind: String },
    /// A file has the same object more than once.
    Repeated {
        file: OsString,
        object: String,
        times: usize,
    },
    /// Two files have the same object.
    Duplicate {
        object: String,
        loser: OsString,
        winner: OsString,
    },
}

/// Maximum number of names in a report.
const NAMED: usize = 5;

/// Lists the first of these names, and counts the others; `None` if there are none.
pub(super) fn first_of(names: impl IntoIterator<Item = impl fmt::Display>) -> Option<String> {
    let mut names = names.into_iter();
    let named: Vec<String> = names
        .by_ref()
        .take(NAMED)
        .map(|name| name.to_string())
        .collect();
    if named.is_empty() {
        return None;
    }
    let named = named.join(", ");
    Some(match names.count() {
        0 => named,
        more => format!("{named} and {more} more"),
    })
}

impl Report {
    /// Describes the fault of the file, if it has one.
    pub(super) fn fault(&self) -> Option<String> {
        let is_fault = matches!(self, Report::Broken { .. } | Report::Unreadable { .. });
        is_fault.then(|| self.to_string())
    }

    /// Writes the report to the log.
    pub(super) fn log(&self) {
        match self {
            Report::Over { .. } | Report::GoodAgain { .. } | Report::IgnoredKind { .. } => {
                info!("{self}");
            }
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
            } => {
                write!(f, "{}: document {document}", show(file))?;
                if let Some(line) = line {
                    write!(f, ", line {line}")?;
                }
                write!(f, ": {reason}; the rest of the file is used")
            }
            Report::Unreadable {
                file,
                reason,
                stays,
            } => {
                let what = if *stays {
                    "its last content stays applied"
                } else {
                    "it is not used"
                };
                write!(f, "{}: {reason}; {what}", show(file))
            }
            Report::Stays { file, objects } => write!(
                f,
                "{}: these objects stay at their last valid version until the invalid part is \
                 corrected or removed: {objects}",
                show(file)
            ),
            Report::NotRemoved { file, objects } => write!(
                f,
                "{}: part of the file cannot be read and may contain these objects, which are not \
                 removed until it is corrected: {objects}",
                show(file)
            ),
            Report::Over { file, objects } => {
                write!(f, "{}: up to date again: {objects}", show(file))
            }
            Report::GoodAgain { file } => {
                write!(f, "{}: valid again; all of it is used", show(file))
            }
            Report::Repeated {
                file,
                object,
                times,
            } => write!(
                f,
                "{}: {object} is defined {times} times; the last definition is used",
                show(file)
            ),
            Report::Skipped {
                file,
                document,
                warning,
            } => write!(
                f,
                "{}: document {document}: {warning}; ignoring this value",
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
            } => write!(
                f,
                "{object} is in {} and in {}: the latter is used, because its file name sorts last",
                show(loser),
                show(winner)
            ),
        }
    }
}

fn show(file: &OsString) -> std::path::Display<'_> {
    Path::new(file).display()
}
