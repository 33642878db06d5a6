//! Says each failure once, and that it is over.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    net::{Family, PerFamily},
    services::ServicePortName,
};

/// Failures that are in the log already.
#[derive(Debug, Default)]
pub(super) struct Told {
    families: PerFamily<Failures>,
}

#[derive(Debug, Default)]
struct Failures {
    /// ServicePorts that are not in force as asked.
    ports: BTreeMap<ServicePortName, String>,
    /// What else was not done.
    unfinished: BTreeSet<String>,
}

/// What fails after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fails {
    Nothing,
    /// The same as before, or less.
    AsBefore,
    /// Something that did not before.
    Anew,
}

impl Told {
    /// Logs what is new in `failed` and `unfinished`, the failures of one sync of
    /// `family`, and what is missing from them.
    pub(super) fn tell(
        &mut self,
        family: Family,
        failed: Vec<(ServicePortName, String)>,
        unfinished: Vec<String>,
    ) -> Fails {
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
        let mut anew = false;
        for (name, why) in &now.ports {
            let known = before.ports.get(name);
            anew |= known.is_none();
            if known != Some(why) {
                tracing::error!(service = %name, protocol = %name.protocol, "not in force as asked: {why}");
            }
        }
        for why in now.unfinished.difference(&before.unfinished) {
            anew = true;
            tracing::error!("{family}: {why}");
        }
        let mut others = before.ports.keys();
        while let Some(name) = others.find(|name| !now.ports.contains_key(*name)) {
            tracing::info!(service = %name, protocol = %name.protocol, "in force again");
        }
        *before = now;
        match before.ports.is_empty() && before.unfinished.is_empty() {
            true => Fails::Nothing,
            false if anew => Fails::Anew,
            false => Fails::AsBefore,
        }
    }

    /// Returns how many ServicePorts are not in force as asked.
    pub(super) fn service_ports(&self) -> usize {
        let families = self.families.iter();
        families.map(|(_, failures)| failures.ports.len()).sum()
    }
}
