//! A network namespace that exists while something is tried in it: what is done
//! there changes nothing on the node.

use std::thread;

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};

use super::{
    links,
    netlink::{Protocol, Socket},
};

/// Runs `work` in a thread of its own with a network namespace of its own, in
/// which loopback is up; the namespace goes with the thread.
///
/// # Errors
/// When no namespace can be made: it takes `CAP_SYS_ADMIN`.
pub(super) fn in_scratch<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, Errno> {
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            // Of this thread only; see unshare(2).
            unshare(CloneFlags::CLONE_NEWNET)?;
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

/// As [`in_scratch`], for what is waited for; `None` where there is no namespace
/// to be had.
pub(super) async fn awaited<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let inside = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        Some(runtime.block_on(work()))
    };
    let done = tokio::task::spawn_blocking(move || in_scratch(inside)).await;
    done.ok()?.ok()?
}
