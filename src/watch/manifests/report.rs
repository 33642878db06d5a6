//! Reports for the author of the folder, each logged once.

use std::{ffi::OsStr, fmt};

use tracing::{info, warn};

use crate::listing;

/// A report about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) level: Level,
    pub(super) text: String,
}

/// How serious a report is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// A part of the file, or all of it, cannot be used.
    Fault,
    Warning,
    Info,
}

/// Maximum number of names in a report.
const NAMED: usize = 5;

/// Lists the first of these names, and counts the others; `None` if there are none.
pub(super) fn first_of(names: impl IntoIterator<Item = impl fmt::Display>) -> Option<String> {
    Some(listing::first_of(names, NAMED)).filter(|listed| !listed.is_empty())
}

impl Report {
    pub(super) fn new(level: Level, file: &OsStr, text: impl fmt::Display) -> Report {
        let text = format!("{}: {text}", file.display());
        Report { level, text }
    }

    /// Writes the report to the log.
    pub(super) fn log(&self) {
        match self.level {
            Level::Info => info!("{}", self.text),
            Level::Fault | Level::Warning => warn!("{}", self.text),
        }
    }
}
