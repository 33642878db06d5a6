//! Finds connections that exchange short messages while others of their worker do so as well: with
//! the worker's ring, they need fewer system calls together. A single such connection gains nothing
//! from it.

use std::cell::Cell;

use crate::kernel::io_uring::SIZE;

/// Number of short messages in a row, of both directions, after which the ring is considered.
const FIRST: u16 = 16;

/// Each return from the ring multiplies the required number by this factor, up to [`MOST`].
const FACTOR: u16 = 4;
const MOST: u16 = 16_384;

/// The worker must have moved this many times as many messages in the same time: then at least that
/// many connections are equally active.
const OTHERS: u64 = 4;

thread_local! {
    /// Number of short messages that this worker's connections moved.
    static ALL: Cell<u64> = const { Cell::new(0) };
}

/// Counts a message of `length` bytes moved on this worker, if it is short. Returns the previous
/// count.
pub fn count(length: usize) -> u64 {
    let before = ALL.get();
    if length < SIZE {
        ALL.set(before.wrapping_add(1));
    }
    before
}

/// Counts the messages of one connection.
#[derive(Debug)]
pub struct Messages {
    /// Number of short messages in a row.
    count: u16,
    needed: u16,
    /// The worker's count before the first of them.
    before: u64,
}

impl Default for Messages {
    fn default() -> Messages {
        Messages {
            count: 0,
            needed: FIRST,
            before: 0,
        }
    }
}

impl Messages {
    /// Records that a message of `length` bytes was moved.
    pub fn moved(&mut self, length: usize) {
        if length >= SIZE {
            self.count = 0;
            return;
        }
        let all = count(length);
        if self.count == 0 {
            self.before = all;
        }
        self.count = self.count.saturating_add(1);
    }

    /// Returns whether the ring should move the messages from now on.
    pub fn are_for_the_ring(&mut self) -> bool {
        if self.count < self.needed {
            return false;
        }
        let of_all = ALL.get().wrapping_sub(self.before);
        let count = u64::from(std::mem::take(&mut self.count));
        of_all >= OTHERS * count
    }

    /// Records that the connection came back from the ring for another reason than idleness.
    pub fn came_back(&mut self) {
        self.needed = self.needed.saturating_mul(FACTOR).min(MOST);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes `connections` move a message of `length` bytes each, up to `times` times. Returns the
    /// number of its own messages after which the first connection is for the ring.
    fn exchange(connections: &mut [Messages], length: usize, times: usize) -> Option<usize> {
        (1..=times).find(|_| {
            connections.iter_mut().for_each(|one| one.moved(length));
            connections[0].are_for_the_ring()
        })
    }

    #[test]
    fn the_ring_is_for_several_that_exchange_short_messages() {
        let many = |count| (0..count).map(|_| Messages::default()).collect::<Vec<_>>();
        assert_eq!(exchange(&mut many(4), 100, 100), Some(usize::from(FIRST)));
        assert_eq!(exchange(&mut many(3), 100, 1000), None);
        assert_eq!(exchange(&mut many(8), SIZE, 1000), None);
        let mut mixed = many(8);
        for _ in 0..100 {
            assert_eq!(exchange(&mut mixed, 100, usize::from(FIRST) - 1), None);
            assert_eq!(exchange(&mut mixed, SIZE, 1), None);
        }
    }

    #[test]
    fn who_comes_back_needs_more_of_them() {
        let mut all: Vec<_> = (0..4).map(|_| Messages::default()).collect();
        for needed in [16, 64, 256, 1024, 4096, 16_384, 16_384] {
            assert_eq!(exchange(&mut all, 1, 20_000), Some(needed));
            all.iter_mut().for_each(Messages::came_back);
        }
    }
}
