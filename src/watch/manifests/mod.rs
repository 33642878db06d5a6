//! Objects from a folder of manifests, or from a single file.
//!
//! Reads every `*.yaml`, `*.yml` and `*.json` of the folder, or only the named file, and follows
//! changes. Hidden files and folders are skipped, links are followed, so a mounted ConfigMap works
//! as it is. `path` resolves the given path, `documents` splits a file, `parse` reads its objects,
//! `folder` decides which are in use: these do not access the file system. `disk` reads files,
//! `notify` receives inotify events; `watcher` decides when to scan, and `scanner` scans.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::sync::mpsc;

use self::{path::ManifestPath, scanner::FolderScanner, watcher::FolderWatcher};
use super::SourceHealth;
use crate::services::Batch;

mod disk;
mod documents;
mod folder;
mod notify;
mod parse;
mod path;
mod report;
mod scanner;
mod version;
mod watcher;

/// Time between two scans without any notification: for network file systems and links to other
/// places, about whose changes the kernel does not notify.
const SCAN_PERIOD: Duration = Duration::from_secs(10);

/// Checks that `path` is a folder or a file that can be read now: later it is waited for.
///
/// # Errors
/// Says which path it is, and why it cannot be read.
pub fn check(path: &Path) -> Result<(), String> {
    let read = if path.is_dir() {
        fs::read_dir(path).map(drop)
    } else {
        fs::File::open(path).map(drop)
    };
    read.map_err(|error| {
        format!(
            "cannot read --manifests {}: {error}; give a folder or a file that exists",
            path.display()
        )
    })
}

/// Follows the folder or file `path` in a separate task, on the current Tokio runtime, records the
/// progress in `health`, and sends the batches to `batches`.
///
/// The first batch is everything in the folder, possibly nothing, as soon as the folder can be
/// read: before that, the desired state is unknown. Each later one contains changes, all at once,
/// so that no reader sees half of a file's change. Faults of a file are logged once. A missing
/// folder is waited for; if it is removed, its last content stays in use. The task ends when the
/// receiver is dropped.
pub fn spawn(path: impl Into<PathBuf>, health: Arc<SourceHealth>, batches: mpsc::Sender<Batch>) {
    tokio::spawn(follow(path.into(), batches, SCAN_PERIOD, health));
}

/// Reads the folder or file once. Returns its objects, and why some of them cannot be used.
pub async fn read(path: impl Into<PathBuf>) -> (Batch, Vec<String>) {
    let health = Arc::<SourceHealth>::default();
    let (sender, mut batches) = mpsc::channel(1);
    spawn(path, Arc::clone(&health), sender);
    let batch = batches.recv().await;
    let faults = health.kinds().into_values().flat_map(|kind| kind.faults);
    (batch.unwrap_or_default(), faults.collect())
}

async fn follow(
    path: PathBuf,
    sender: mpsc::Sender<Batch>,
    scan_period: Duration,
    health: Arc<SourceHealth>,
) {
    let path = ManifestPath::of(&path);
    let mut watcher = FolderWatcher::open(&path, scan_period);
    let mut scanner = FolderScanner::new(path, health);
    let mut first = true;
    loop {
        if let Some(batch) = scanner.scan(&mut watcher).await {
            if (first || !batch.is_empty()) && sender.send(batch).await.is_err() {
                return;
            }
            first = false;
        }
        tokio::select! {
            () = watcher.wait() => {}
            () = sender.closed() => return,
        }
    }
}

/// Reads the objects of a file with this name and text; for tests with arbitrary text.
#[cfg(any(test, fuzzing))]
pub fn read_anything(name: &str, text: &str) -> Vec<crate::services::Event> {
    let found = folder::Found::Text(text.to_owned());
    folder::Folder::default()
        .take([(name.into(), found)])
        .events
}

#[cfg(test)]
mod tests;
