//! Waits until somebody changes the configuration file.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    path::PathBuf,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};
use tokio::io::{Interest, unix::AsyncFd};

/// A configuration file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it said.
    pub text: String,
}

/// Ends when the file is written to or renamed, or says something else already
/// than what was read; the program should then end with an error, so that its
/// keeper starts it with what the file says now.
///
/// As for kube-proxy (`Options.eventHandler` of
/// `cmd/kube-proxy/app/options.go`), it is the file that counts, not the name:
/// where a link leads to it, as in a ConfigMap volume, an update puts another
/// file in its place and does not end the program, so that a changed ConfigMap
/// does not restart the proxies of all nodes at once.
///
/// # Errors
/// When the file cannot be watched.
pub async fn watch_file(file: &ConfigFile) -> io::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let changes = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVE_SELF;
    inotify.add_watch(&file.path, changes)?;
    if std::fs::read(&file.path)? != file.text.as_bytes() {
        return Ok(());
    }
    // SAFETY: the door owns the descriptor, never closes or replaces it while
    // it lives, and always gives the same one.
    let inotify = unsafe { AsyncFd::register_with_interest(Door(inotify), Interest::READABLE) }?;
    loop {
        let mut ready = inotify.readable().await?;
        match ready.get_inner().0.read_events() {
            Ok(events) => {
                // Without being asked, the kernel says IN_IGNORED when the file
                // is gone, and IN_Q_OVERFLOW when it could not say all.
                let changes = changes | AddWatchFlags::IN_Q_OVERFLOW;
                if events.iter().any(|event| event.mask.intersects(changes)) {
                    return Ok(());
                }
                tracing::info!(
                    file = %file.path.display(),
                    "the configuration file was replaced or removed; it is read again at the next start"
                );
            }
            Err(Errno::EAGAIN) => ready.clear_ready(),
            Err(errno) => return Err(errno.into()),
        }
    }
}

struct Door(Inotify);

impl AsRawFd for Door {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}
