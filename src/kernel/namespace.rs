//! Network namespaces for tests against the real kernel, and a message where
//! there can be none.

use caps::{CapSet, Capability};
use nix::sched::{CloneFlags, unshare};

#[path = "../../tests/lab/skip.rs"]
#[allow(dead_code, reason = "the suite of tests uses the rest of the file")]
mod skip;

pub(crate) use self::skip::skip;

/// Returns whether the user is root. If not, the test is to be skipped, which
/// is printed with `what` needs root.
pub(crate) fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip(format!("{what} (run as root)"));
    }
    root
}

/// Runs `test` in a thread with a network namespace of its own, in which the
/// loopback interface is up. That takes root: without, the test is skipped.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET)?;
        ip("link set lo up");
        test();
        nix::Result::Ok(())
    });
    match thread.join() {
        Ok(Ok(())) => {}
        Ok(Err(error)) => skip(format!(
            "network namespaces cannot be made here (run as root): {error}"
        )),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Runs `test` on a runtime of the calling thread.
pub(crate) fn block_on<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test)
}

/// Runs `script` in the thread's namespace; it ends with what first fails. Returns what
/// it prints.
pub(crate) fn sh(script: &str) -> String {
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-ec", script]).output().expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `ip` with these arguments in the thread's namespace.
pub(crate) fn ip(args: &str) {
    let status = std::process::Command::new("ip")
        .args(args.split_whitespace())
        .status()
        .expect("iproute2 is installed");
    assert!(status.success(), "ip {args}");
}

/// Runs `test` while this thread lacks CAP_NET_ADMIN.
pub(crate) fn without_net_admin<T>(test: impl FnOnce() -> T) -> T {
    let (set, admin) = (CapSet::Effective, Capability::CAP_NET_ADMIN);
    caps::drop(None, set, admin).expect("given away for now");
    let tested = test();
    caps::raise(None, set, admin).expect("taken again");
    tested
}
