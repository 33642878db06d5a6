//! Waits until a scan of the folder is due.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    io,
    time::{Duration, Instant},
};

use tokio::time::timeout;
use tracing::{info, warn};

use super::{
    notify::{Notifications, Notify},
    path::ManifestPath,
};
use crate::log_once::LogOnce;

/// A burst is over after this time without a notification.
pub(super) const QUIET: Duration = Duration::from_millis(20);
/// Maximum time for which the end of a burst is awaited.
const LONGEST_BURST: Duration = Duration::from_millis(200);
/// Time after which a file is read although its writer neither continues nor closes it.
const WRITER_STALLS: Duration = Duration::from_secs(2);
/// Time between two scans if the kernel has no inotify instance, or watch, to spare.
const SCAN_PERIOD_WITHOUT_INOTIFY: Duration = Duration::from_secs(1);

/// The kernel's notifications about the folder, if inotify works.
pub(super) struct FolderWatcher {
    notify: Option<Notify>,
    pub(super) notifications: Notifications,
    scan_period: Duration,
    path: ManifestPath,
    /// Why the folder cannot be watched.
    refused: LogOnce,
}

impl FolderWatcher {
    pub(super) fn open(path: &ManifestPath, scan_period: Duration) -> FolderWatcher {
        let mut watcher = FolderWatcher {
            notify: None,
            notifications: Notifications::default(),
            scan_period,
            path: path.clone(),
            refused: LogOnce::default(),
        };
        match Notify::open(path) {
            Ok(notify) => watcher.notify = Some(notify),
            Err(error) => watcher.report_refused(&error),
        }
        watcher
    }

    fn report_refused(&mut self, error: &io::Error) {
        if self.refused.differs(&error.to_string()) {
            warn!(
                "{}: changes cannot be followed by inotify ({error}); scanning every {} s instead; \
                 raise fs.inotify.max_user_instances or max_user_watches if they are used up",
                self.path,
                SCAN_PERIOD_WITHOUT_INOTIFY.as_secs()
            );
        }
    }

    pub(super) fn arm(&mut self) {
        let Some(notify) = &mut self.notify else {
            return;
        };
        if notify.arm() {
            // Another folder has the name now: facts about the files of the old one do not hold for
            // those of the new one.
            self.notifications.being_written.clear();
        }
        match notify.refused {
            Some(errno) => self.report_refused(&errno.into()),
            None if self.refused.end() => {
                info!("{}: changes are followed by inotify again", self.path);
            }
            None => {}
        }
    }

    /// Waits until a scan is due and the current burst of changes is over.
    pub(super) async fn wait(&mut self) {
        let started = Instant::now();
        let pause = match &self.notify {
            Some(notify) if notify.refused.is_none() => self.scan_period,
            _ => SCAN_PERIOD_WITHOUT_INOTIFY,
        };
        while !self.notifications.scan_due {
            let stalled = self
                .notifications
                .being_written
                .values()
                .min()
                .map(|at| *at + WRITER_STALLS);
            let until = stalled.map_or(started + pause, |at| at.min(started + pause));
            let left = until.saturating_duration_since(Instant::now());
            if timeout(left, self.listen()).await.is_err() {
                return;
            }
        }
        self.settle().await;
    }

    /// Waits until a burst of changes is over.
    pub(super) async fn settle(&mut self) {
        let started = Instant::now();
        while started.elapsed() < LONGEST_BURST {
            if timeout(QUIET, self.listen()).await.is_err() {
                return;
            }
        }
    }

    /// Receives notifications for this long.
    pub(super) async fn listen_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let left = || until.saturating_duration_since(Instant::now());
        while timeout(left(), self.listen()).await.is_ok() && !left().is_zero() {}
    }

    /// Waits for the next notification.
    async fn listen(&mut self) {
        let Some(notify) = &self.notify else {
            return std::future::pending().await;
        };
        if let Err(error) = notify.listen(&mut self.notifications).await {
            self.watch_failed(&error);
        }
    }

    fn watch_failed(&mut self, error: &io::Error) {
        warn!(
            "inotify fails ({error}); scanning the folder regularly instead, until Tripod is \
             restarted"
        );
        self.notify = None;
        self.notifications = Notifications {
            scan_due: true,
            ..Notifications::default()
        };
    }

    /// Takes the changes that a scan must handle; later notifications are newer than the scan.
    pub(super) fn begin_scan(&mut self) -> ScanRequest {
        let notifications = &mut self.notifications;
        notifications
            .being_written
            .retain(|_, at| at.elapsed() < WRITER_STALLS);
        notifications.written.clear();
        notifications.folder_changed = false;
        notifications.scan_due = false;
        ScanRequest {
            events_lost: std::mem::take(&mut notifications.events_lost),
            dirty: std::mem::take(&mut notifications.dirty),
            being_written: notifications.being_written.keys().cloned().collect(),
        }
    }

    /// Undoes [`FolderWatcher::begin_scan`] after a failed scan: the next one must handle the same
    /// changes.
    pub(super) fn put_back(&mut self, request: ScanRequest) {
        self.notifications.events_lost |= request.events_lost;
        self.notifications.dirty.extend(request.dirty);
    }
}

/// The changes that a scan of the folder must handle.
pub(super) struct ScanRequest {
    pub(super) events_lost: bool,
    pub(super) dirty: BTreeSet<OsString>,
    /// Files that are still being written.
    pub(super) being_written: BTreeSet<OsString>,
}
