//! What modes count besides what their syncs report.

use std::{fmt, time::Duration};

use crate::net::Family;

/// Records the figures of modes; the runner's metrics show them.
pub trait Metrics: fmt::Debug + Send + Sync {
    /// Records that stale connection-tracking entries of `family` were searched for,
    /// which took `took`, and that `deleted` of them were removed.
    fn conntrack_cleared(&self, family: Family, took: Duration, deleted: u64);

    /// Records that the kernel did not take a change of the rules of `family`.
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

/// A counter of such changes that kube-proxy has in the same mode: what it counts, its name without
/// what all such names begin and end with, and its description.
pub type UnwrittenCounter = (Unwritten, &'static str, &'static str);
