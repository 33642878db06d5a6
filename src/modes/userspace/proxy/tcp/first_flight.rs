//! What a client sent before its backend answered, kept so that it can be
//! sent again to another backend.

/// More than this is not kept: a client that sends so much unasked has a backend that
/// takes it.
const CAPACITY: usize = 4 * 1024;

/// The client's first bytes, and whether an end came after them.
#[derive(Debug, Default)]
pub struct FirstFlight {
    /// Bytes that the client sent before an answer.
    pub bytes: Vec<u8>,
    /// Whether the client closed its direction.
    pub ended: bool,
}

impl FirstFlight {
    /// Adds what the client sent; returns false if it is too much to be kept.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if self.bytes.len() + bytes.len() > CAPACITY {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        true
    }
}
