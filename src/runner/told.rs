//! Says each failure once, and that it is over.

use std::collections::BTreeMap;

use crate::services::{IpFamily, ServicePortName};

/// Failures that are in the log already.
#[derive(Debug, Default)]
pub(super) struct Told {
    reasons: BTreeMap<ServicePortName, String>,
}

impl Told {
    /// Logs what is new in `failed`, the failures of one sync, and what is
    /// missing from it. Answers with how many ServicePorts fail.
    pub(super) fn tell(&mut self, failed: Vec<(ServicePortName, String)>) -> usize {
        let mut now: BTreeMap<ServicePortName, String> = BTreeMap::new();
        for (name, why) in failed {
            now.entry(name)
                .and_modify(|all| {
                    all.push_str("; ");
                    all.push_str(&why);
                })
                .or_insert(why);
        }
        for (name, why) in &now {
            if self.reasons.get(name) != Some(why) {
                tracing::error!(service = %name, protocol = %name.protocol, "not in force as asked: {why}");
            }
        }
        for name in self.reasons.keys().filter(|name| !now.contains_key(*name)) {
            tracing::info!(service = %name, protocol = %name.protocol, "in force again");
        }
        self.reasons = now;
        self.reasons.len()
    }

    /// Whether ServicePorts of `family` fail.
    pub(super) fn concerns(&self, family: IpFamily) -> bool {
        self.reasons.keys().any(|name| name.family == family)
    }
}
