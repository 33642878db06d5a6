//! The chain of causes of an error.

use std::{error::Error, iter};

/// Returns an error, followed by its causes.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |&cause| cause.source())
}
