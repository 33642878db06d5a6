//! Whether the kernel's socket buffers leave memory to the process.
//!
//! With cgroups version 2 they count as memory of the process, which the kernel ends when it
//! needs more than its limit. What a connection has in them is bounded, and is much only while
//! one of its ends does not read: such connections of a Service that has many are ended then.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use crate::kernel::memory_limit::{MemoryLimit, Usage};

/// How many eighths of the limit may be in use. Connections that stall fill more buffers after the
/// check.
const EIGHTHS: u64 = 5;

/// How long an answer of the kernel is good for, in microseconds, while memory is not far from
/// being short.
const FRESH: u64 = 500;

/// The same while less than half of what would be too much is in use: filling the rest takes that
/// long. The answer costs some tens of microseconds, and is asked for at each connection.
const FRESH_FAR_AWAY: u64 = 10_000;

/// Checks how much memory is in use; `None`, and no checks, if there is no limit, or if buffers do
/// not count.
#[derive(Debug, Default)]
pub struct SocketMemory(Option<Watched>);

#[derive(Debug)]
struct Watched {
    usage: Usage,
    /// More bytes than this are too many.
    most: u64,
    since: Instant,
    /// When the last check was made, in microseconds.
    checked: AtomicU64,
    /// How many bytes were in use then.
    bytes: AtomicU64,
}

impl SocketMemory {
    /// Returns checks of the memory that has this `limit`.
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

    /// Returns whether so much is in use that stalled connections are to be ended.
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
        // If it cannot be read, the last number holds.
        if checks && let Ok(bytes) = self.usage.bytes() {
            self.bytes.store(bytes, Relaxed);
        }
        self.bytes.load(Relaxed) > self.most
    }
}
