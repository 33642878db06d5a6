//! Routes.

use super::{Error, Frontend, Report, Want};
use crate::services::IpFamily;

/// Captures by routes.
pub struct Local {}

impl Local {
    /// For these families.
    ///
    /// # Errors
    /// When netlink cannot be had.
    pub fn new(_families: &[IpFamily]) -> Result<Local, Error> {
        Ok(Local {})
    }

    /// Makes the kernel capture what is wanted. Blocks for microseconds to
    /// milliseconds.
    ///
    /// # Errors
    /// When the kernel refused.
    pub fn sync(&mut self, _want: &Want, _changed: Option<&[Frontend]>) -> Result<Report, Error> {
        Ok(Report::default())
    }

    /// Removes everything.
    ///
    /// # Errors
    /// When something could not be removed.
    pub fn cleanup() -> Result<(), Error> {
        Ok(())
    }
}
