//! Logs each failure once, and when it is over.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    net::{Family, PerFamily},
    services::ServicePortName,
};

/// Failures that were logged and still last.
#[derive(Debug, Default)]
pub(super) struct LoggedFailures {
    families: PerFamily<Arc<Failures>>,
}

/// What of one family is not in force as asked.
#[derive(Debug, Default)]
pub struct Failures {
    /// ServicePorts, each with the reason.
    pub ports: BTreeMap<ServicePortName, String>,
    /// What else was not done, with the reason.
    pub unfinished: BTreeSet<String>,
}

/// What fails after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failing {
    Nothing,
    /// The same fails as before, or less.
    AsBefore,
    /// Something fails that did not before.
    New,
}

impl LoggedFailures {
    /// Logs what is new in `failed` and `unfinished`, the failures of one sync
    /// of `family`, and which earlier ones are over. Returns how they differ
    /// from those before.
    pub(super) fn replace(
        &mut self,
        family: Family,
        failed: Vec<(ServicePortName, String)>,
        unfinished: Vec<String>,
    ) -> Failing {
        let mut now = Failures {
            ports: BTreeMap::new(),
            unfinished: unfinished.into_iter().collect(),
        };
        for (name, why) in failed {
            now.ports
                .entry(name)
                .and_modify(|all| {
                    all.push_str("; ");
                    all.push_str(&why);
                })
                .or_insert(why);
        }
        let before = self.families.get_mut(family);
        let mut new = false;
        for (name, why) in &now.ports {
            let known = before.ports.get(name);
            new |= known.is_none();
            if known != Some(why) {
                tracing::error!(service = %name, protocol = %name.protocol, "not in force as asked: {why}");
            }
        }
        for why in now.unfinished.difference(&before.unfinished) {
            new = true;
            tracing::error!("{family}: {why}");
        }
        let mut others = before.ports.keys();
        while let Some(name) = others.find(|name| !now.ports.contains_key(*name)) {
            tracing::info!(service = %name, protocol = %name.protocol, "in force again");
        }
        *before = Arc::new(now);
        match before.ports.is_empty() && before.unfinished.is_empty() {
            true => Failing::Nothing,
            false if new => Failing::New,
            false => Failing::AsBefore,
        }
    }

    /// Returns what of `family` fails now.
    pub(super) fn of(&self, family: Family) -> Arc<Failures> {
        Arc::clone(self.families.get(family))
    }

    /// Returns how many ServicePorts are not in force as asked.
    pub(super) fn service_ports(&self) -> usize {
        let families = self.families.iter();
        families.map(|(_, failures)| failures.ports.len()).sum()
    }
}
