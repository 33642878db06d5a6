//! Scans the folder when the watcher says so, and has changed files parsed.

use std::{collections::BTreeMap, ffi::OsString, io, sync::Arc};

use tracing::{info, warn};

use super::{
    disk::{self, Scan, Selection, Stamps},
    folder::{Folder, Found, Outcome},
    path::ManifestPath,
    watcher::{FolderWatcher, QUIET, ScanRequest},
};
use crate::{log_once::LogOnce, services::Batch, watch::SourceHealth};

/// The name of the folder in [`SourceHealth`].
const KIND: &str = "manifests";

/// Maximum number of scans of a folder that keeps being replaced, before a later attempt.
const MOST_SCANS: usize = 10;

/// The folder's files as they were last scanned.
pub(super) struct FolderScanner {
    path: ManifestPath,
    folder: Folder,
    stamps: Stamps,
    /// Why the folder could not be scanned.
    scan_error: LogOnce,
    health: Arc<SourceHealth>,
}

impl FolderScanner {
    pub(super) fn new(path: ManifestPath, health: Arc<SourceHealth>) -> FolderScanner {
        health.begins(KIND, true);
        FolderScanner {
            health,
            path,
            folder: Folder::default(),
            stamps: Stamps::new(),
            scan_error: LogOnce::default(),
        }
    }

    /// Scans the folder and returns the changes in the files that are not being written; `None` if
    /// it could not be scanned.
    pub(super) async fn scan(&mut self, watcher: &mut FolderWatcher) -> Option<Batch> {
        for left in (0..MOST_SCANS).rev() {
            watcher.arm();
            let request = watcher.begin_scan();
            let scan = match self.scan_once(&request).await {
                Ok(scan) => scan,
                Err(error) => {
                    self.log_scan_error(&error);
                    watcher.put_back(request);
                    return None;
                }
            };
            // The kernel makes a write visible before it notifies of it, so a read text counts only
            // if no notification follows for a while.
            if !scan.found.is_empty() {
                watcher.listen_for(QUIET).await;
            }
            if watcher.notifications.folder_changed && left > 0 {
                watcher.put_back(request);
                watcher.settle().await;
                continue;
            }
            return Some(self.take(scan, watcher).await);
        }
        None
    }

    async fn scan_once(&self, request: &ScanRequest) -> io::Result<Scan> {
        let path = self.path.clone();
        let selection = Selection {
            stamps: if request.events_lost {
                Stamps::new()
            } else {
                self.stamps.clone()
            },
            dirty: request.dirty.clone(),
            being_written: request.being_written.clone(),
        };
        tokio::task::spawn_blocking(move || disk::scan(&path, selection))
            .await
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }

    async fn take(&mut self, mut scan: Scan, watcher: &mut FolderWatcher) -> Batch {
        if self.scan_error.end() {
            info!("{}: can be read now", self.path);
        }
        // A file that is being written counts as unchanged until the writing is over.
        let changed_while_read = std::mem::take(&mut scan.changed_while_read);
        for name in changed_while_read
            .iter()
            .chain(&watcher.notifications.written)
        {
            if scan.found.remove(name).is_none() {
                continue;
            }
            match self.stamps.get(name) {
                Some(stamp) => scan.stamps.insert(name.clone(), *stamp),
                None => scan.stamps.remove(name),
            };
            scan.being_written.insert(name.clone());
            if !watcher.notifications.being_written.contains_key(name) {
                watcher.notifications.dirty.insert(name.clone());
                watcher.notifications.scan_due = true;
            }
        }
        let mut found = scan.found;
        for name in self.folder.files() {
            let unchanged = scan.stamps.contains_key(name) || scan.being_written.contains(name);
            if !unchanged && !found.contains_key(name) {
                found.insert(name.clone(), Found::Gone);
            }
        }
        self.stamps = scan.stamps;
        let outcome = self.parse(found).await;
        for report in outcome.reports {
            report.log();
        }
        self.health.is_complete(KIND);
        self.health.works(KIND);
        let faults = self.folder.faults().map(String::as_str);
        self.health.has_faults(KIND, faults);
        outcome.events
    }

    /// Parses the results in a separate thread: thousands of objects take a while, and probes are
    /// answered on this one.
    async fn parse(&mut self, found: BTreeMap<OsString, Found>) -> Outcome {
        if found.is_empty() {
            return Outcome::default();
        }
        let mut folder = std::mem::take(&mut self.folder);
        let parsing = tokio::task::spawn_blocking(move || {
            let outcome = folder.take(found);
            (folder, outcome)
        });
        match parsing.await {
            Ok((folder, outcome)) => {
                self.folder = folder;
                outcome
            }
            Err(stopped) => match stopped.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The program is shutting down.
                Err(_) => Outcome::default(),
            },
        }
    }

    fn log_scan_error(&mut self, error: &io::Error) {
        let reason = error.to_string();
        self.health.fails(KIND, format!("{}: {reason}", self.path));
        if !self.scan_error.differs(&reason) {
            return;
        }
        let path = &self.path;
        if error.kind() == io::ErrorKind::NotFound {
            warn!("{path} does not exist: waiting for it; its last content stays applied");
        } else {
            warn!("{path} cannot be read: {reason}; its last content stays applied");
        }
    }
}
