//! Hears from the kernel when something in the folder may have changed
//! (inotify(7)).

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use nix::sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use super::disk::is_manifest;
use crate::kernel::inotify::{self, Door};

/// Follows a folder, also while it does not exist or is replaced.
pub(super) struct Notify {
    inotify: AsyncFd<Door>,
    dir: PathBuf,
    dir_watch: Option<WatchDescriptor>,
    /// The nearest existing folder above, where `dir` would appear.
    above_watch: Option<WatchDescriptor>,
}

/// What was heard and is not yet dealt with.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The folder is to be looked at.
    pub(super) look: bool,
    /// Events were lost: no stamp can be trusted.
    pub(super) lost: bool,
    /// Files that may have changed even if their stamp has not.
    pub(super) touched: BTreeSet<OsString>,
    /// Files that are being written, and when that was last heard.
    pub(super) busy: BTreeMap<OsString, Instant>,
    /// Files that were written to since the latest look began.
    pub(super) written: BTreeSet<OsString>,
    /// More than single files changed since the latest look began.
    pub(super) upheaval: bool,
}

impl Notify {
    pub(super) fn open(dir: &Path) -> io::Result<Notify> {
        let mut notify = Notify {
            inotify: inotify::open()?,
            dir: dir.to_owned(),
            dir_watch: None,
            above_watch: None,
        };
        notify.arm();
        Ok(notify)
    }

    /// Watches the folder as it is now. Says whether it is another one than
    /// before. Watching what is already watched costs a system call.
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
        let above = self.dir.ancestors().skip(1).find_map(|above| {
            // The parent of a bare relative name is written as nothing.
            let above = if above.as_os_str().is_empty() {
                Path::new(".")
            } else {
                above
            };
            inotify.add_watch(above, place).ok()
        });
        // The folder comes last: adding a watch replaces that of the same
        // folder under another name, and this one asks for more.
        let dir = inotify.add_watch(&self.dir, content).ok();
        let moved = self.dir_watch != dir;
        for (old, new) in [(self.dir_watch, dir), (self.above_watch, above)] {
            if let Some(old) = old
                && Some(old) != new
                && Some(old) != dir
                && Some(old) != above
            {
                // Fails where the folder is gone, and its watch with it.
                let _ = inotify.rm_watch(old);
            }
        }
        self.dir_watch = dir;
        self.above_watch = above;
        moved
    }

    /// Waits until something can be heard and takes it into `heard`.
    pub(super) async fn listen(&self, heard: &mut Heard) -> io::Result<()> {
        loop {
            let mut guard = self.inotify.readable().await?;
            if let Ok(events) = guard.try_io(|door| Ok(door.get_ref().read_events()?)) {
                for event in events? {
                    self.sort(event, heard);
                }
                return Ok(());
            }
        }
    }

    fn sort(&self, event: InotifyEvent, heard: &mut Heard) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            heard.lost = true;
            heard.look = true;
            heard.upheaval = true;
            heard.busy.clear();
            return;
        }
        let from_dir = Some(event.wd) == self.dir_watch;
        let from_above = Some(event.wd) == self.above_watch;
        let Some(name) = event.name else {
            // The folder itself went, moved or changed its rights.
            heard.look |= from_dir;
            heard.upheaval |= from_dir;
            return;
        };
        if from_above && self.dir.iter().any(|part| part == name) {
            heard.look = true;
            heard.upheaval = true;
        }
        if !from_dir {
            return;
        }
        if !is_manifest(&name) {
            // ConfigMap volumes change all files at once by renaming `..data`.
            let swapped = name.as_encoded_bytes().starts_with(b"..");
            heard.look |= swapped;
            heard.upheaval |= swapped;
            return;
        }
        if event
            .mask
            .intersects(AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE)
        {
            heard.written.insert(name.clone());
        }
        if event.mask.contains(AddWatchFlags::IN_MODIFY) {
            heard.busy.insert(name, Instant::now());
        } else {
            if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                heard.busy.remove(&name);
            }
            heard.touched.insert(name);
            heard.look = true;
        }
    }
}
