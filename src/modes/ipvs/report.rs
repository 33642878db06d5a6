//! What one sync did, as it comes about.

use std::{collections::BTreeMap, time::Duration};

use super::{plan::Set, wanted::Touched};
use crate::{
    modes::{SyncReport, Unsupported},
    net::Family,
    services::ServicePortName,
};

/// Repairs of a kind that are named; the others are counted.
const NAMED: usize = 20;

/// What one sync did.
#[derive(Debug, Default)]
pub struct Report {
    /// ServicePorts that were looked at.
    pub examined: usize,
    failed: Vec<(ServicePortName, String)>,
    /// What else failed and is to be tried again.
    pub unfinished: Vec<String>,
    /// Preferences that cannot be done.
    pub unsupported: Vec<Unsupported>,
    /// What is to be tried again.
    pub unsettled: Touched,
    /// Sets that cannot hold what they are to, each with the reason.
    pub too_small: BTreeMap<(Set, Family), String>,
    /// The kernel may hold other things than we believe.
    pub doubt: bool,
}

impl Report {
    /// `name` is not in force as asked.
    pub fn failed(&mut self, name: &ServicePortName, why: String) {
        self.failed.push((name.clone(), why));
    }

    /// For the runner, which is to have another sync run after `look_again`.
    pub fn into_sync_report(self, look_again: Option<Duration>) -> SyncReport {
        SyncReport {
            examined: self.examined,
            failed: self.failed,
            unfinished: self.unfinished,
            look_again,
            unsupported: self.unsupported,
            ..SyncReport::default()
        }
    }
}

/// Names in the log what others had changed.
pub fn log_repairs(repaired: &[String]) {
    for what in repaired.iter().take(NAMED) {
        tracing::warn!("repaired {what}, which somebody else had changed");
    }
    if let Some(more) = repaired.len().checked_sub(NAMED).filter(|more| *more > 0) {
        tracing::warn!("repaired {more} more things that somebody else had changed");
    }
}
