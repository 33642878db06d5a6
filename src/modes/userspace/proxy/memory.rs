//! Whether data that waits for slow receivers leaves memory to the process.
//!
//! Of bytes that the process itself buffers, it knows the number. The kernel's socket buffers hold
//! more: with cgroups version 2 they count as memory of the process, which the kernel kills when it
//! exceeds its limit. A connection's share of them is bounded, and is only large while one of its
//! ends does not read: when memory is short, such connections are ended if their Service has many.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use prometheus::IntGauge;

use crate::kernel::memory_limit::{MemoryLimit, Usage};

/// Relays may buffer one part in this many of the memory limit before they read less at once.
const BUFFERED_SHARE: u64 = 16;

/// Number of eighths of the limit that may be in use. Stalled connections fill more buffers after
/// the check.
const EIGHTHS: u64 = 5;

/// How long, in microseconds, the kernel's answer is used when memory may soon be short.
const FRESH: u64 = 500;

/// The same while less than half of the threshold is in use: filling the rest takes that long. The
/// answer costs some tens of microseconds, and is needed for each connection.
const FRESH_FAR_AWAY: u64 = 10_000;

/// Memory for data that waits for slow receivers.
#[derive(Debug)]
pub struct Memory {
    /// Number of bytes that all relays of a data path buffer.
    buffered: IntGauge,
    /// Above this number of bytes, relays read only little at once.
    most_buffered: i64,
    /// `None` if there is no limit or the kernel's buffers do not count.
    watched: Option<Watched>,
}

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

impl Memory {
    /// Checks against this `limit`, and counts buffered bytes in `buffered`.
    pub fn new(buffered: IntGauge, limit: Option<&MemoryLimit>) -> Memory {
        let most_buffered =
            limit.and_then(|limit| i64::try_from(limit.bytes / BUFFERED_SHARE).ok());
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
        Memory {
            buffered,
            most_buffered: most_buffered.unwrap_or(i64::MAX),
            watched,
        }
    }

    /// Returns whether so much is in use that stalled connections should be ended.
    pub fn is_short(&self) -> bool {
        self.watched.as_ref().is_some_and(Watched::is_short)
    }

    /// Returns whether so much is buffered that a relay should read little at once.
    pub fn is_much_buffered(&self) -> bool {
        self.buffered.get() >= self.most_buffered
    }

    /// Records that a relay buffers `now` bytes instead of `before`.
    pub fn buffered_changed(&self, before: usize, now: usize) {
        let number = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.buffered.add(number(now) - number(before));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_read_little_while_much_is_buffered() {
        let memory = Memory {
            most_buffered: 100,
            ..Memory::new(IntGauge::new("kept", "kept").unwrap(), None)
        };
        for (before, now, is_much) in [(0, 60, false), (0, 40, true), (60, 59, false)] {
            memory.buffered_changed(before, now);
            assert_eq!(memory.is_much_buffered(), is_much);
        }
        let unlimited = Memory::new(memory.buffered, None);
        assert!(!unlimited.is_much_buffered());
    }
}
