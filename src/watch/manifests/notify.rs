//! Receives the kernel's notifications that something in the folder may have
//! changed (inotify(7)).

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    path::Path,
    time::Instant,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor},
};
use tokio::io::unix::AsyncFd;

use super::path::ManifestPath;
use crate::kernel::inotify::{self, Instance};

/// Watches a folder, even while it does not exist or is replaced.
pub(super) struct Notify {
    inotify: AsyncFd<Instance>,
    path: ManifestPath,
    dir_watch: Option<WatchDescriptor>,
    /// The nearest existing folder above, in which the folder would appear.
    above_watch: Option<WatchDescriptor>,
    /// Why the existing folder is not watched: a limit of the kernel.
    pub(super) refused: Option<Errno>,
}

/// Notifications that no scan has handled yet.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    /// Whether the folder must be scanned.
    pub(super) scan_due: bool,
    /// Whether inotify events were lost: then no stamp can be trusted.
    pub(super) events_lost: bool,
    /// Files that may have changed even if their stamp has not.
    pub(super) dirty: BTreeSet<OsString>,
    /// Files that are being written, each with the time of the last notification of that.
    pub(super) being_written: BTreeMap<OsString, Instant>,
    /// Files that were written to since the latest scan began.
    pub(super) written: BTreeSet<OsString>,
    /// Whether more than single files changed since the latest scan began.
    pub(super) folder_changed: bool,
}

impl Notify {
    pub(super) fn open(path: &ManifestPath) -> io::Result<Notify> {
        let mut notify = Notify {
            inotify: inotify::open()?,
            path: path.clone(),
            dir_watch: None,
            above_watch: None,
            refused: None,
        };
        notify.arm();
        Ok(notify)
    }

    /// Watches the folder that has the name now. Returns whether it is another one than before.
    /// Watching a watched folder again costs one system call.
    pub(super) fn arm(&mut self) -> bool {
        let inotify = self.inotify.get_ref();
        let place = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        let content = place
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        let above = self.path.dir.ancestors().skip(1).find_map(|above| {
            // The parent of a bare relative name is the empty path.
            let above = if above.as_os_str().is_empty() {
                Path::new(".")
            } else {
                above
            };
            inotify.add_watch(above, place).ok()
        });
        // The folder comes last: adding a watch replaces that of the same
        // folder under another name, and this one has more flags.
        let dir = inotify.add_watch(&self.path.dir, content);
        let is_limit = |errno: &Errno| matches!(errno, Errno::ENOSPC | Errno::ENOMEM);
        self.refused = dir.err().filter(is_limit);
        let dir = dir.ok();
        let moved = self.dir_watch != dir;
        for (old, new) in [(self.dir_watch, dir), (self.above_watch, above)] {
            if let Some(old) = old
                && Some(old) != new
                && Some(old) != dir
                && Some(old) != above
            {
                // Fails if the folder is gone, and its watch with it.
                let _ = inotify.rm_watch(old);
            }
        }
        self.dir_watch = dir;
        self.above_watch = above;
        moved
    }

    /// Waits for inotify events and records them in `notifications`.
    pub(super) async fn listen(&self, notifications: &mut Notifications) -> io::Result<()> {
        loop {
            let mut guard = self.inotify.readable().await?;
            if let Ok(events) = guard.try_io(|inotify| Ok(inotify.get_ref().read_events()?)) {
                for event in events? {
                    self.record(event, notifications);
                }
                return Ok(());
            }
        }
    }

    fn record(&self, event: InotifyEvent, notifications: &mut Notifications) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            notifications.events_lost = true;
            notifications.scan_due = true;
            notifications.folder_changed = true;
            notifications.being_written.clear();
            return;
        }
        let from_dir = Some(event.wd) == self.dir_watch;
        let from_above = Some(event.wd) == self.above_watch;
        let Some(name) = event.name else {
            // The folder itself was removed, moved or changed its permissions.
            notifications.scan_due |= from_dir;
            notifications.folder_changed |= from_dir;
            return;
        };
        if from_above && self.path.dir.iter().any(|part| part == name) {
            notifications.scan_due = true;
            notifications.folder_changed = true;
        }
        if !from_dir {
            return;
        }
        if !self.path.has(&name) {
            // ConfigMap volumes change all files at once by renaming `..data`.
            let swapped = name.as_encoded_bytes().starts_with(b"..");
            notifications.scan_due |= swapped;
            notifications.folder_changed |= swapped;
            return;
        }
        if event
            .mask
            .intersects(AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE)
        {
            notifications.written.insert(name.clone());
        }
        if event.mask.contains(AddWatchFlags::IN_MODIFY) {
            notifications.being_written.insert(name, Instant::now());
        } else {
            if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                notifications.being_written.remove(&name);
            }
            notifications.dirty.insert(name);
            notifications.scan_due = true;
        }
    }
}
