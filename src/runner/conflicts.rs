//! Reports once which addresses a Service does not get because another Service owns them: in the
//! log, and in an Event on the Service.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use net::Family;

use crate::{
    events::{Event, Recorder},
    services::{Changes, Conflict, ServiceMap, ServiceName, ServicePortName},
};

/// Maximum number of conflicts of one Service that are named at a time: the API server takes notes
/// of up to 1,024 bytes (`NoteLengthLimit` of `pkg/apis/core/validation/events.go`).
const NAMED: usize = 3;

/// Conflicts that were logged and still exist.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    known: HashMap<ServicePortName, Box<[Conflict]>>,
}

impl Conflicts {
    /// Number of ServicePorts that lack an address.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Reports new conflicts in `map`, to which the `changes` of `family` have been applied, to
    /// `recorder`.
    pub(super) fn report(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        recorder: &Recorder,
    ) {
        let names = changes.concerned(family, map, self.known.keys(), |port| {
            !port.conflicts.is_empty()
        });
        let mut new: BTreeMap<&ServiceName, Vec<&Conflict>> = BTreeMap::new();
        for name in &names {
            let now = map.get(name).map_or(&[][..], |port| &port.conflicts);
            let before = self.known.remove(name).unwrap_or_default();
            let added = now.iter().filter(|conflict| !before.contains(conflict));
            let mut added = added.peekable();
            if added.peek().is_some() {
                new.entry(&name.service).or_default().extend(added);
            }
            if now.is_empty() && !before.is_empty() && map.get(name).is_some() {
                tracing::info!(service = %name, protocol = %name.protocol, "has all its addresses now");
            }
            if !now.is_empty() {
                self.known.insert(name.clone(), now.into());
            }
        }
        for (service, conflicts) in new {
            let mut note: Vec<String> = conflicts.iter().map(ToString::to_string).collect();
            note.sort_unstable();
            let more = note.split_off(note.len().min(NAMED)).len();
            let mut note = note.join("; ");
            if more > 0 {
                note.push_str(&format!("; and {more} more addresses"));
            }
            note.push_str(". Give one of the Services another address");
            // A range is served only where no other Service has the address.
            if conflicts
                .iter()
                .all(|conflict| conflict.last_port.is_none())
            {
                note.push_str(" or port");
            }
            tracing::warn!("Service {service}: {note}");
            recorder.post(Event::address_conflict(service.clone(), note));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::services::{Event as ObjectEvent, Names, Object, Service, Tracker};

    #[test]
    fn each_is_reported_once_until_it_ends() {
        let (recorder, mut events) = Recorder::new(16);
        let mut conflicts = Conflicts::default();
        let mut tracker = Tracker::new("here");
        let service = |name: &str, ips: &[&str]| {
            let object = json!({
                "metadata": {"namespace": "ns", "name": name},
                "spec": {"clusterIP": ips[0], "externalIPs": &ips[1..], "ports": [{"port": 80}]},
            });
            let object = serde_json::from_value(object).unwrap();
            let reduced = Service::reduce(&object, &mut Names::default()).unwrap();
            ObjectEvent::Changed(Object::Service(Arc::new(reduced.object)))
        };
        let mut apply = |event: ObjectEvent| {
            let changes = tracker.apply([event]);
            conflicts.report(Family::V4, tracker.map(), &changes, &recorder);
            let mut posted = Vec::new();
            while let Ok(event) = events.try_recv() {
                posted.push(event.note);
            }
            posted
        };
        assert_eq!(apply(service("a", &["10.0.0.1"])), [""; 0]);
        let first = apply(service("b", &["10.0.0.2", "10.0.0.1"]));
        assert_eq!(first.len(), 1);
        assert!(
            first[0].starts_with("external IP 10.0.0.1:80 "),
            "{first:?}"
        );
        let again = apply(service("b", &["10.0.0.2", "10.0.0.1", "192.0.2.1"]));
        assert_eq!(again, [""; 0], "it is the same");
        assert_eq!(apply(service("b", &["10.0.0.2"])), [""; 0]);
        assert_eq!(apply(service("b", &["10.0.0.2", "10.0.0.1"])).len(), 1);

        let outside = [
            "192.0.2.1",
            "192.0.2.2",
            "192.0.2.3",
            "192.0.2.4",
            "192.0.2.5",
        ];
        let of = |first| [&[first], &outside[..]].concat();
        assert_eq!(apply(service("d", &of("10.0.0.4"))), [""; 0]);
        let many = apply(service("e", &of("10.0.0.5")));
        assert_eq!(many.len(), 1);
        assert!(many[0].contains("; and 2 more addresses. "), "{many:?}");
        assert!(many[0].len() < 1024);
    }
}
