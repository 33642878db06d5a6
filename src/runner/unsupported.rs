//! Reports each preference that the mode does not support once: in the log, and in an Event on the
//! Service.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::HashMap;
use net::Family;

use crate::{
    config::ModeName,
    events::{self, Recorder},
    modes::{Done, Reason, Unsupported},
    services::{Changes, ServiceMap, ServiceName, ServicePort, ServicePortName},
};

/// Preferences that the ports of each Service request and the mode does not support.
pub type UnsupportedPreferences = HashMap<ServiceName, BTreeMap<ServicePortName, BTreeSet<Reason>>>;

/// Adds to `services`, and reports to `recorder`, new entries of `unsupported`, the result of a sync
/// of `family` with `changes` to `map`, and annotations of these Services that cannot be read. Most
/// ports of a Service have the same ones, which are reported once.
pub(super) fn report(
    services: &mut UnsupportedPreferences,
    recorder: &Recorder,
    mode: ModeName,
    family: Family,
    mut unsupported: Vec<Unsupported>,
    changes: &Changes,
    map: &ServiceMap,
) {
    let before = remove(services, family, changes);
    if changes.full {
        let ports = map.of_family(family);
        unsupported.extend(ports.flat_map(malformed));
    } else {
        let changed = changes.ports.iter().filter_map(|name| map.get(name));
        unsupported.extend(changed.flat_map(malformed));
    }
    for Unsupported { port, reason } in unsupported {
        let service = port.service.clone();
        let ports = services.entry(service.clone()).or_default();
        let known = before
            .get(&service)
            .is_some_and(|reasons| reasons.contains_key(&reason))
            || ports.values().any(|reasons| reasons.contains(&reason));
        if !known {
            let Reason { what, why, done } = &reason;
            let here = match done {
                Done::Unreadable | Done::Part => String::new(),
                Done::Nothing | Done::Instead(_) => format!(" in {mode} mode"),
            };
            let note = format!("{what} {}{here}: {why}", is(done));
            tracing::warn!("Service {service}: {note}");
            recorder.post(events::Event::unsupported(service, note));
        }
        ports.entry(port).or_default().insert(reason);
    }
    log_ended(&before, services, map);
}

/// Verb phrase for a preference that was only `done` to this extent.
fn is(done: &Done) -> &'static str {
    match done {
        Done::Unreadable => "cannot be read",
        Done::Nothing | Done::Part | Done::Instead(_) => "is not supported",
    }
}

/// Logs preferences reported `before` that are resolved `now`, except those of ports that are gone
/// from `map`.
fn log_ended(before: &Removed, now: &UnsupportedPreferences, map: &ServiceMap) {
    for (service, reasons) in before {
        let ports = now.get(service);
        let holds = |what: &Reason| {
            let mut all = ports.into_iter().flat_map(BTreeMap::values).flatten();
            all.any(|reason| reason.what == what.what)
        };
        for (reason, port) in reasons {
            if !holds(reason) && map.get(port).is_some() {
                let Reason { what, done, .. } = reason;
                tracing::info!("Service {service}: resolved: {what} {}", is(done));
            }
        }
    }
}

/// Reasons that were reported of each Service, each with one of the affected ports.
type Removed = HashMap<ServiceName, BTreeMap<Reason, ServicePortName>>;

/// Removes and returns the entries of `family` that `changes` concern: all of them if these are
/// full.
fn remove(services: &mut UnsupportedPreferences, family: Family, changes: &Changes) -> Removed {
    let mut removed = Removed::new();
    if changes.full {
        services.retain(|service, ports| {
            let of_family = ports.extract_if(.., |port, _| port.family == family);
            let reasons = of_family.flat_map(|(port, reasons)| with(reasons, port));
            removed.insert(service.clone(), reasons.collect());
            !ports.is_empty()
        });
        return removed;
    }
    // Usually nothing was ever reported.
    if services.is_empty() {
        return removed;
    }
    for port in &changes.ports {
        let Some(ports) = services.get_mut(&port.service) else {
            continue;
        };
        if let Some(reasons) = ports.remove(port) {
            let of_service = removed.entry(port.service.clone()).or_default();
            of_service.extend(with(reasons, port.clone()));
        }
        if ports.is_empty() {
            services.remove(&port.service);
        }
    }
    removed
}

fn with(
    reasons: BTreeSet<Reason>,
    port: ServicePortName,
) -> impl Iterator<Item = (Reason, ServicePortName)> {
    reasons
        .into_iter()
        .map(move |reason| (reason, port.clone()))
}

/// Annotations and source ranges of `port` that cannot be read, and why it lacks addresses or
/// endpoints: no mode sees these.
fn malformed(port: &Arc<ServicePort>) -> impl Iterator<Item = Unsupported> {
    let malformed = port.preferences().malformed.iter();
    let malformed = malformed.map(|(what, why)| Reason::unreadable(what, why));
    let too_many = port.preferences().too_many_addresses.iter();
    let reasons = malformed.chain(too_many.map(Reason::too_many_addresses));
    let endpoints = port.endpoints.are_too_many.then(Reason::too_many_endpoints);
    let closed = port.is_closed().then(|| {
        let family = port.name.family;
        let why = format!(
            "no range is an {family} CIDR, so that nobody reaches the {family} load-balancer \
             and external IPs of the Service until there is one; its cluster IP and node ports are \
             served"
        );
        Reason::unreadable("spec.loadBalancerSourceRanges", why)
    });
    let reasons = reasons.chain(endpoints).chain(closed);
    reasons.map(|reason| reason.at(&port.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        log::lines,
        services::{
            Event, Loopback, Names, Object, Preferences, Service, Tracker,
            service_ports::{port_name, service_port},
        },
    };

    fn unsupported(port: &ServicePortName, why: &str) -> Unsupported {
        Reason::new(Preferences::SCHEDULER, why).at(port)
    }

    /// Reports what a sync of IPv4 in iptables mode `found`.
    fn found_in_iptables(
        services: &mut UnsupportedPreferences,
        recorder: &Recorder,
        found: &[Unsupported],
        changes: &Changes,
        map: &ServiceMap,
    ) {
        let (mode, family) = (ModeName::Iptables, Family::V4);
        report(
            services,
            recorder,
            mode,
            family,
            found.to_vec(),
            changes,
            map,
        );
    }

    #[test]
    fn each_is_reported_once_until_it_changes() {
        let [http, admin, other] = ["web:http", "web:admin", "b"].map(port_name);
        let (recorder, mut events) = Recorder::new(16);
        let mut services = UnsupportedPreferences::new();
        let mut report = |full: bool, changed: &[&ServicePortName], found: &[Unsupported]| {
            let changes = Changes {
                full,
                ports: changed.iter().copied().cloned().collect(),
                ..Changes::default()
            };
            let map = ServiceMap::default();
            found_in_iptables(&mut services, &recorder, found, &changes, &map);
            let mut posted = Vec::new();
            while let Ok(event) = events.try_recv() {
                posted.push(event.note);
            }
            posted
        };
        let both = [unsupported(&http, "no lc"), unsupported(&admin, "no lc")];
        let note = "tripod.proxy/scheduler is not supported in iptables mode: no lc";
        assert_eq!(report(true, &[], &both), [note]);
        assert_eq!(report(true, &[], &both), [""; 0], "a full sync");
        assert_eq!(report(false, &[&other], &[]), [""; 0]);
        assert_eq!(report(false, &[&http], &both[..1]), [""; 0], "it changed");
        // Another reason, and back.
        assert_eq!(
            report(false, &[&http], &[unsupported(&http, "no sed")]).len(),
            1
        );
        assert_eq!(
            report(false, &[&http], &both[..1]),
            [""; 0],
            "admin still has it"
        );
        // Honoured for a while.
        assert_eq!(report(false, &[&http, &admin], &[]), [""; 0]);
        assert_eq!(report(false, &[&http], &both[..1]), [note]);
        assert_eq!(report(true, &[], &[]), [""; 0]);
        assert_eq!(report(true, &[], &both), [note]);
    }

    #[test]
    fn that_it_is_over_is_logged_unless_the_service_is_gone() {
        let [http, other] = ["web:http", "gone:http"].map(port_name);
        let (recorder, mut services) = (Recorder::nowhere(), UnsupportedPreferences::new());
        let map = [service_port("web:http", [10, 0, 0, 1])];
        let map: ServiceMap = map.into_iter().collect();
        let changes = Changes {
            full: true,
            ..Changes::default()
        };
        let log = lines(0, || {
            let both = [unsupported(&http, "no lc"), unsupported(&other, "no lc")];
            for found in [&both[..], &[unsupported(&http, "no sed")], &[], &[]] {
                found_in_iptables(&mut services, &recorder, found, &changes, &map);
            }
        });
        let [_, _, changed, over] = &log[..] else {
            panic!("{log:#?}");
        };
        assert!(changed.contains("no sed"), "{changed}");
        let expected = "resolved: tripod.proxy/scheduler is not supported";
        assert!(over.contains(expected), "{over}");
    }

    #[test]
    fn a_service_of_too_many_addresses_is_reported_in_any_mode() {
        let names = &mut Names::default();
        let ports: Vec<_> = (1..=5_000)
            .map(|port| json!({"name": format!("p{port}"), "port": port}))
            .collect();
        let ips: Vec<_> = (0..2_000)
            .map(|n| format!("192.0.{}.{}", n / 250, n % 250))
            .collect();
        let huge = json!({
            "metadata": {"namespace": "aaa", "name": "huge"},
            "spec": {"clusterIP": "10.96.0.1", "ports": ports, "externalIPs": ips},
        });
        let huge = serde_json::from_value(huge).expect("a Service");
        let huge = Service::reduce(&huge, names).expect("a good one").object;
        let slice = json!({
            "metadata": {"namespace": "aaa", "name": "s", "labels": {"kubernetes.io/service-name": "huge"}},
            "addressType": "IPv4", "ports": ports,
            "endpoints": (0..200).map(|n| json!({"addresses": [format!("10.1.0.{n}")]})).collect::<Vec<_>>(),
        });
        let slice = serde_json::from_value(slice).expect("a slice");
        let slice = crate::services::EndpointSlice::reduce(&slice, Loopback::Refused, names)
            .expect("a good one")
            .object;
        let mut tracker = Tracker::new("node");
        let events = [
            Event::Changed(Object::Service(Arc::new(huge))),
            Event::Changed(Object::EndpointSlice(Arc::new(slice))),
        ];
        let changes = tracker.apply(events);
        let map = tracker.map();
        let frontends: usize = map.iter().map(|port| port.frontends().count()).sum();
        assert_eq!((map.len(), frontends), (5_000, 5_000 * 4));
        let endpoints: usize = map.iter().map(|port| port.endpoints.all.len()).sum();
        assert_eq!(endpoints, 262_144);
        let (recorder, mut events) = Recorder::new(16);
        let mut services = UnsupportedPreferences::new();
        report(
            &mut services,
            &recorder,
            ModeName::Nftables,
            Family::V4,
            Vec::new(),
            &changes,
            map,
        );
        let mut notes = Vec::new();
        while let Ok(event) = events.try_recv() {
            assert_eq!(event.reason, "NotHonoured");
            notes.push(event.note);
        }
        notes.sort_unstable();
        let [addresses, endpoints] = &notes[..] else {
            panic!("{notes:?}");
        };
        let begins = "the number of its addresses is not supported: it is served at its cluster IPs \
                      and at the first 3 of its 2000 ";
        assert!(addresses.starts_with(begins), "{addresses}");
        assert!(
            endpoints.starts_with("the number of its endpoints "),
            "{endpoints}"
        );
    }

    #[test]
    fn ranges_of_which_none_can_be_read_are_reported_in_each_family() {
        let object = json!({
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {
                "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{"port": 80}],
                "loadBalancerSourceRanges": ["10.0.0.0/33", "fd00::/8"],
            },
        });
        let object = serde_json::from_value(object).expect("a Service");
        let service = Service::reduce(&object, &mut Names::default()).expect("a good one");
        let mut tracker = Tracker::new("node");
        let changes = tracker.apply([Event::Changed(Object::Service(Arc::new(service.object)))]);
        let (recorder, mut events) = Recorder::new(16);
        let mut services = UnsupportedPreferences::new();
        for family in Family::ALL {
            let map = tracker.map();
            report(
                &mut services,
                &recorder,
                ModeName::Ipvs,
                family,
                Vec::new(),
                &changes,
                map,
            );
        }
        let note = events.try_recv().expect("an Event").note;
        let words = "spec.loadBalancerSourceRanges cannot be read: no range is an IPv4 CIDR";
        assert!(note.starts_with(words), "{note}");
        assert!(events.try_recv().is_err(), "IPv6 has a range");
    }

    #[test]
    fn an_annotation_that_cannot_be_read_is_reported_in_any_mode() {
        let mut names = Names::default();
        let mut service = |scheduler: &str| {
            let object = json!({
                "metadata": {
                    "namespace": "default", "name": "web",
                    "annotations": {"tripod.proxy/scheduler": scheduler},
                },
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
            });
            let object = serde_json::from_value(object).unwrap();
            let service = Service::reduce(&object, &mut names).unwrap();
            assert_eq!(service.warnings, [], "it is reported once");
            Event::Changed(Object::Service(Arc::new(service.object)))
        };
        let mut tracker = Tracker::new("node");
        let (recorder, mut events) = Recorder::new(16);
        let mut services = UnsupportedPreferences::new();
        let mut posted = |event: Option<Event>, full: bool| {
            let mut changes = tracker.apply(event);
            changes.full = full;
            let family = Family::V4;
            report(
                &mut services,
                &recorder,
                ModeName::Ipvs,
                family,
                Vec::new(),
                &changes,
                tracker.map(),
            );
            let mut notes = Vec::new();
            while let Ok(event) = events.try_recv() {
                notes.push(event.note);
            }
            notes
        };
        let long = service("a-name-of-many-more-bytes");
        let notes = posted(Some(long), false);
        let [note] = &notes[..] else {
            panic!("{notes:?}");
        };
        let begins = "tripod.proxy/scheduler cannot be read: metadata.annotations";
        assert!(note.starts_with(begins), "{note}");
        assert_eq!(posted(None, true), [""; 0], "a full sync");
        assert_eq!(posted(Some(service("wrr")), false), [""; 0]);
        assert_eq!(posted(Some(service("a name")), true).len(), 1);
    }
}
