//! Which endpoint each client is assigned to, by affinity or as a UDP flow, for the next process.

mod flow_record;
mod record;
#[cfg(test)]
mod tests;

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
    sync::{Arc, Weak},
    time::Duration,
};

use hashbrown::HashMap;
use net::Family;
use parking_lot::Mutex;

use self::{
    flow_record::FlowRecord,
    record::{Assignment, Kind, Subject},
};
use super::{
    plan::GroupName,
    proxy::{
        affinity::{Affinity, PinLimit},
        udp::{Association, Associations, PassedFlow},
    },
};
use crate::{hold::MOST_NOTES, kernel::uptime::uptime, services::ServicePortName};

/// Maximum number of records that one process gives another, enough for a million clients: as many
/// as the holder keeps.
const MOST_RECORDS: usize = MOST_NOTES;

/// Assignments of this process, and those inherited from another one.
#[derive(Debug, Default)]
pub struct Assignments(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    affinities: HashMap<ServicePortName, Weak<Affinity>>,
    flows: HashMap<GroupName, Weak<Associations>>,
    inherited: Inherited,
}

/// Assignments of another process, and flows with their sockets, until the Service to which they
/// belong exists.
type Inherited = HashMap<Subject, Vec<(Assignment, Option<Box<PassedFlow>>)>>;

/// A flow that can continue in another process, and its record.
pub struct FlowToPass {
    /// The flow, whose socket is passed along.
    pub flow: Arc<Association>,
    /// The encoded record for the other process.
    pub record: Vec<u8>,
}

impl Assignments {
    /// Clients of a ServicePort by affinity, in one table for all its groups, including inherited
    /// clients. All ServicePorts together have at most as many as `limit` allows.
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
        give_pins(&mut known.inherited, name, &fresh);
        known
            .affinities
            .insert(name.clone(), Arc::downgrade(&fresh));
        fresh
    }

    /// Frees expired pins, so that ServicePorts whose clients are gone leave their share to others.
    pub fn drop_expired(&self) {
        let known = self.0.lock();
        let affinities = known.affinities.values().filter_map(Weak::upgrade);
        affinities.for_each(|affinity| affinity.drop_expired());
    }

    /// Drops the clients of a ServicePort that was removed.
    pub fn remove(&self, name: &ServicePortName) {
        self.0.lock().affinities.remove(name);
    }

    /// Records the UDP flows of a group, and gives it the inherited ones.
    pub fn add_flows(&self, name: &GroupName, flows: &Arc<Associations>) {
        let mut known = self.0.lock();
        give_flows(&mut known.inherited, name, flows);
        known.flows.insert(name.clone(), Arc::downgrade(flows));
    }

    /// Records that a group was removed.
    pub fn remove_flows(&self, name: &GroupName) {
        self.0.lock().flows.remove(name);
    }

    /// Records of all assignments, for another process.
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
            let flows = flows.map(|assigned| Assignment::to_flow(assigned, now));
            Some((of_flows(name), flows.collect::<Vec<_>>()))
        });
        // Inherited assignments of Services that this process does not serve yet.
        let inherited = known.inherited.iter();
        let inherited = inherited.map(|(subject, all)| {
            let all = all.iter().map(|(one, _)| *one);
            (subject.clone(), all.collect())
        });
        let all = affinities.chain(flows).chain(inherited);
        let records = all.flat_map(|(subject, assigned)| record::encode(&subject, &assigned));
        records.take(MOST_RECORDS).collect()
    }

    /// Takes over the assignments of another process; malformed records are skipped. Returns the
    /// number of clients.
    pub fn inherit(&self, records: impl IntoIterator<Item = Vec<u8>>) -> usize {
        let mut known = self.0.lock();
        let mut clients = 0;
        let records = records.into_iter().take(MOST_RECORDS);
        for (subject, assignments) in records.filter_map(|record| record::parse(&record)) {
            clients += assignments.len();
            let inherited = known.inherited.entry(subject);
            let assignments = assignments.into_iter().map(|one| (one, None));
            inherited.or_default().extend(assignments);
        }
        clients
    }

    /// Number of inherited flows with sockets that belong to no group yet.
    pub fn passed_flows(&self) -> usize {
        let known = self.0.lock();
        let inherited = known.inherited.values().flatten();
        inherited.filter(|(_, flow)| flow.is_some()).count()
    }

    /// Flows whose sockets can be passed to another process, except those whose number `is_passed`
    /// already.
    pub fn flows_to_pass(&self, is_passed: impl Fn(u64) -> bool) -> Vec<FlowToPass> {
        let Some(now) = uptime() else {
            return Vec::new();
        };
        let known = self.0.lock();
        let groups = known.flows.iter();
        let groups = groups.filter_map(|(name, flows)| Some((name, flows.upgrade()?)));
        let passed = groups.flat_map(|(name, flows)| {
            let subject = of_flows(name);
            let flows = flows.to_pass_on().into_iter();
            let new = flows.filter(|flow| !is_passed(flow.number()));
            new.filter_map(move |flow| {
                let record = FlowRecord {
                    number: flow.number(),
                    listener: flow.listener()?,
                    exchange: flow.exchange(),
                    subject: subject.clone(),
                    assignment: Assignment::to_flow(flow.assigned(), now),
                };
                let record = record.encode()?;
                Some(FlowToPass { flow, record })
            })
        });
        passed.take(MOST_RECORDS).collect()
    }

    /// Takes over a flow that another process passed on with its socket, for a group that is added
    /// later or by [`Assignments::give`]; anything that is no record of one is skipped. `is_shared`
    /// says whether that process runs.
    pub fn inherit_flow(&self, record: &[u8], socket: OwnedFd, is_shared: bool) {
        let Some(record) = FlowRecord::parse(record) else {
            return;
        };
        let flow = PassedFlow {
            listener: record.listener,
            exchange: record.exchange,
            socket: socket.into(),
            is_shared,
        };
        let inherited = &mut self.0.lock().inherited;
        let inherited = inherited.entry(record.subject).or_default();
        inherited.push((record.assignment, Some(Box::new(flow))));
    }

    /// Gives the existing ServicePorts and groups the clients and flows that arrived after they
    /// were added.
    pub fn give(&self) {
        let mut known = self.0.lock();
        let Known {
            affinities,
            flows,
            inherited,
        } = &mut *known;
        if inherited.is_empty() {
            return;
        }
        for (name, affinity) in affinities {
            if let Some(affinity) = affinity.upgrade() {
                give_pins(inherited, name, &affinity);
            }
        }
        for (name, flows) in flows {
            if let Some(flows) = flows.upgrade() {
                give_flows(inherited, name, &flows);
            }
        }
    }

    /// Drops inherited assignments of Services of `family` that do not exist.
    pub fn drop_inherited(&self, family: Family) {
        let inherited = &mut self.0.lock().inherited;
        inherited.retain(|subject, _| subject.family != family);
    }
}

/// Gives a ServicePort its inherited clients.
fn give_pins(inherited: &mut Inherited, name: &ServicePortName, affinity: &Affinity) {
    let pins = inherited.remove(&of_affinity(name)).into_iter().flatten();
    affinity.inherit(pins.map(|(pin, _)| (pin.client.ip(), pin.endpoint, age(pin.last_used))));
}

/// Gives a group its inherited clients, and their flows.
fn give_flows(inherited: &mut Inherited, name: &GroupName, flows: &Associations) {
    for (client, flow) in inherited.remove(&of_flows(name)).into_iter().flatten() {
        flows.inherit(client.of_flow(), flow.map(|flow| *flow));
    }
}

/// Decodes arbitrary `bytes` as each kind of record; for fuzzing.
#[cfg(fuzzing)]
pub fn read_anything(bytes: &[u8]) {
    record::read_anything(bytes);
    flow_record::read_anything(bytes);
}

/// The time since `then`; both are measured from the machine's start.
fn age(then: Duration) -> Duration {
    uptime().map_or(Duration::ZERO, |now| now.saturating_sub(then))
}

impl Assignment {
    /// A UDP client's flow, its endpoint, and how long it has been idle.
    fn of_flow(&self) -> ((SocketAddr, IpAddr), SocketAddr, Duration) {
        let key = (self.client, self.called);
        (key, self.endpoint, age(self.last_used))
    }

    fn to_flow(
        ((client, called), endpoint, idle): ((SocketAddr, IpAddr), SocketAddr, Duration),
        now: Duration,
    ) -> Assignment {
        Assignment {
            client,
            called,
            endpoint,
            last_used: now.saturating_sub(idle),
        }
    }
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
