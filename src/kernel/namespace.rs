//! Network namespaces for tests against the real kernel.

use nix::sched::{CloneFlags, unshare};

/// Runs `test` in a thread with a network namespace of its own, in which the
/// loopback interface is up. A namespace needs root; `make test` has it, so
/// that under CI it is an error to be without.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => {
            ip("link set lo up");
            test();
        }
        Err(error) => assert!(
            std::env::var_os("CI").is_none(),
            "no network namespace: {error}"
        ),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Runs `ip` with these arguments in the thread's namespace.
pub(crate) fn ip(args: &str) {
    let status = std::process::Command::new("ip")
        .args(args.split_whitespace())
        .status()
        .expect("iproute2 is installed");
    assert!(status.success(), "ip {args}");
}
