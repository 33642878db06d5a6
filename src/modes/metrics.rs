//! Metrics of modes in addition to the reports of their syncs.

use std::{fmt, time::Duration};

use net::Family;

/// Records the figures of modes; the runner's metrics show them.
pub trait Metrics: fmt::Debug + Send + Sync {
    /// Records that stale connection-tracking entries of `family` were searched for,
    /// which took `took`, and that `deleted` of them were removed.
    fn conntrack_cleared(&self, family: Family, took: Duration, deleted: u64);

    /// Records that the kernel did not take `count` such changes of `family`.
    fn unwritten(&self, family: Family, what: Unwritten, count: u64);
}

/// A change that the kernel did not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// Rules that Services need.
    Rules,
    /// A change of rules, after which everything was compared.
    Changes,
    /// The removal of stale rules.
    Remnants,
    /// The endpoint of a client with session affinity.
    Clients,
}

/// A counter of such changes in a mode: the kind of change, its name and its description.
pub type UnwrittenCounter = (Unwritten, &'static str, &'static str);
