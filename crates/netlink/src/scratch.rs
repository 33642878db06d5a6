//! A network namespace in which to try something without a change of the node.

use std::{future::Future, io, thread};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};
use tokio::sync::oneshot;

use super::{links, passing};
use crate::{Protocol, Socket};

/// Why there is no namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoScratch {
    /// None can be made here: it takes `CAP_SYS_ADMIN`, and a kernel that has
    /// them.
    #[error("cannot create a network namespace: {0}")]
    Impossible(Errno),
    /// None can be made now, for a temporary reason, such as a lack of memory or of processes.
    #[error("cannot create a network namespace at present: {0}")]
    ForNow(String),
}

impl From<io::Error> for NoScratch {
    fn from(error: io::Error) -> NoScratch {
        NoScratch::ForNow(error.to_string())
    }
}

/// Gives the calling thread a network namespace of its own, in which loopback is
/// up.
fn enter() -> Result<(), NoScratch> {
    // unshare(2) concerns this thread only.
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
        if passing::is_passing(errno) {
            NoScratch::ForNow(errno.desc().to_owned())
        } else {
            NoScratch::Impossible(errno)
        }
    })?;
    // Loopback is the first link of every namespace. If it cannot be set up, a trial that needs it
    // fails.
    let _ = Socket::open(Protocol::Route).and_then(|mut s| links::set_up(&mut s, 1));
    Ok(())
}

/// Runs `work` in a thread of its own with a network namespace of its own, in which
/// loopback is up; the namespace ends with the thread.
///
/// # Errors
/// When no namespace can be made.
pub fn in_scratch<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NoScratch> {
    thread::scope(|scope| {
        let inside = || enter().map(|()| work());
        let worker = thread::Builder::new().spawn_scoped(scope, inside)?;
        // A panic of the work is a fault of the program; it must not count as a
        // missing ability.
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does the same as [`in_scratch`] for a future.
///
/// # Errors
/// When no namespace can be made.
pub async fn awaited<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, NoScratch>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let inside = move || {
        enter()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(work()))
    };
    let (sender, receiver) = oneshot::channel();
    thread::Builder::new().spawn(move || sender.send(inside()))?;
    let ended = |_| NoScratch::ForNow("the test did not complete".to_owned());
    receiver.await.map_err(ended)?
}
