//! Bytes of one direction that its receiver has not accepted yet.

use super::super::buffered::{Buffered, Counted};

/// Bytes that were read, and the number of delivered ones.
#[derive(Debug, Default)]
pub struct Pending {
    bytes: Vec<u8>,
    delivered: usize,
    _counted: Option<Counted>,
}

impl Pending {
    /// The first bytes of a relay, which do not count because they are few.
    pub fn first(bytes: Vec<u8>) -> Self {
        Pending {
            bytes,
            ..Pending::default()
        }
    }

    /// A copy of `bytes`, which counts as `buffered`; does not allocate if there are none.
    pub fn copy(bytes: &[u8], buffered: &Buffered) -> Self {
        Pending {
            bytes: bytes.to_vec(),
            delivered: 0,
            _counted: (!bytes.is_empty()).then(|| buffered.count(bytes.len())),
        }
    }

    /// Returns whether everything was delivered.
    pub fn is_empty(&self) -> bool {
        self.left().is_empty()
    }

    /// The bytes that are not delivered yet.
    pub fn left(&self) -> &[u8] {
        self.bytes.get(self.delivered..).unwrap_or_default()
    }

    /// Records that `bytes` more bytes were delivered. Frees all of them after the last one.
    pub fn delivered(&mut self, bytes: usize) {
        self.delivered += bytes;
        if self.is_empty() {
            *self = Pending::default();
        }
    }
}
