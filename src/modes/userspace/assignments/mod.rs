//! Which endpoint each client is assigned to, by affinity or as a flow of UDP: what the
//! next process goes on with.

mod record;
#[cfg(test)]
mod tests;

#[cfg(fuzzing)]
pub use self::record::read_anything;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use hashbrown::HashMap;
use parking_lot::Mutex;

use self::record::{Assignment, Kind, Subject};
use super::{
    plan::GroupName,
    proxy::{
        affinity::{Affinity, PinLimit},
        udp::Associations,
    },
};
use crate::{hold::MOST_NOTES, kernel::uptime::uptime, net::Family, services::ServicePortName};

/// Records that one process gives another, at most, a million clients: as many as the
/// holder keeps.
pub const MOST_RECORDS: usize = MOST_NOTES;

/// What is assigned now, and what another process had assigned.
#[derive(Debug, Default)]
pub struct Assignments(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    affinities: HashMap<ServicePortName, Weak<Affinity>>,
    flows: HashMap<GroupName, Weak<Associations>>,
    /// Of another process, until there is a Service to which it belongs.
    inherited: HashMap<Subject, Vec<Assignment>>,
}

impl Assignments {
    /// Returns the clients of a ServicePort by affinity, which is one table for all its
    /// groups; what another process had is in it. All of them have as many as `limit` allows.
    pub fn affinity(
        &self,
        name: &ServicePortName,
        timeout: Duration,
        limit: &Arc<PinLimit>,
    ) -> Arc<Affinity> {
        let mut known = self.0.lock();
        if let Some(affinity) = known.affinities.get(name).and_then(Weak::upgrade) {
            affinity.set_timeout(timeout);
            return affinity;
        }
        let fresh = Arc::new(Affinity::new(name.to_string().into(), timeout, limit));
        if let Some(inherited) = known.inherited.remove(&of_affinity(name)) {
            let pins = inherited.iter();
            fresh.inherit(pins.map(|pin| (pin.client.ip(), pin.endpoint, age(pin.last_used))));
        }
        known
            .affinities
            .insert(name.clone(), Arc::downgrade(&fresh));
        fresh
    }

    /// Frees the pins that have expired, so that ServicePorts whose clients went leave theirs
    /// to others.
    pub fn drop_expired(&self) {
        let known = self.0.lock();
        let affinities = known.affinities.values().filter_map(Weak::upgrade);
        affinities.for_each(|affinity| affinity.drop_expired());
    }

    /// Forgets the clients of a ServicePort that is gone.
    pub fn forget(&self, name: &ServicePortName) {
        self.0.lock().affinities.remove(name);
    }

    /// Records that a group has these UDP flows, and gives it what another process had.
    pub fn add_flows(&self, name: &GroupName, flows: &Arc<Associations>) {
        let mut known = self.0.lock();
        if let Some(inherited) = known.inherited.remove(&of_flows(name)) {
            let flow = |flow: Assignment| {
                let key = (flow.client, flow.called);
                (key, flow.endpoint, age(flow.last_used))
            };
            flows.inherit(inherited.into_iter().map(flow));
        }
        known.flows.insert(name.clone(), Arc::downgrade(flows));
    }

    /// Records that a group is gone.
    pub fn remove_flows(&self, name: &GroupName) {
        self.0.lock().flows.remove(name);
    }

    /// Returns records of all that is assigned, for another process.
    pub fn records(&self) -> Vec<Vec<u8>> {
        let Some(now) = uptime() else {
            return Vec::new();
        };
        let at = |idle: Duration| now.saturating_sub(idle);
        let known = self.0.lock();
        let affinities = known.affinities.iter().filter_map(|(name, affinity)| {
            let pins = affinity.upgrade()?.pins().into_iter();
            let pins = pins.map(|(client, endpoint, idle)| Assignment {
                client: (client, 0).into(),
                called: name.family.unspecified(),
                endpoint,
                last_used: at(idle),
            });
            Some((of_affinity(name), pins.collect::<Vec<_>>()))
        });
        let flows = known.flows.iter().filter_map(|(name, flows)| {
            let flows = flows.upgrade()?.assigned().into_iter();
            let flows = flows.map(|((client, called), endpoint, idle)| Assignment {
                client,
                called,
                endpoint,
                last_used: at(idle),
            });
            Some((of_flows(name), flows.collect::<Vec<_>>()))
        });
        // Of Services that this process does not serve yet.
        let inherited = known.inherited.iter();
        let inherited = inherited.map(|(subject, all)| (subject.clone(), all.clone()));
        let all = affinities.chain(flows).chain(inherited);
        let records = all.flat_map(|(subject, assigned)| record::encode(&subject, &assigned));
        records.take(MOST_RECORDS).collect()
    }

    /// Takes over what another process had assigned; what is no such record is passed
    /// over. Returns how many clients these are.
    pub fn inherit(&self, records: impl IntoIterator<Item = Vec<u8>>) -> usize {
        let mut known = self.0.lock();
        let mut clients = 0;
        let records = records.into_iter().take(MOST_RECORDS);
        for (subject, assignments) in records.filter_map(|record| record::parse(&record)) {
            clients += assignments.len();
            let inherited = known.inherited.entry(subject);
            inherited.or_default().extend(assignments);
        }
        clients
    }

    /// Forgets what another process had assigned of Services of `family` that there are
    /// none of.
    pub fn drop_inherited(&self, family: Family) {
        let inherited = &mut self.0.lock().inherited;
        inherited.retain(|subject, _| subject.family != family);
    }
}

/// Returns the time since `then`, both after the machine's start.
fn age(then: Duration) -> Duration {
    uptime().map_or(Duration::ZERO, |now| now.saturating_sub(then))
}

fn of_affinity(name: &ServicePortName) -> Subject {
    Subject {
        kind: Kind::Affinity,
        protocol: name.protocol,
        family: name.family,
        label: name.to_string(),
    }
}

fn of_flows(name: &GroupName) -> Subject {
    Subject {
        kind: Kind::Flows,
        protocol: name.port.protocol,
        family: name.port.family,
        label: name.label().to_string(),
    }
}
