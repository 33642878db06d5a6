//! Somewhere to try things where nobody is disturbed.

use std::thread;

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};

use crate::kernel::{
    links,
    netlink::{Protocol, Socket},
};

/// Why there is no such place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoScratch(pub Errno);

/// Runs `work` in a thread of its own with a network namespace of its own, in
/// which loopback is up; the namespace goes with the thread.
///
/// # Errors
/// When no namespace can be made: it takes `CAP_SYS_ADMIN`.
pub(super) fn in_scratch<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, NoScratch> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(NoScratch)?;
            // Loopback is the first link of every namespace. If it cannot be
            // set up, what needs it says so.
            let _ = Socket::open(Protocol::Route).and_then(|mut s| links::set_up(&mut s, 1));
            Ok(work())
        });
        // A panic of the work is a fault of ours; it must not pass for a lack.
        worker
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
