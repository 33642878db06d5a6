//! Listeners whose filter is too large, each logged once while that lasts.

use std::io;

use crate::{log_once::LogOnce, modes::userspace::plan::GroupName};

/// The service groups whose listeners accept forbidden callers, to reset their connections.
#[derive(Debug, Default)]
pub struct Unfiltered(LogOnce);

impl Unfiltered {
    /// Records whether the filter of the group `name` fits; `None` if the filter did not change.
    pub fn set(&mut self, name: &GroupName, filtered: Option<io::Result<()>>) {
        let service = &name.port;
        match filtered {
            Some(Err(error)) if self.0.is_new(&name.label()) => tracing::warn!(
                %service,
                "connections of forbidden clients are reset instead of getting no answer, because \
                 the filter does not fit on the listener: {error}; use fewer \
                 loadBalancerSourceRanges, or raise net.core.optmem_max"
            ),
            Some(Ok(())) if self.0.is_over(&name.label()) => tracing::info!(
                %service,
                "the filter fits on the listener again: forbidden clients get no answer"
            ),
            _ => {}
        }
    }

    /// Records that the group `name` was removed.
    pub fn remove(&mut self, name: &GroupName) {
        self.0.is_over(&name.label());
    }
}
