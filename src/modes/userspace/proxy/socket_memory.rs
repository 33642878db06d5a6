//! Whether the kernel's socket buffers leave memory to the process.
//!
//! With cgroups version 2 they count as memory of the process, which the kernel kills when it
//! exceeds its limit. A connection's share of them is bounded, and is only large while one of its
//! ends does not read: when memory is short, such connections are ended if their Service has many.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use crate::kernel::memory_limit::{MemoryLimit, Usage};

/// Number of eighths of the limit that may be in use. Stalled connections fill more buffers after
/// the check.
const EIGHTHS: u64 = 5;

/// How long, in microseconds, the kernel's answer is used when memory may soon be short.
const FRESH: u64 = 500;

/// The same while less than half of the threshold is in use: filling the rest takes that long. The
/// answer costs some tens of microseconds, and is needed for each connection.
const FRESH_FAR_AWAY: u64 = 10_000;

/// Checks how much memory is in use. `None` disables checks, if there is no limit or buffers do not
/// count.
#[derive(Debug, Default)]
pub struct SocketMemory(Option<Watched>);

#[derive(Debug)]
struct Watched {
    usage: Usage,
    /// The threshold in bytes.
    most: u64,
    since: Instant,
    /// When memory was last checked, in microseconds after `since`.
    checked: AtomicU64,
    /// Number of bytes in use at that time.
    bytes: AtomicU64,
}

impl SocketMemory {
    /// Checks against this `limit`.
    pub fn new(limit: Option<&MemoryLimit>) -> SocketMemory {
        let watched = limit.and_then(|limit| {
            let most = limit.bytes / 8 * EIGHTHS;
            Some(Watched {
                usage: Usage::of(limit)?,
                most,
                since: Instant::now(),
                checked: AtomicU64::new(0),
                bytes: AtomicU64::new(most),
            })
        });
        SocketMemory(watched)
    }

    /// Returns whether so much is in use that stalled connections should be ended.
    pub fn is_short(&self) -> bool {
        self.0.as_ref().is_some_and(Watched::is_short)
    }
}

impl Watched {
    fn is_short(&self) -> bool {
        let now = self.since.elapsed().as_micros() as u64;
        let is_far_away = self.bytes.load(Relaxed) < self.most / 2;
        let fresh = if is_far_away { FRESH_FAR_AWAY } else { FRESH };
        let checked = self.checked.load(Relaxed);
        let is_due = now.saturating_sub(checked) >= fresh;
        let checks = is_due
            && self
                .checked
                .compare_exchange(checked, now, Relaxed, Relaxed)
                .is_ok();
        // If it cannot be read, the previous number is used.
        if checks && let Ok(bytes) = self.usage.bytes() {
            self.bytes.store(bytes, Relaxed);
        }
        self.bytes.load(Relaxed) > self.most
    }
}
