//! Objects from a folder of manifests.
//!
//! Reads every `*.yaml`, `*.yml` and `*.json` of the folder and follows what
//! changes. Hidden files and folders are skipped, links are followed, so a
//! mounted ConfigMap works as it is. `documents` splits a file, `parse` reads
//! its objects, `folder` decides what is in force: these use no file system.
//! `disk` reads files, `notify` receives inotify events; `watcher` decides when
//! to scan, and `scanner` scans.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::mpsc;

use self::{scanner::FolderScanner, watcher::FolderWatcher};
use super::SourceHealth;
use crate::services::Batch;

mod disk;
mod documents;
mod folder;
mod kind;
mod notify;
mod object;
mod parse;
mod report;
mod scanner;
mod version;
mod versions;
mod watcher;

/// Time between two scans without any notification: for network file systems
/// and links to elsewhere, of whose changes the kernel does not notify.
const SCAN_PERIOD: Duration = Duration::from_secs(10);

/// Follows the folder `dir` in a task of its own, on the Tokio runtime that
/// this is called in.
///
/// The first batch is everything in the folder, empty if that is nothing, as soon as the folder
/// can be read: until then it is not known what is to be served. Each later one is what changed,
/// all at once, so that no reader sees half of a file's change. What is wrong with a file is logged once. A folder that does
/// not exist is waited for; if it goes away, its last content stays in force.
/// The task ends when the receiver is dropped.
pub fn spawn(dir: impl Into<PathBuf>) -> mpsc::Receiver<Batch> {
    spawn_with(dir, Arc::default())
}

/// As [`spawn`]; how it goes is recorded in `health`.
pub(super) fn spawn_with(
    dir: impl Into<PathBuf>,
    health: Arc<SourceHealth>,
) -> mpsc::Receiver<Batch> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(follow(dir.into(), sender, SCAN_PERIOD, health));
    receiver
}

/// Reads the folder once. Returns its objects, and why some of them cannot be used.
pub async fn read(dir: impl Into<PathBuf>) -> (Batch, Vec<String>) {
    let health = Arc::<SourceHealth>::default();
    let batch = spawn_with(dir, Arc::clone(&health)).recv().await;
    let faults = health.kinds().into_values().flat_map(|kind| kind.faults);
    (batch.unwrap_or_default(), faults.collect())
}

async fn follow(
    dir: PathBuf,
    sender: mpsc::Sender<Batch>,
    scan_period: Duration,
    health: Arc<SourceHealth>,
) {
    let mut watcher = FolderWatcher::open(&dir, scan_period);
    let mut scanner = FolderScanner::new(dir, health);
    let mut first = true;
    loop {
        if let Some(batch) = scanner.scan(&mut watcher).await {
            if (first || !batch.events.is_empty()) && sender.send(batch).await.is_err() {
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

/// Returns the objects of a file with this name and text; for tests with text from
/// anywhere.
#[cfg(any(test, fuzzing))]
pub fn read_anything(name: &str, text: &str) -> Vec<crate::services::Event> {
    let found = folder::Found::Text(text.to_owned());
    folder::Folder::default()
        .take([(name.into(), found)])
        .events
}

#[cfg(test)]
mod tests;
