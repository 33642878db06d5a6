//! inotify(7) within a tokio runtime.

use std::{
    io,
    ops::Deref,
    os::fd::{AsFd, AsRawFd, RawFd},
};

use nix::sys::inotify::{InitFlags, Inotify};
use tokio::io::{Interest, unix::AsyncFd};

/// An inotify instance for tokio's `AsyncFd`.
pub struct Instance(Inotify);

impl Deref for Instance {
    type Target = Inotify;

    fn deref(&self) -> &Inotify {
        &self.0
    }
}

impl AsRawFd for Instance {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Opens an instance, which watches nothing yet. Must be called within a tokio
/// runtime.
///
/// # Errors
/// Those of inotify_init1(2): `EMFILE` beyond the user's
/// `fs.inotify.max_user_instances`.
pub fn open() -> io::Result<AsyncFd<Instance>> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    // SAFETY: the instance owns the descriptor, never closes or replaces it
    // while it lives, and always gives the same one.
    Ok(unsafe { AsyncFd::register_with_interest(Instance(inotify), Interest::READABLE) }?)
}
