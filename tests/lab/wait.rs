//! Waiting for a condition instead of for a time.

use std::time::{Duration, Instant};

/// Calls `observe` until it succeeds; panics with the last reason if it does not succeed within
/// `within`.
pub fn eventually<T>(
    what: &str,
    within: Duration,
    mut observe: impl FnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + within;
    loop {
        match observe() {
            Ok(found) => return found,
            Err(reason) if Instant::now() > deadline => {
                panic!("not within {within:?}: {what}; last seen: {reason}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
