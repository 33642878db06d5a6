//! What the relays of a data path may take, all of them together.

use super::super::{Shared, buffered::Buffered, descriptors::Descriptors};

/// A relay's view of it.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// Budget of file descriptors, from which pipes for splicing are taken.
    pub descriptors: &'a Descriptors,
    /// What is kept for slow receivers.
    pub buffered: &'a Buffered,
}

impl<'a> From<&'a Shared> for Budget<'a> {
    fn from(shared: &'a Shared) -> Self {
        Budget {
            descriptors: &shared.descriptors,
            buffered: &shared.buffered,
        }
    }
}
