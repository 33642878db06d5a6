//! Objects from a folder of manifests.
//!
//! Reads every `*.yaml`, `*.yml` and `*.json` of the folder and follows what
//! changes. Hidden files and folders are skipped, links are followed, so a
//! mounted ConfigMap works as it is. `documents` cuts a file, `parse`
//! reads its objects, `folder` decides what is in force: these know no file
//! system. `disk` reads, `notify` hears; this file brings them together.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, time::timeout};
use tracing::{info, warn};

use self::{
    disk::{Focus, Look, Stamps},
    folder::{Folder, Found},
    notify::{Heard, Notify},
};
use crate::services::Batch;

mod disk;
mod documents;
mod folder;
mod notify;
mod parse;
mod report;

/// A burst is over when nothing was heard for this long ...
const QUIET: Duration = Duration::from_millis(20);
/// ... and is not waited out for longer than this.
const LONGEST_BURST: Duration = Duration::from_millis(200);
/// A file whose writer neither writes on nor closes it is read after this.
const WRITER_STALLS: Duration = Duration::from_secs(2);
/// How often to look without having heard anything: for network file systems
/// and links to elsewhere, of whose changes the kernel does not tell.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
/// The same where the kernel has no inotify to spare.
const LOOK_WITHOUT_NOTIFY: Duration = Duration::from_secs(1);
/// How often to look again while files change under our eyes.
const LOOKS_AT_MOST: usize = 10;

/// Follows the folder `dir` in a task of its own, on the Tokio runtime that
/// this is called in.
///
/// The first batch is everything that the folder holds, empty if that is
/// nothing; each later one is what became different, all at once: nobody sees
/// half of a file's change. What is wrong with a file is logged once. A folder
/// that does not exist is waited for; if it goes away, what it last held stays
/// in force. The task ends when the receiver is dropped.
pub fn spawn(dir: impl Into<PathBuf>) -> mpsc::Receiver<Batch> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(follow(dir.into(), sender, LOOK_ANYWAY));
    receiver
}

async fn follow(dir: PathBuf, sender: mpsc::Sender<Batch>, look_anyway: Duration) {
    let mut ears = Ears::open(&dir, look_anyway);
    let mut eyes = Eyes::new(dir);
    let mut first = true;
    loop {
        let batch = eyes.look(&mut ears).await;
        if (first || !batch.events.is_empty()) && sender.send(batch).await.is_err() {
            return;
        }
        first = false;
        tokio::select! {
            () = ears.wait() => {}
            () = sender.closed() => return,
        }
    }
}

/// What is known of the folder's files.
struct Eyes {
    dir: PathBuf,
    folder: Folder,
    stamps: Stamps,
    /// Why the folder could not be looked at, as it was last said.
    blind: Option<String>,
}

impl Eyes {
    fn new(dir: PathBuf) -> Eyes {
        Eyes {
            dir,
            folder: Folder::default(),
            stamps: Stamps::new(),
            blind: None,
        }
    }

    /// Reads what changed, when it has come to rest.
    async fn look(&mut self, ears: &mut Ears) -> Batch {
        for left in (0..LOOKS_AT_MOST).rev() {
            ears.arm();
            let looked = self.look_once(ears).await;
            // What was heard meanwhile may be about what was just read.
            let disturbed = ears.hear();
            let look = match looked {
                Ok(look) => look,
                Err(error) => {
                    self.say_blind(&error);
                    ears.heard.look = false;
                    return Batch::default();
                }
            };
            if (look.unsettled || disturbed) && left > 0 {
                ears.settle().await;
                continue;
            }
            return self.take(look, ears);
        }
        Batch::default()
    }

    async fn look_once(&self, ears: &Ears) -> io::Result<Look> {
        let dir = self.dir.clone();
        let focus = Focus {
            stamps: if ears.heard.lost {
                Stamps::new()
            } else {
                self.stamps.clone()
            },
            touched: ears.heard.touched.clone(),
            busy: ears.busy(),
        };
        tokio::task::spawn_blocking(move || disk::look(&dir, focus))
            .await
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }

    fn take(&mut self, look: Look, ears: &mut Ears) -> Batch {
        if self.blind.take().is_some() {
            info!("{}: can be read now", self.dir.display());
        }
        let mut found = look.found;
        for name in self.folder.files() {
            let left_alone = look.stamps.contains_key(name) || look.busy.contains(name);
            if !left_alone && !found.contains_key(name) {
                found.insert(name.clone(), Found::Gone);
            }
        }
        self.stamps = look.stamps;
        ears.forget();
        let outcome = self.folder.take(found);
        for report in outcome.reports {
            report.log();
        }
        Batch {
            events: outcome.events,
        }
    }

    fn say_blind(&mut self, error: &io::Error) {
        let reason = error.to_string();
        if self.blind.as_ref() == Some(&reason) {
            return;
        }
        let dir = self.dir.display();
        if error.kind() == io::ErrorKind::NotFound {
            warn!("{dir} does not exist: waiting for it; what it last held stays in force");
        } else {
            warn!("{dir} cannot be read: {reason}; what it last held stays in force");
        }
        self.blind = Some(reason);
    }
}

/// What the kernel tells of the folder, if it does.
struct Ears {
    notify: Option<Notify>,
    heard: Heard,
    look_anyway: Duration,
}

impl Ears {
    fn open(dir: &Path, look_anyway: Duration) -> Ears {
        let notify = Notify::open(dir).inspect_err(|error| {
            warn!(
                "{}: changes cannot be followed by inotify ({error}); looking every {} s instead",
                dir.display(),
                LOOK_WITHOUT_NOTIFY.as_secs()
            );
        });
        Ears {
            notify: notify.ok(),
            heard: Heard::default(),
            look_anyway,
        }
    }

    fn arm(&mut self) {
        if let Some(notify) = &mut self.notify
            && notify.arm()
        {
            // Another folder has the name now: nothing known of the files of
            // the old one says anything about those of the new one.
            self.heard.busy.clear();
        }
    }

    /// Waits until the folder should be looked at and has come to rest.
    async fn wait(&mut self) {
        let started = Instant::now();
        let pause = match self.notify {
            Some(_) => self.look_anyway,
            None => LOOK_WITHOUT_NOTIFY,
        };
        while !self.heard.look {
            let stalled = self.heard.busy.values().min().map(|at| *at + WRITER_STALLS);
            let until = stalled.map_or(started + pause, |at| at.min(started + pause));
            let left = until.saturating_duration_since(Instant::now());
            if timeout(left, self.listen()).await.is_err() {
                return;
            }
        }
        self.settle().await;
    }

    /// Lets a burst of changes pass.
    async fn settle(&mut self) {
        let started = Instant::now();
        while started.elapsed() < LONGEST_BURST {
            if timeout(QUIET, self.listen()).await.is_err() {
                return;
            }
        }
    }

    /// Waits until something is told.
    async fn listen(&mut self) {
        let Some(notify) = &self.notify else {
            return std::future::pending().await;
        };
        if let Err(error) = notify.listen(&mut self.heard).await {
            self.deaf(&error);
        }
    }

    /// Takes in what was told; says whether that concerned the folder.
    fn hear(&mut self) -> bool {
        let Some(notify) = &self.notify else {
            return false;
        };
        match notify.hear(&mut self.heard) {
            Ok(any) => any,
            Err(error) => {
                self.deaf(&error);
                false
            }
        }
    }

    fn deaf(&mut self, error: &io::Error) {
        warn!("inotify fails ({error}); looking at the folder regularly instead");
        self.notify = None;
        self.heard = Heard {
            look: true,
            ..Heard::default()
        };
    }

    /// Files that are being written by someone who still is at it.
    fn busy(&self) -> std::collections::BTreeSet<std::ffi::OsString> {
        let busy = self.heard.busy.iter();
        busy.filter(|(_, at)| at.elapsed() < WRITER_STALLS)
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Everything heard is dealt with, except that a file is being written.
    fn forget(&mut self) {
        let busy = self.busy();
        self.heard.look = false;
        self.heard.lost = false;
        self.heard.touched.clear();
        self.heard.busy.retain(|name, _| busy.contains(name));
    }
}

#[cfg(test)]
mod tests;
