//! Data that a client sent before its backend answered, kept so that it can be sent again to
//! another backend.

/// Maximum number of bytes that are kept: if a client sends more than this before any answer, its
/// backend is accepting it.
const CAPACITY: usize = 4 * 1024;

/// The client's first bytes, and whether it closed its direction after them.
#[derive(Debug, Default)]
pub struct FirstFlight {
    /// Bytes that the client sent before an answer.
    pub bytes: Vec<u8>,
    /// Whether the client closed its direction.
    pub ended: bool,
}

impl FirstFlight {
    /// Adds data of the client; returns false if it is too much to be kept.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if self.bytes.len() + bytes.len() > CAPACITY {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        true
    }
}
