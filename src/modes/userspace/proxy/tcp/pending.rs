//! Bytes of one direction that its receiver did not take yet.

use super::super::buffered::{Buffered, Counted};

/// What was read, and how much of it was delivered.
#[derive(Debug, Default)]
pub struct Pending {
    bytes: Vec<u8>,
    delivered: usize,
    _counted: Option<Counted>,
}

impl Pending {
    /// Returns what a relay begins with: little, which does not count.
    pub fn first(bytes: Vec<u8>) -> Self {
        Pending {
            bytes,
            ..Pending::default()
        }
    }

    /// Returns a copy of `bytes`, which counts as `buffered`; nothing costs nothing.
    pub fn copy(bytes: &[u8], buffered: &Buffered) -> Self {
        Pending {
            bytes: bytes.to_vec(),
            delivered: 0,
            _counted: (!bytes.is_empty()).then(|| buffered.count(bytes.len())),
        }
    }

    /// Returns whether there is nothing of it left.
    pub fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// Returns what is left to be delivered.
    pub fn left(&self) -> &[u8] {
        self.bytes.get(self.delivered..).unwrap_or_default()
    }

    /// Records that `bytes` more bytes were delivered, and frees them with the last one.
    pub fn delivered(&mut self, bytes: usize) {
        self.delivered += bytes;
        if self.is_empty() {
            *self = Pending::default();
        }
    }
}
