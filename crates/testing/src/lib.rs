#![doc = include_str!("../README.md")]

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard},
};

use caps::{CapSet, Capability};
use nix::sched::{CloneFlags, unshare};

mod random;
mod skip;

pub use self::{
    random::Random,
    skip::{print_uncaptured, skip, test_name},
};

/// Returns whether the user is root. If not, prints that `what` needs root; the caller must skip
/// the test.
pub fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip(format!("{what} (run as root)"));
    }
    root
}

/// Runs `test` in a thread with a network namespace of its own, in which the
/// loopback interface is up. That takes root: without, the test is skipped.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
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
pub fn block_on<T>(test: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(test)
}

/// Runs `script` in the thread's namespace, up to the first command that fails. Returns its output.
pub fn sh(script: &str) -> String {
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-ec", script]).output().expect("a shell");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `ip` with these arguments in the thread's namespace.
pub fn ip(args: &str) {
    let status = std::process::Command::new("ip")
        .args(args.split_whitespace())
        .status()
        .expect("iproute2 is installed");
    assert!(status.success(), "ip {args}");
}

/// Runs `test` while this thread lacks CAP_NET_ADMIN.
pub fn without_net_admin<T>(test: impl FnOnce() -> T) -> T {
    let (set, admin) = (CapSet::Effective, Capability::CAP_NET_ADMIN);
    caps::drop(None, set, admin).expect("given away for now");
    let tested = test();
    caps::raise(None, set, admin).expect("taken again");
    tested
}

/// Returns how many of `all` random cases or steps a test tries: all with `TRIPOD_ALL_CASES` set,
/// as `make test-all` does, otherwise a quarter.
pub fn cases(all: u32) -> u32 {
    match std::env::var_os("TRIPOD_ALL_CASES") {
        Some(_) => all,
        None => all.div_ceil(4),
    }
}

/// Returns the lines that `events` logs at level INFO and above.
pub fn logged(events: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, events);
    log.lines()
}

/// A log in memory; clones write to the same one.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Returns the lines written so far.
    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8(self.bytes().clone()).expect("a log is text");
        text.lines().map(str::to_owned).collect()
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().expect("no test panics while it logs")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
