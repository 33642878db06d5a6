//! Frontends of a family that are not captured as desired.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use net::Frontend;

/// Frontends of a family that are not captured as desired.
#[derive(Debug, Default)]
pub struct Pending {
    /// Frontends that changed since the last successful capture.
    pub changed: BTreeSet<Frontend>,
    /// Frontends that are not captured, with the reason.
    pub uncaptured: BTreeMap<Frontend, String>,
}

impl Pending {
    /// Records that all frontends are captured except those that `failed`, each with the reason.
    pub fn record_all(&mut self, failed: Vec<(Frontend, String)>) {
        self.uncaptured.clear();
        self.record_changed(failed);
    }

    /// Records that the changed frontends are captured except those that `failed`, each with the
    /// reason.
    pub fn record_changed(&mut self, failed: Vec<(Frontend, String)>) {
        for frontend in mem::take(&mut self.changed) {
            self.uncaptured.remove(&frontend);
        }
        self.uncaptured.extend(failed);
    }
}
