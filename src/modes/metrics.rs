//! What modes count beside what their syncs report.

use std::{fmt, time::Duration};

use crate::net::Family;

/// Takes the figures of modes; the runner's metrics show them.
pub trait Metrics: fmt::Debug + Send + Sync {
    /// Stale connection-tracking entries of `family` were looked for, which
    /// took `took`, and `deleted` of them removed.
    fn conntrack_cleared(&self, family: Family, took: Duration, deleted: u64);

    /// The kernel did not take a change of the rules of `family`.
    fn unwritten(&self, family: Family, what: Unwritten);
}

/// A change that the kernel did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// Rules that Services need.
    Rules,
    /// The removal of what nothing needs.
    Remnants,
}
