//! Resources that all relays of a data path share.

use super::super::{Shared, buffered::Buffered, descriptors::Descriptors};

/// The resources, as a relay uses them.
#[derive(Clone, Copy, Debug)]
pub struct Budget<'a> {
    /// Budget of file descriptors, from which pipes for splicing are taken.
    pub descriptors: &'a Descriptors,
    /// Bytes buffered for slow receivers.
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
