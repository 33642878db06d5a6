//! Network programming latency: the time from a change of a pod or Service until it is applied on
//! this node. The endpoints controller writes the time of the change to the EndpointSlice
//! (annotation `endpoints.kubernetes.io/last-change-trigger-time`).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime},
};

use net::{Family, PerFamily};

use crate::services::{Changes, ServiceName};

/// Times of changes that are not applied yet.
#[derive(Debug)]
pub(super) struct Triggers {
    /// Changes before this time are not counted: an earlier process applied them, or failed.
    since: SystemTime,
    pending: PerFamily<BTreeMap<ServiceName, BTreeSet<SystemTime>>>,
}

/// Maximum number of times per Service, and of Services, that wait while a family fails; later ones
/// are not counted.
const MOST_TIMES: usize = 100;
const MOST_SERVICES: usize = 100_000;

impl Triggers {
    pub(super) fn new(since: SystemTime) -> Triggers {
        Triggers {
            since,
            pending: PerFamily::default(),
        }
    }

    /// Records that the endpoints of `service` changed because of an event at `at`.
    pub(super) fn add(&mut self, service: &ServiceName, at: SystemTime) {
        if at < self.since {
            return;
        }
        for (_, pending) in self.pending.iter_mut() {
            if pending.len() < MOST_SERVICES {
                let of_service = pending.entry(service.clone()).or_default();
                if of_service.len() < MOST_TIMES {
                    of_service.insert(at);
                }
            }
        }
    }

    /// Records that everything of `family`, including `changes`, is applied. Returns the latency of
    /// each change; changes that made no difference do not count.
    pub(super) fn in_force(
        &mut self,
        family: Family,
        changes: &Changes,
        now: SystemTime,
    ) -> Vec<Duration> {
        let pending = std::mem::take(self.pending.get_mut(family));
        if pending.is_empty() {
            return Vec::new();
        }
        let changed = changes.ports.iter();
        let changed: BTreeSet<&ServiceName> = changed
            .filter(|port| port.family == family)
            .map(|port| &port.service)
            .collect();
        let mut took = Vec::new();
        for service in changed {
            for at in pending.get(service).into_iter().flatten() {
                // The clocks of two machines differ: a change may seem to be in the future.
                took.push(now.duration_since(*at).unwrap_or_default());
            }
        }
        took
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::services::service_ports::{port_name, service_name as service};

    fn changed(ports: &[(&str, Family)]) -> Changes {
        let name = |(service, family): &(&str, Family)| port_name(service).in_family(*family);
        Changes {
            ports: ports.iter().map(name).collect(),
            ..Changes::default()
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn each_change_that_made_a_difference_is_counted_once() {
        let mut triggers = Triggers::new(at(100));
        triggers.add(&service("old"), at(99));
        triggers.add(&service("web"), at(100));
        triggers.add(&service("web"), at(103));
        triggers.add(&service("same"), at(103));
        triggers.add(&service("ahead"), at(111));
        let changes = changed(&[
            ("old", Family::V4),
            ("web", Family::V6),
            ("other", Family::V4),
            ("ahead", Family::V4),
        ]);
        let mut seconds = |family, now| {
            let took = triggers.in_force(family, &changes, at(now));
            took.iter().map(Duration::as_secs).collect::<Vec<_>>()
        };
        assert_eq!(seconds(Family::V4, 110), [0]);
        assert_eq!(seconds(Family::V4, 111), [0; 0]);
        assert_eq!(seconds(Family::V6, 120), [20, 17], "it came later");
        assert_eq!(seconds(Family::V6, 121), [0; 0]);
    }
}
