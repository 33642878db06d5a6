//! Virtual servers and their real servers.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use hashbrown::HashSet;
use ipvs::Change;

use super::{Execution, Repaired, is_unexpected};
use crate::{
    modes::ipvs::{
        blocked::{guarding, guards, keeps_out, shutting},
        desired::{Dirty, Serving},
        diff::{Present, server_difference},
        objects,
        observe::ServerDigest,
        plan::{Member, NonEmptySets, ServerId, ServicePlan, Set, VirtualServer},
    },
    services::{ServicePort, ServicePortName},
};

/// How many changes of virtual servers are made at a time.
const BATCH: usize = 2000;

impl Execution<'_> {
    /// Makes virtual servers that are open follow their endpoints. Returns those that must wait, as
    /// new ones do, until the rules are applied.
    pub(super) fn follow(
        &mut self,
        frontends: &HashSet<ServerId>,
        dirty: &Dirty,
    ) -> Result<HashSet<ServerId>, netlink::Error> {
        let mut closed = HashSet::new();
        let mut changes = Vec::new();
        for port in self.owners(frontends) {
            let plan = self.plan_of(&port, frontends);
            for server in plan.servers {
                let members: Vec<Member> = shutting(&server.frontend, &plan.members).collect();
                if self.waits_for_rules(&server, &members, dirty)? {
                    closed.insert(server.frontend);
                } else {
                    self.bring_in_line(&port, &server, &mut changes)?;
                    self.progress.send(1);
                }
            }
            self.change_full_batch(&mut changes)?;
        }
        self.change_servers(changes)?;
        self.repairs
            .log(&std::mem::take(&mut self.results.repaired));
        Ok(closed)
    }

    /// Returns true if `server` must not get its endpoints yet: the `members` that make it keep
    /// callers out are not applied, and either one of them is new, or it has no usable endpoint.
    fn waits_for_rules(
        &mut self,
        server: &VirtualServer,
        members: &[Member],
        dirty: &Dirty,
    ) -> Result<bool, netlink::Error> {
        let sets: NonEmptySets = members.iter().map(|member| member.set).collect();
        let in_force = self.rules.in_force();
        if members.is_empty() || !self.results.blocked.lacks(&server.frontend, sets, in_force) {
            return Ok(false);
        }
        let is_new = |member: &Member| dirty.members.contains_key(member);
        Ok(members.iter().any(is_new) || self.leads_nowhere(server)?)
    }

    /// Returns true if new connections to the virtual server in the kernel have no endpoint.
    fn leads_nowhere(&mut self, server: &VirtualServer) -> Result<bool, netlink::Error> {
        let full = self.full;
        if full.is_some_and(|full| full.real_servers.has_those_of(server)) {
            return Ok(server.reals.is_empty());
        }
        let reals = self.clients.ipvs.list_real(&server.frontend)?;
        Ok(reals.iter().all(|real| real.server.weight == 0))
    }

    /// Opens virtual servers, except those that are blocked.
    pub(super) fn open(&mut self, frontends: &HashSet<ServerId>) -> Result<(), netlink::Error> {
        let rules = self.rules.in_force();
        let mut changes = Vec::new();
        for port in self.owners(frontends) {
            let mut waiting = Vec::new();
            let ServicePlan {
                servers, members, ..
            } = self.plan_of(&port, frontends);
            self.progress.send(servers.len());
            for server in servers {
                let frontend = server.frontend;
                let guarding = guarding(&frontend, &members, self.desired.node());
                if self.results.blocked.blocks(&frontend, guarding, rules) {
                    self.results.again.frontends.insert(frontend);
                    // For the next sync, these members are new as well.
                    let new = shutting(&frontend, &members).map(|one| (one, Serving::Continues));
                    self.results.again.members.extend(new);
                    waiting.push(frontend);
                } else {
                    self.bring_in_line(&port, &server, &mut changes)?;
                }
            }
            // If the rules failed, the reason is logged once for all: it may differ each time.
            let frontends = match &waiting[..] {
                [] => None,
                [one] => Some(format!("{one} is")),
                [first, more @ ..] => Some(format!("{first} and {} more are", more.len())),
            };
            if let Some(frontends) = frontends {
                let why = format!(
                    "{frontends} not open yet: the {} rules that guard this are not applied",
                    self.family
                );
                self.state.fail(port.name.clone(), why);
            }
            self.change_full_batch(&mut changes)?;
        }
        self.change_servers(changes)?;
        self.repairs
            .log(&std::mem::take(&mut self.results.repaired));
        Ok(())
    }

    /// Reports the ServicePorts that are open while rules that guard them are not applied: they
    /// were open before they got source ranges or another policy.
    pub(super) fn report_unguarded(&mut self) {
        let needed = self.desired.needs().non_empty(self.family);
        let in_force = match self.rules.in_force() {
            Some(sets) => sets,
            None if self.rules.failure().is_some() => NonEmptySets::default(),
            // Rules of an earlier process, which were not read yet, may still be there.
            None => return,
        };
        let node = self.desired.node();
        let lacking = |set: &Set| {
            let guards = keeps_out(*set) || guards(*set, node);
            guards && needed.contains(*set) && !in_force.contains(*set)
        };
        let lacking: NonEmptySets = Set::ALL.into_iter().filter(lacking).collect();
        if lacking == NonEmptySets::default() {
            return;
        }
        for port in self.desired.ports(self.family) {
            let members = self.desired.plan(port).members.into_iter();
            let of_port: Vec<Set> = members
                .map(|member| member.set)
                .filter(|set| lacking.contains(*set))
                .collect();
            let what = match &of_port[..] {
                [] => continue,
                sets if sets.iter().any(|set| keeps_out(*set)) => "for its source ranges",
                _ => "that say whether its callers are masqueraded",
            };
            let why = format!(
                "the {} rules {what} are not applied; they are tried again",
                self.family
            );
            self.state.fail(port.name.clone(), why);
        }
    }

    /// Deletes virtual servers with their real servers.
    pub(super) fn close(&mut self, frontends: &[ServerId]) -> Result<(), netlink::Error> {
        self.progress.send(frontends.len());
        let ids = frontends.iter().copied();
        self.change_servers(ids.map(Change::Delete).collect())
    }

    /// Returns the ServicePorts of these virtual servers; on a full sync, which
    /// concerns nearly all, those of the family.
    fn owners(&self, frontends: &HashSet<ServerId>) -> Vec<Arc<ServicePort>> {
        if frontends.is_empty() {
            return Vec::new();
        }
        if self.full.is_some() {
            let mut ports: Vec<_> = self.desired.ports(self.family).cloned().collect();
            // In the same order each time, independent of the map's.
            ports.sort_unstable_by(|one, other| one.name.cmp(&other.name));
            return ports;
        }
        let names = frontends.iter();
        let names = names.filter_map(|frontend| self.desired.needs().owner(frontend));
        let names: BTreeSet<&ServicePortName> = names.collect();
        let ports = names.into_iter();
        ports
            .filter_map(|name| self.desired.port(name).cloned())
            .collect()
    }

    /// Plans `port`, with those of its virtual servers that are its own and among `frontends`.
    fn plan_of(&self, port: &ServicePort, frontends: &HashSet<ServerId>) -> ServicePlan {
        let mut plan = self.desired.plan(port);
        let needs = self.desired.needs();
        plan.servers.retain(|server| {
            let frontend = &server.frontend;
            frontends.contains(frontend) && needs.owner(frontend) == Some(&port.name)
        });
        plan
    }

    /// Appends the changes that turn the kernel's virtual server into the one for `port`.
    fn bring_in_line(
        &mut self,
        port: &ServicePort,
        server: &VirtualServer,
        changes: &mut Vec<Change>,
    ) -> Result<(), netlink::Error> {
        let frontend = &server.frontend;
        let present = self.servers.get(frontend);
        let is_same = present.map(|there| *there == ServerDigest::of(&server.to_kernel()));
        let has_reals = || {
            let full = self.full;
            full.is_some_and(|full| full.real_servers.has_those_of(server))
        };
        if is_same == Some(true) && has_reals() {
            self.drains.remove(frontend);
            return Ok(());
        }
        let reals = match is_same {
            Some(_) => self.clients.ipvs.list_real(frontend)?,
            None => Vec::new(),
        };
        let present = is_same.map(|is_same| Present {
            is_same,
            reals: &reals,
        });
        let limit = port.preferences().drain_timeout;
        let limit = limit.or(self.options.drain_timeout);
        let drained = self.drains.of(frontend);
        let difference = server_difference(server, present, limit, self.drains, self.now);
        self.drains.update(frontend, &difference.drained, self.now);
        let is_end_of_drain = |change: &Change| match change {
            Change::DeleteReal(_, real) => drained.contains(real),
            _ => false,
        };
        if !difference.changes.iter().all(is_end_of_drain) {
            self.record_repair(frontend);
        }
        changes.extend(difference.changes);
        Ok(())
    }

    /// Records that `frontend` was not as it should be, unless it is known to have changed.
    fn record_repair(&mut self, frontend: &ServerId) {
        let Some(full) = self.full else {
            return;
        };
        if let Some(known) = &full.known {
            if known.frontends.contains(frontend) {
                return;
            }
            self.results
                .repaired
                .push(objects::virtual_server(frontend));
        }
        self.results.has_repaired = Repaired::Some;
    }

    fn change_full_batch(&mut self, changes: &mut Vec<Change>) -> Result<(), netlink::Error> {
        if changes.len() < BATCH {
            return Ok(());
        }
        self.change_servers(std::mem::take(changes))
    }

    /// Makes additions first, then changes that take new connections away. If a real server was
    /// refused and no other in use would be left, the latter are not made until it is tried again.
    fn change_servers(&mut self, changes: Vec<Change>) -> Result<(), netlink::Error> {
        let (mut going, coming): (Vec<Change>, Vec<Change>) =
            changes.into_iter().partition(takes_new_connections_away);
        let mut stay = HashSet::new();
        for frontend in self.apply(&coming)? {
            let goes = |real: SocketAddr| {
                let mut gone = going.iter().filter_map(|change| real_of(change, &frontend));
                gone.any(|gone| gone == real)
            };
            let reals = self.clients.ipvs.list_real(&frontend)?;
            let mut used = reals.iter().filter(|real| real.server.weight > 0);
            if used.all(|real| goes(real.server.address)) {
                stay.insert(frontend);
            }
        }
        going.retain(|change| !stay.contains(&frontend_of(change)));
        self.results.not_followed.extend(stay);
        let refused = self.apply(&going)?;
        self.results.not_followed.extend(refused);
        self.progress.confirm();
        Ok(())
    }

    /// Makes `changes`. Returns the virtual servers for which a change of a real server was
    /// refused.
    fn apply(&mut self, changes: &[Change]) -> Result<BTreeSet<ServerId>, netlink::Error> {
        let mut of_reals = BTreeSet::new();
        if changes.is_empty() {
            return Ok(of_reals);
        }
        let outcomes = self.clients.ipvs.apply(changes)?;
        // Changes of a refused virtual server are refused too.
        let mut refused: Option<ServerId> = None;
        for (change, outcome) in changes.iter().zip(outcomes) {
            let frontend = frontend_of(change);
            let Err(error) = outcome else {
                match change {
                    Change::Add(server) | Change::Edit(server) => {
                        self.servers.insert(frontend, ServerDigest::of(server));
                    }
                    Change::Delete(_) => drop(self.servers.remove(&frontend)),
                    _ => {}
                }
                continue;
            };
            if refused == Some(frontend) {
                continue;
            }
            refused = matches!(change, Change::Add(_)).then_some(frontend);
            if real_of(change, &frontend).is_some() {
                of_reals.insert(frontend);
            }
            self.results.found_unexpected |= is_unexpected(&error);
            self.results.again.frontends.insert(frontend);
            match self.desired.needs().owner(&frontend) {
                Some(owner) => self.state.fail(owner.clone(), error.to_string()),
                None => self.state.leave_unfinished(error.to_string()),
            }
        }
        Ok(of_reals)
    }
}

/// Returns true if a virtual server or a real one gets no new connections after `change`.
fn takes_new_connections_away(change: &Change) -> bool {
    match change {
        Change::Delete(_) | Change::DeleteReal(..) => true,
        Change::EditReal(_, real) => real.weight == 0,
        Change::Add(_) | Change::Edit(_) | Change::AddReal(..) => false,
    }
}

/// Returns the real server of `frontend` that `change` is about.
fn real_of(change: &Change, frontend: &ServerId) -> Option<SocketAddr> {
    let real = match change {
        Change::AddReal(_, real) | Change::EditReal(_, real) => real.address,
        Change::DeleteReal(_, real) => *real,
        Change::Add(_) | Change::Edit(_) | Change::Delete(_) => return None,
    };
    (frontend_of(change) == *frontend).then_some(real)
}

fn frontend_of(change: &Change) -> ServerId {
    match change {
        Change::Add(server) | Change::Edit(server) => server.id,
        Change::Delete(id)
        | Change::AddReal(id, _)
        | Change::EditReal(id, _)
        | Change::DeleteReal(id, _) => *id,
    }
}
