//! One IP family: its state between syncs, and its part of a sync.

use std::{collections::BTreeSet, mem, net::SocketAddr, sync::Arc, time::Duration};

use hashbrown::HashSet;
use ipvs::ipset::Element;
use net::Family;
use nix::errno::Errno;
use tokio::time::Instant;

use super::{
    Error,
    clients::Clients,
    compare::Comparison,
    desired::{Desired, Dirty},
    diff,
    drain::{Drains, FIRST_PAUSE},
    execute::{Execution, Full, Repaired, Results},
    observe::{Listing, RealServers, Servers},
    plan::{self, NonEmptySets, Options, ServerId, Set},
    rules::FamilyRules,
    taken_over::TakenOver,
};
use crate::{
    modes::{
        Difference, Drain, FailedPorts, MOST_DRAINS, Metrics, SyncReport, Unwritten,
        progress::SyncProgress,
        repairs::Repairs,
        state::{CacheState, FamilyState},
        unsupported, why_missed,
    },
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
};

/// One IP family of the mode.
pub struct ServedFamily {
    family: Family,
    /// Whether the kernel has the applied state, and the changes that must be applied again.
    pub state: FamilyState<Dirty>,
    /// Virtual servers in the kernel.
    servers: Servers,
    /// The virtual server that is looked up, to notice that another process removed all.
    asked_for: Option<ServerId>,
    drains: Drains,
    rules: FamilyRules,
    /// Repairs of changes by other programs.
    repairs: Repairs,
    progress: SyncProgress,
}

/// Work of a sync of one family.
#[derive(Debug, Default)]
pub struct Work {
    /// Everything is compared with the kernel, which is observed for that.
    pub observes: bool,
    dirty: Dirty,
    /// Connections whose count was due by then are counted.
    counted_at: Option<Instant>,
    /// How many ServicePorts were planned.
    examined: usize,
}

/// Observed state of one family in the kernel, except rules.
#[derive(Debug)]
pub struct Observation {
    /// Objects that are not as desired; of virtual servers, all that are ours.
    dirty: Dirty,
    /// Virtual servers that were put there and are not there any more.
    lost: HashSet<ServerId>,
    /// Sets that were missing.
    made_sets: Vec<&'static str>,
    full: Full,
}

impl Observation {
    /// Adds the real servers that the kernel has.
    pub fn set_real_servers(&mut self, real_servers: Arc<RealServers>) {
        self.full.real_servers = real_servers;
    }
}

/// State that the families of the mode share in a sync.
pub struct Shared<'a> {
    /// The interfaces of the kernel.
    pub clients: &'a mut Clients,
    /// The desired state.
    pub desired: &'a Desired,
    /// Settings of the mode.
    pub options: &'a Options,
    /// Records how long flows were searched for, and how many were deleted.
    pub metrics: &'a dyn Metrics,
}

impl ServedFamily {
    /// Returns a family of which nothing is known yet.
    pub fn new(family: Family, rules: FamilyRules) -> ServedFamily {
        ServedFamily {
            family,
            state: FamilyState::default(),
            servers: Servers::default(),
            asked_for: None,
            drains: Drains::default(),
            rules,
            repairs: Repairs::default(),
            progress: SyncProgress::default(),
        }
    }

    /// Returns the rules around the virtual servers.
    pub fn rules(&self) -> &FamilyRules {
        &self.rules
    }

    /// Must be called `before` and after others in this process write rules.
    pub fn expect_changes(&mut self, before: bool) {
        self.rules.expect_changes(before);
    }

    /// The counter of a sync's progress.
    pub fn progress(&self) -> SyncProgress {
        self.progress.clone()
    }

    /// Returns how many virtual servers the kernel has.
    pub fn servers(&self) -> usize {
        self.servers.len()
    }

    /// Returns false if another process took the virtual servers away. One is looked up,
    /// since a program that clears IPVS (`ipvsadm -C`) leaves none; the kernel has no
    /// notifications of that. It is the same one as long as it is there; only to choose
    /// another one are all searched, for the smallest, which does not depend on chance.
    pub fn has_virtual_servers(&mut self, clients: &mut Clients) -> bool {
        let known = self.asked_for.filter(|one| self.servers.contains_key(one));
        self.asked_for = known.or_else(|| self.servers.keys().min().copied());
        self.asked_for.is_none_or(|frontend| {
            let found = clients.ipvs.totals(&frontend);
            !found.is_err_and(|error| error.errno() == Some(Errno::ESRCH))
        })
    }

    /// Returns false if another process changed the applied rules, as far as that can be seen
    /// without reading them.
    pub fn has_rules(&mut self) -> bool {
        self.rules.is_unmodified()
    }

    /// Updates the desired state for the ServicePorts `names` of `map`. Returns the work of a sync;
    /// until it is done, all of it is pending.
    pub fn update(
        &mut self,
        desired: &mut Desired,
        map: &ServiceMap,
        names: BTreeSet<ServicePortName>,
    ) -> Work {
        let mut work = Work {
            examined: names.len(),
            ..Work::default()
        };
        for name in names {
            desired.update(&name, map.get(&name), &mut work.dirty);
        }
        work.dirty.extend(mem::take(self.state.pending()));
        let now = Instant::now();
        work.dirty.frontends.extend(self.drains.due(now));
        work.counted_at = Some(now);
        *self.state.pending() = work.dirty.clone();
        work
    }

    /// Makes the sets that are missing. Returns their names.
    ///
    /// # Errors
    /// When a set cannot be made.
    pub fn ensure_sets(
        &self,
        clients: &mut Clients,
        desired: &Desired,
    ) -> Result<Vec<&'static str>, netlink::Error> {
        let (family, needs) = (self.family, desired.needs());
        let non_empty = needs.non_empty(family);
        clients.ensure_sets(family, |set| {
            let needed = set.is_kube_proxys() || non_empty.contains(set);
            needed.then(|| needs.size(set, family))
        })
    }

    /// Compares the kernel with the desired state, after `made_sets` were missing. Members are
    /// compared one set at a time: not all are in memory at once.
    ///
    /// # Errors
    /// When a set cannot be read.
    pub fn observe(
        &mut self,
        listing: &mut Listing,
        clients: &mut Clients,
        desired: &Desired,
        made_sets: Vec<&'static str>,
    ) -> Result<Observation, netlink::Error> {
        let (family, needs) = (self.family, desired.needs());
        let observed = listing.take(family, clients, desired, &self.servers)?;
        let mut dirty = diff::dirty(family, &observed, needs);
        let mut non_empty = NonEmptySets::default();
        for set in Set::ALL {
            let members: HashSet<Element> = clients.members(set, family)?.into_iter().collect();
            if !members.is_empty() {
                non_empty.insert(set);
            }
            let members = diff::dirty_members(set, family, members, &observed.servers, desired);
            dirty.members.extend(members);
        }
        let before = mem::replace(&mut self.servers, observed.servers);
        let lost = before.into_keys();
        let lost = lost.filter(|frontend| !self.servers.contains_key(frontend));
        Ok(Observation {
            dirty,
            lost: lost.collect(),
            made_sets,
            full: Full {
                real_servers: Arc::default(),
                non_empty,
                eligible: observed.eligible,
                known: None,
            },
        })
    }

    /// Lists the differences between the kernel and the desired state, rules included.
    ///
    /// # Errors
    /// When something cannot be read.
    pub async fn compare(
        &self,
        comparison: &mut Comparison<'_>,
        listing: &mut Listing,
    ) -> Result<Vec<Difference>, Error> {
        let mut differences = comparison.differences(listing, &self.servers)?;
        let desired = comparison.desired;
        let non_empty = desired.needs().non_empty(self.family);
        differences.extend(self.rules.compare(desired.node(), non_empty).await?);
        Ok(differences)
    }

    /// Applies the desired state where `work`, or the observation of a full sync, requires it;
    /// `map` and `changes` are those that the sync was asked for.
    ///
    /// # Errors
    /// Those of the observation, and of running the steps.
    pub async fn sync(
        &mut self,
        work: Work,
        observation: Option<Result<Observation, netlink::Error>>,
        map: &ServiceMap,
        changes: &Changes,
        shared: Shared<'_>,
    ) -> Result<SyncReport, Error> {
        let (metrics, desired) = (shared.metrics, shared.desired);
        self.state.begin_sync();
        self.repairs.begin(changes);
        let is_observed = !matches!(observation, Some(Err(_)));
        let applied = match observation {
            Some(Ok(observation)) => self.repair(work.dirty, observation, shared).await,
            Some(Err(error)) => Err(error.into()),
            None => self.execute(&work.dirty, None, shared).await,
        };
        for _ in 0..self.rules.take_failures() {
            metrics.unwritten(self.family, Unwritten::Rules, 1);
        }
        let repaired = match applied {
            Ok(repaired) => repaired,
            Err(error) => {
                if is_observed {
                    // Unanswered changes may have been made: virtual servers that are not on record
                    // would stay, without the members that masquerade and guard them.
                    self.state.invalidate();
                } else {
                    self.state.suspect();
                }
                self.state.restore_failures();
                return Err(error);
            }
        };
        if let Some(now) = work.counted_at {
            self.drains.postpone(now);
        }
        if repaired == Repaired::Some {
            self.state.flows.rules_were_missing();
        }
        let taken_over = TakenOver::new(map, desired.node());
        let reasons = |port: &ServicePort| {
            let mut reasons = plan::unsupported(port, desired.node());
            reasons.extend(taken_over.reasons(port));
            reasons
        };
        let mut report = SyncReport {
            examined: work.examined,
            unsupported: unsupported::of_changed(self.family, map, changes, reasons),
            next_check: self.next_check(),
            draining: self.drains.len(),
            drains: self.drains.all().take(MOST_DRAINS).map(drain).collect(),
            ..SyncReport::default()
        };
        self.state
            .end_sync(self.family, map, changes, metrics, &mut report)
            .await;
        if let Some(why) = self.rules.unserved() {
            // One reason is enough for all that is not opened without rules.
            report.not_served = why_missed(self.family, map, why);
            report.failed = FailedPorts::default();
        }
        Ok(report)
    }

    /// Applies the observed differences. `changed` are the known changes; another program changed
    /// the rest, unless nothing was observed before.
    async fn repair(
        &mut self,
        mut changed: Dirty,
        observation: Observation,
        shared: Shared<'_>,
    ) -> Result<Repaired, Error> {
        let Observation {
            mut dirty,
            lost,
            made_sets,
            mut full,
        } = observation;
        let is_first = self.state.cache() == CacheState::Unknown;
        if !is_first {
            let sets = made_sets.iter().map(|set| format!("set {set}"));
            let others = diff::repairs(&dirty, &changed);
            self.repairs.log(&sets.chain(others).collect::<Vec<_>>());
        }
        dirty.frontends.extend(&changed.frontends);
        // A frontend that changed and was also missing had been removed by another program.
        changed.frontends.retain(|one| !lost.contains(one));
        full.known = (!is_first).then_some(changed);
        self.execute(&dirty, Some(&full), shared).await
    }

    async fn execute(
        &mut self,
        dirty: &Dirty,
        full: Option<&Full>,
        shared: Shared<'_>,
    ) -> Result<Repaired, Error> {
        let is_first = self.state.cache() == CacheState::Unknown;
        let execution = Execution {
            family: self.family,
            clients: shared.clients,
            desired: shared.desired,
            options: shared.options,
            servers: &mut self.servers,
            drains: &mut self.drains,
            rules: &mut self.rules,
            state: &mut self.state,
            full,
            repairs: &mut self.repairs,
            now: Instant::now(),
            results: Results::default(),
            progress: &self.progress,
        };
        let outcome = execution.run(dirty).await;
        let repaired = self.rules.take_repaired();
        if !is_first {
            self.repairs.log(&repaired);
        }
        outcome
    }

    /// Returns how soon another sync is due even if nothing changes; `None`: nothing
    /// waits for one.
    fn next_check(&self) -> Option<Duration> {
        // Where connections could not be counted, that is not tried again at once.
        let drained = self.drains.next_due().map(|at| {
            at.saturating_duration_since(Instant::now())
                .max(FIRST_PAUSE)
        });
        let rules = self.rules.next_check();
        rules.into_iter().chain(drained).min()
    }
}

/// Describes a drained real server.
fn drain((frontend, real): (&ServerId, SocketAddr)) -> Drain {
    Drain {
        address: frontend.to_string(),
        endpoint: Some(real),
    }
}
