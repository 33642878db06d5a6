//! Objects from a folder of manifests.
//!
//! Reads every `*.yaml`, `*.yml` and `*.json` of the folder and follows what
//! changes. Hidden files and folders are skipped, links are followed, so a
//! mounted ConfigMap works as it is. `documents` cuts a file, `parse`
//! reads its objects, `folder` decides what is in force: these know no file
//! system. `disk` reads, `notify` hears; this file brings them together.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, time::timeout};
use tracing::{info, warn};

use self::{
    disk::{Focus, Look, Stamps},
    folder::{Folder, Found, Outcome},
    notify::{Heard, Notify},
};
use crate::services::Batch;

mod claims;
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
/// How often to look again while the folder is turned over.
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

    /// Reads what changed, if it is at rest.
    async fn look(&mut self, ears: &mut Ears) -> Batch {
        for left in (0..LOOKS_AT_MOST).rev() {
            ears.arm();
            let asked = ears.begin_look();
            let look = match self.look_once(&asked).await {
                Ok(look) => look,
                Err(error) => {
                    self.say_blind(&error);
                    ears.put_back(asked);
                    return Batch::default();
                }
            };
            // The kernel shows a write before it tells of it, so what was read
            // counts only if nothing is told for a while.
            if !look.found.is_empty() {
                ears.pass(QUIET).await;
            }
            if ears.heard.upheaval && left > 0 {
                ears.put_back(asked);
                ears.settle().await;
                continue;
            }
            return self.take(look, ears).await;
        }
        Batch::default()
    }

    async fn look_once(&self, asked: &Asked) -> io::Result<Look> {
        let dir = self.dir.clone();
        let focus = Focus {
            stamps: if asked.lost {
                Stamps::new()
            } else {
                self.stamps.clone()
            },
            touched: asked.touched.clone(),
            busy: asked.busy.clone(),
        };
        tokio::task::spawn_blocking(move || disk::look(&dir, focus))
            .await
            .unwrap_or_else(|stopped| Err(io::Error::other(stopped)))
    }

    async fn take(&mut self, mut look: Look, ears: &mut Ears) -> Batch {
        if self.blind.take().is_some() {
            info!("{}: can be read now", self.dir.display());
        }
        // What is being written stays as it was until it is at rest.
        let unsettled = std::mem::take(&mut look.unsettled);
        for name in unsettled.iter().chain(&ears.heard.written) {
            if look.found.remove(name).is_none() {
                continue;
            }
            match self.stamps.get(name) {
                Some(stamp) => look.stamps.insert(name.clone(), *stamp),
                None => look.stamps.remove(name),
            };
            look.busy.insert(name.clone());
            if !ears.heard.busy.contains_key(name) {
                ears.heard.touched.insert(name.clone());
                ears.heard.look = true;
            }
        }
        let mut found = look.found;
        for name in self.folder.files() {
            let left_alone = look.stamps.contains_key(name) || look.busy.contains(name);
            if !left_alone && !found.contains_key(name) {
                found.insert(name.clone(), Found::Gone);
            }
        }
        self.stamps = look.stamps;
        let outcome = self.parse(found).await;
        for report in outcome.reports {
            report.log();
        }
        Batch {
            events: outcome.events,
        }
    }

    /// Takes in what was found, on a thread of its own: thousands of objects take
    /// a while, and probes are answered on this one.
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
                // The program ends.
                Err(_) => Outcome::default(),
            },
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

    /// Listens for this long.
    async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        let left = || until.saturating_duration_since(Instant::now());
        while timeout(left(), self.listen()).await.is_ok() && !left().is_zero() {}
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

    fn deaf(&mut self, error: &io::Error) {
        warn!("inotify fails ({error}); looking at the folder regularly instead");
        self.notify = None;
        self.heard = Heard {
            look: true,
            ..Heard::default()
        };
    }

    /// Takes the changes that a scan is to deal with; later notifications are
    /// newer than it.
    fn begin_look(&mut self) -> Asked {
        let heard = &mut self.heard;
        heard.busy.retain(|_, at| at.elapsed() < WRITER_STALLS);
        heard.written.clear();
        heard.upheaval = false;
        heard.look = false;
        Asked {
            lost: std::mem::take(&mut heard.lost),
            touched: std::mem::take(&mut heard.touched),
            busy: heard.busy.keys().cloned().collect(),
        }
    }

    /// The look came to nothing: the next one has the same to deal with.
    fn put_back(&mut self, asked: Asked) {
        self.heard.lost |= asked.lost;
        self.heard.touched.extend(asked.touched);
    }
}

/// What a look at the folder is to deal with.
struct Asked {
    lost: bool,
    touched: BTreeSet<OsString>,
    /// Files that are being written by someone who still is at it.
    busy: BTreeSet<OsString>,
}

#[cfg(test)]
mod tests;
