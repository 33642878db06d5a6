//! What of a family is not captured as it should be.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use net::Frontend;

/// What of a family is not captured as it should be.
#[derive(Debug, Default)]
pub struct Pending {
    /// Frontends that changed since capture was last in force.
    pub changed: BTreeSet<Frontend>,
    /// Frontends that are not captured, with the reason.
    pub uncaptured: BTreeMap<Frontend, String>,
}

impl Pending {
    /// Records that capture is in force for all frontends except those that `failed`, each with the
    /// reason.
    pub fn record_all(&mut self, failed: Vec<(Frontend, String)>) {
        self.uncaptured.clear();
        self.record_changed(failed);
    }

    /// Records that capture is in force for what had changed, except those that `failed`, each with
    /// the reason.
    pub fn record_changed(&mut self, failed: Vec<(Frontend, String)>) {
        for frontend in mem::take(&mut self.changed) {
            self.uncaptured.remove(&frontend);
        }
        self.uncaptured.extend(failed);
    }
}
