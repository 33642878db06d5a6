//! Reports tests that cannot run here, in one way.

use std::{cell::Cell, fmt::Display, io::Write};

/// Reports on stderr that the test of this thread does not run, and why:
/// `SKIP path::of::the_test: reason`, once for each test.
///
/// # Panics
/// If nothing may be skipped: with `CI=true`, or with `TRIPOD_NO_SKIP` set.
pub fn skip(reason: impl Display) {
    let test = test_name();
    let strict = std::env::var("CI").is_ok_and(|value| value == "true")
        || std::env::var_os("TRIPOD_NO_SKIP").is_some();
    assert!(!strict, "{test} may not be skipped here, but: {reason}");
    thread_local!(static PRINTED: Cell<bool> = const { Cell::new(false) });
    if !PRINTED.replace(true) {
        print_uncaptured(&format!("SKIP {test}: {reason}"));
    }
}

/// Name of this thread's test, without the name of the crate: libtest names the thread of each test
/// after it.
pub fn test_name() -> String {
    let thread = std::thread::current();
    let name = thread.name().expect("the thread of a test has its name");
    name.to_owned()
}

/// Prints a line past the output capture of libtest, which captures `eprintln!`, but not writes to
/// the handle.
pub fn print_uncaptured(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
