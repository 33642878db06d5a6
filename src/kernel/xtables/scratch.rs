//! A network namespace that exists while something is tried in it: what is done
//! there changes nothing on the node.

use nix::sched::{CloneFlags, unshare};
use tokio::sync::oneshot;

/// Runs `work` on a thread in a network namespace of its own; `None` where
/// there is none to be had, which takes CAP_SYS_ADMIN.
pub(super) async fn run<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Option<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let (send, receive) = oneshot::channel();
    let thread = std::thread::Builder::new().name("scratch".to_owned());
    let body = move || {
        // Of this thread only, which ends with it; see unshare(2).
        let entered = unshare(CloneFlags::CLONE_NEWNET);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        if let (Ok(()), Ok(runtime)) = (entered, runtime) {
            // Nobody waits any more if that fails.
            let _ = send.send(runtime.block_on(work()));
        }
    };
    thread.spawn(body).ok()?;
    receive.await.ok()
}
