//! Reports Services none of whose endpoints is ready, and whose last ready ones stay in use: in the
//! log, and in an Event on the Service.

use std::collections::BTreeMap;

use hashbrown::HashSet;
use net::Family;

use crate::{
    events::{Event, Recorder},
    services::{Changes, Preferences, ServiceMap, ServiceName, ServicePortName},
};

/// ServicePorts that were reported.
#[derive(Debug, Default)]
pub(super) struct LastReady {
    known: HashSet<ServicePortName>,
}

impl LastReady {
    /// Number of ServicePorts whose endpoints are in use although none is ready.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Reports ServicePorts of `map` for which this begins or ends, after the `changes` of `family`
    /// have been applied, to `recorder`.
    pub(super) fn report(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        recorder: &Recorder,
    ) {
        let names = changes.concerned(family, map, self.known.iter(), |port| port.last_ready() > 0);
        let mut begun: BTreeMap<ServiceName, usize> = BTreeMap::new();
        for name in names {
            let now = map.get(&name).map_or(0, |port| port.last_ready());
            if now == 0 {
                if self.known.remove(&name) {
                    tracing::info!(
                        service = %name,
                        protocol = %name.protocol,
                        "endpoints that are not ready are no longer in use"
                    );
                }
            } else if self.known.insert(name.clone()) {
                let most = begun.entry(name.service.clone()).or_default();
                *most = (*most).max(now);
            }
        }
        for (service, count) in begun {
            let note = format!(
                "none of its endpoints is ready: the {count} that were ready last stay in use for up \
                 to five minutes ({}), except those that do not answer",
                Preferences::WHEN_NONE_READY
            );
            tracing::warn!("Service {service}: {note}");
            recorder.post(Event::none_ready(service, note));
        }
    }
}
