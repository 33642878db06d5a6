//! How far a sync is while it is under way: the same for all modes.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;

/// How far the sync of one IP family is. Clones share it: the mode counts in one, and another can
/// be read at any time. Counting costs nanoseconds, and no memory.
#[derive(Clone, Debug, Default)]
pub struct SyncProgress(Arc<Mutex<Option<Position>>>);

/// How far a sync is at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The kind of objects that are counted, in the plural.
    pub what: &'static str,
    /// How many must be compared and, where they differ, written.
    pub planned: usize,
    /// How many of them were compared and sent.
    pub sent: usize,
    /// How many of those the kernel has answered for, even if only by a refusal.
    pub done: usize,
}

impl SyncProgress {
    /// Records that nothing is planned yet: the kernel's state is being read, or the other family
    /// comes first.
    pub fn reset(&self) {
        *self.0.lock() = None;
    }

    /// Records that `planned` objects of the kind `what`, in the plural, are planned, and none is
    /// sent yet.
    pub fn begin(&self, what: &'static str, planned: usize) {
        *self.0.lock() = Some(Position {
            what,
            planned,
            sent: 0,
            done: 0,
        });
    }

    /// Records that `count` more are sent.
    pub fn send(&self, count: usize) {
        if let Some(position) = &mut *self.0.lock() {
            position.sent = position.sent.saturating_add(count).min(position.planned);
        }
    }

    /// Records that the kernel has answered for all that is sent.
    pub fn confirm(&self) {
        if let Some(position) = &mut *self.0.lock() {
            position.done = position.sent;
        }
    }

    /// Returns how far the sync is; `None`: nothing is planned yet.
    pub fn position(&self) -> Option<Position> {
        *self.0.lock()
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position {
            what,
            planned,
            sent,
            done,
        } = self;
        write!(f, "{done} of {planned} {what} are done")?;
        match sent - done {
            0 => Ok(()),
            more => write!(f, ", {more} more are sent and not confirmed yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_counts_as_done_when_it_is_confirmed() {
        let counted = SyncProgress::default();
        let text = || counted.position().map(|position| position.to_string());
        counted.send(1);
        counted.confirm();
        assert_eq!(text(), None, "nothing is planned");
        counted.begin("virtual servers", 5_000);
        assert_eq!(
            text().as_deref(),
            Some("0 of 5000 virtual servers are done")
        );
        counted.send(2_000);
        assert_eq!(
            text().as_deref(),
            Some("0 of 5000 virtual servers are done, 2000 more are sent and not confirmed yet")
        );
        counted.clone().confirm();
        counted.send(9_000);
        assert_eq!(
            text().as_deref(),
            Some("2000 of 5000 virtual servers are done, 3000 more are sent and not confirmed yet")
        );
        counted.reset();
        assert_eq!(text(), None);
    }
}
