//! The sync runner: folds batches of events into the service map and has the mode apply the
//! changes, again and again until it succeeds.
//!
//! [`schedule`] decides when to sync; [`health`] and [`metrics`] record the results. Each IP family
//! has its own pending changes, retries and health: a family that fails does not delay the other.

mod addresses;
mod conflicts;
mod failures;
pub mod health;
mod history;
mod last_ready;
mod latency;
pub mod metrics;
pub mod question;
pub mod schedule;
pub mod status;
mod this_node;
mod trim;
mod unsupported;
mod unwritten;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use net::{Family, PerFamily};
use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep_until},
};

pub use self::{
    addresses::NodeAddresses,
    this_node::{NodeDependents, pods_unknown},
};
use self::{
    addresses::changed,
    conflicts::Conflicts,
    failures::LoggedFailures,
    health::Health,
    last_ready::LastReady,
    latency::Triggers,
    metrics::Metrics,
    question::{Question, Questions},
    schedule::{Outcome, SyncScheduler, Turn},
    status::{Extent, PastSync, Status, SuccessfulSync},
    this_node::ThisNode,
    trim::Trimmer,
};
use crate::{
    events::Recorder,
    modes::{Mode, SyncError, SyncReport},
    services::{Batch, Changes, Event, Object, ObjectName, Owner, ServiceMap, Tracker},
};

/// Time to the next sync while addresses stay for their last connections.
const LINGER_CHECK: Duration = Duration::from_secs(1);

/// Follower of successful syncs.
pub trait AfterSync: Send {
    /// Called after a sync applied `family` of `map`, apart from ServicePorts that failed.
    /// `changes` are the differences from the previous call.
    fn synced(&mut self, family: Family, map: &ServiceMap, changes: &Changes);
}

/// Changes of one family that are not applied yet.
#[derive(Debug, Default)]
struct Pending {
    changes: Changes,
    /// Whether changes were added for which no sync has been requested yet.
    unrequested: bool,
    /// Events about Services and EndpointSlices that caused the changes.
    events: Events,
}

/// Number of events of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    services: u32,
    slices: u32,
}

/// Folds batches of events into a service map and has a mode apply the changes.
pub struct Runner<M> {
    mode: M,
    tracker: Tracker,
    options: schedule::Options,
    health: Arc<Health>,
    metrics: Metrics,
    triggers: Triggers,
    followers: Vec<Box<dyn AfterSync>>,
    pending: PerFamily<Pending>,
    failures: LoggedFailures,
    recorder: Recorder,
    conflicts: Conflicts,
    last_ready: LastReady,
    this_node: Option<ThisNode>,
    status: Arc<Status>,
    trimmer: Trimmer,
    questions: Questions,
    asked: Receiver<Question>,
}

impl<M: Mode> Runner<M> {
    /// A runner that has not synced yet.
    pub fn new(
        mode: M,
        tracker: Tracker,
        options: schedule::Options,
        health: Arc<Health>,
        metrics: Metrics,
    ) -> Self {
        let (questions, asked) = Questions::new();
        let progress = mode.progress();
        Runner {
            mode,
            tracker,
            options,
            health,
            triggers: Triggers::new(SystemTime::now()),
            followers: Vec::new(),
            metrics,
            pending: PerFamily::each(|_| Pending {
                changes: Changes {
                    full: true,
                    ..Changes::default()
                },
                ..Pending::default()
            }),
            failures: LoggedFailures::default(),
            status: Arc::new(Status::new(progress)),
            recorder: Recorder::nowhere(),
            conflicts: Conflicts::default(),
            last_ready: LastReady::default(),
            this_node: None,
            trimmer: Trimmer::default(),
            questions,
            asked,
        }
    }

    /// Posts Events to `recorder` about Services that request something the mode cannot do, or
    /// addresses that other Services own.
    pub fn post_to(&mut self, recorder: Recorder) {
        self.recorder = recorder;
    }

    /// Has the runner report that the object of the node `name` is not known, and what does not
    /// work without it.
    pub fn report_node(&mut self, name: &str, dependents: NodeDependents) {
        self.this_node = Some(ThisNode::new(name, dependents));
    }

    /// State of this runner, which may be read at any time.
    pub fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status)
    }

    /// Handle for asking this runner questions while it runs.
    pub fn questions(&self) -> Questions {
        self.questions.clone()
    }

    /// Calls `follower` after each successful sync.
    pub fn follow(&mut self, follower: impl AfterSync + 'static) {
        self.followers.push(Box::new(follower));
    }

    /// Runs until the source of batches ends. The first sync waits for the first batch, which is
    /// the complete initial state, and then for `before_sync`. A change of node addresses causes a
    /// full sync, and so does another program that modifies what the mode installed.
    pub async fn run(
        &mut self,
        mut batches: Receiver<Batch>,
        mut addresses: Option<impl NodeAddresses>,
        before_sync: impl Future<Output = ()>,
    ) {
        let mut watched = addresses.is_some();
        let Some(first) = batches.recv().await else {
            return;
        };
        before_sync.await;
        let mut scheduler = SyncScheduler::new(self.options.clone(), Instant::now());
        self.fold(first);
        self.health.objects_known();
        self.ask_all(&mut scheduler);
        loop {
            let now = Instant::now();
            let due = scheduler.due(now);
            if due <= now {
                while let Ok(batch) = batches.try_recv() {
                    self.fold(batch);
                }
                // Requests syncs for the changes just added, also for the other family.
                self.ask(&mut scheduler);
                self.sync(&mut scheduler, addresses.as_mut()).await;
                // Lets signals and probes be handled, however short the sync period is.
                tokio::task::yield_now().await;
                continue;
            }
            // Questions come last: clients that ask all the time must not delay a batch.
            tokio::select! {
                biased;
                () = self.mode.externally_modified() => self.ask_all(&mut scheduler),
                () = changed(addresses.as_mut(), &mut watched) => self.ask_all(&mut scheduler),
                () = sleep_until(due) => {}
                batch = batches.recv() => match batch {
                    Some(batch) => {
                        self.fold(batch);
                        self.ask(&mut scheduler);
                    }
                    None => return,
                },
                Some(question) = self.asked.recv() => self.answer(question).await,
                () = self.trimmer.settled() => self.trimmer.trim_again(),
                () = self.tracker.oddities_last() => self.tracker.log_lasting(),
                () = self.tracker.time_passes() => {
                    let changes = self.tracker.time_passed();
                    self.merge(changes, Events::default());
                    self.ask(&mut scheduler);
                }
            }
        }
    }

    async fn answer(&mut self, question: Question) {
        let Question {
            packets,
            compares,
            reply,
        } = question;
        if !reply.is_closed() {
            let map = self.tracker.map();
            let answer = question::answer(&mut self.mode, map, packets, compares).await;
            // The client may have stopped waiting.
            let _ = reply.send(answer);
            if compares {
                self.trimmer.kernel_read();
            }
        }
        self.trimmer.trim();
    }

    fn fold(&mut self, batch: Batch) {
        let mut events = Events::default();
        for event in &batch {
            if let Event::Changed(Object::EndpointSlice(slice)) = event
                && let Owner::Service(service) = &slice.owner
                && let Some(at) = slice.trigger.time()
            {
                self.triggers.add(service, at);
            }
            match event {
                Event::Changed(Object::Service(_)) | Event::Gone(ObjectName::Service(_)) => {
                    events.services += 1;
                }
                Event::Changed(Object::EndpointSlice(_))
                | Event::Gone(ObjectName::EndpointSlice(_)) => events.slices += 1,
                _ => {}
            }
        }
        let changes = self.tracker.apply(batch);
        self.metrics.services.seen(events.services);
        self.metrics.endpoints.seen(events.slices);
        let node = self.tracker.node();
        if let Some(node) = node {
            self.health.set_node(node, self.tracker.is_node_deleted());
        }
        let have_node_ports = self.tracker.map().has_node_ports();
        let this_node = self.this_node.as_mut();
        let missing = this_node.and_then(|this| {
            this.observe_families(node, &changes);
            this.observe(node, have_node_ports)
        });
        self.status.set_node(missing);
        self.merge(changes, events);
    }

    fn merge(&mut self, changes: Changes, events: Events) {
        // A change may have moved the table (`Arc::make_mut`).
        self.status.set_ports(self.tracker.map());
        for (family, changes) in changes.by_family() {
            if changes.is_empty() {
                continue;
            }
            let pending = self.pending.get_mut(family);
            pending.changes.merge(changes);
            pending.unrequested = true;
            pending.events.services += events.services;
            pending.events.slices += events.slices;
        }
        self.count_pending();
    }

    /// Updates the metrics of pending events; an event that is pending for both families counts
    /// once.
    fn count_pending(&self) {
        let (v4, v6) = (&self.pending.v4.events, &self.pending.v6.events);
        let metrics = &self.metrics;
        metrics.services.set_pending(v4.services.max(v6.services));
        metrics.endpoints.set_pending(v4.slices.max(v6.slices));
    }

    /// Requests a sync of the families for which changes were added.
    fn ask(&mut self, scheduler: &mut SyncScheduler) {
        for (family, pending) in self.pending.iter_mut() {
            if std::mem::take(&mut pending.unrequested) {
                scheduler.request(family);
                self.health.queued(family);
                self.metrics.queued(family);
            }
        }
    }

    /// Requests a full sync of both families.
    fn ask_all(&mut self, scheduler: &mut SyncScheduler) {
        for (_, pending) in self.pending.iter_mut() {
            pending.changes.full = true;
            pending.unrequested = true;
        }
        self.ask(scheduler);
    }

    async fn sync(
        &mut self,
        scheduler: &mut SyncScheduler,
        addresses: Option<&mut impl NodeAddresses>,
    ) {
        let begun = Instant::now();
        let turns = scheduler.begin(begun);
        for (family, turn) in turns {
            let changes = &mut self.pending.get_mut(family).changes;
            if let Some(Turn { full, retry }) = turn {
                changes.full |= full;
                changes.retry = retry;
            }
        }
        let due = |family: Family| turns.get(family).is_some();
        let full = PerFamily::each(|f| due(f) && self.pending.get(f).changes.full);
        if let Some(addresses) = addresses.filter(|_| full.v4 || full.v6) {
            self.observe_addresses(addresses);
        }
        let asked = PerFamily::each(|f| due(f).then_some(&self.pending.get(f).changes));
        for family in Family::ALL.into_iter().filter(|family| due(*family)) {
            // A sync that no change requested counts, too: if it hangs or fails, that sync is
            // overdue.
            self.health.queued(family);
            self.status.began(family);
        }
        let outcomes = self.mode.sync(self.tracker.map(), asked).await;
        let ended = Instant::now();
        for (family, outcome) in outcomes {
            if !due(family) {
                continue;
            }
            let full = *full.get(family);
            let outcome = outcome.unwrap_or_else(|| Ok(SyncReport::default()));
            let took = ended - begun;
            let ended_at = self.record(family, took, full, &outcome);
            let outcome = match outcome {
                Ok(report) => {
                    let lingering = (report.lingering > 0).then_some(LINGER_CHECK);
                    for pause in [lingering, report.next_check].into_iter().flatten() {
                        scheduler.sync_by(family, ended + pause);
                    }
                    let mut drains = report.drains.clone();
                    drains.sort_unstable();
                    let sync = SuccessfulSync {
                        ended: ended_at,
                        took,
                        full,
                        draining: report.lingering + report.draining,
                        drains: drains.into(),
                        not_served: report.not_served.clone(),
                        empty: self.tracker.map().of_family(family).next().is_none(),
                    };
                    let outcome = self.in_force(family, report);
                    self.status.synced(family, sync, self.failures.of(family));
                    outcome
                }
                Err(error) => self.failed(family, &error),
            };
            scheduler.end(family, ended, outcome);
        }
        if full.v4 && full.v6 {
            scheduler.was_full(ended);
        }
        self.count_pending();
        self.trimmer.trim();
        // Changes of node addresses may concern a family that was not due.
        self.ask(scheduler);
    }

    fn in_force(&mut self, family: Family, report: SyncReport) -> Outcome {
        let is_served = report.not_served.is_none();
        if is_served {
            self.health.updated(family);
            self.metrics.synced(family);
        } else {
            self.health.not_served(family);
        }
        self.failures.sync_in_force(family, Instant::now());
        let map = self.tracker.map();
        let served = map.counts().iter();
        let served = served.filter(|(family, _)| self.health.is_served(*family));
        let served: usize = served.map(|(_, counts)| counts.all).sum();
        self.metrics.service_ports.set(served as i64);
        let counts = map.counts().get(family);
        self.metrics.set_no_local_endpoints(family, counts);
        let Pending { changes, .. } = std::mem::take(self.pending.get_mut(family));
        let took = self.triggers.in_force(family, &changes, SystemTime::now());
        for took in took.into_iter().filter(|_| is_served) {
            self.metrics.programmed(family, took);
        }
        for follower in &mut self.followers {
            follower.synced(family, map, &changes);
        }
        let recorder = &self.recorder;
        self.conflicts.report(family, map, &changes, recorder);
        self.last_ready.report(family, map, &changes, recorder);
        let none_ready = self.last_ready.len();
        self.metrics.service_ports_none_ready.set(none_ready as i64);
        let conflicting = self.conflicts.len();
        self.metrics
            .service_ports_conflicting
            .set(conflicting as i64);
        self.trimmer.synced(&changes);
        unsupported::report(
            &mut self.status.unsupported.lock(),
            recorder,
            self.mode.name(),
            family,
            report.unsupported,
            &changes,
            map,
        );
        let outcome = self
            .failures
            .replace(family, report.failed, report.unfinished);
        let failed = self.failures.service_ports();
        self.metrics.service_ports_failed.set(failed as i64);
        outcome
    }

    /// Records a sync that has ended. Returns the time.
    fn record(
        &self,
        family: Family,
        took: Duration,
        full: bool,
        outcome: &Result<SyncReport, SyncError>,
    ) -> SystemTime {
        self.metrics.took(family, took, full);
        let result = match outcome {
            Ok(report) => {
                tracing::debug!(
                    mode = %self.mode.name(),
                    %family,
                    full,
                    examined = report.examined,
                    failed = report.failed.len(),
                    micros = took.as_micros() as u64,
                    "synced"
                );
                Ok(Extent {
                    service_ports: report.examined,
                    failed: report.failed.len(),
                })
            }
            Err(error) => Err(error.to_string()),
        };
        let ended = SystemTime::now();
        let sync = PastSync {
            ended,
            took,
            full,
            result,
        };
        self.status.ended(family, sync);
        ended
    }

    fn failed(&mut self, family: Family, error: &SyncError) -> Outcome {
        self.metrics.failed(family);
        self.status.failed(family, error.to_string());
        let changes = &mut self.pending.get_mut(family).changes;
        changes.bound(self.tracker.map());
        let mode = self.mode.name();
        self.failures
            .sync_failed(mode, family, &error.to_string(), Instant::now());
        Outcome::Failed
    }
}

#[cfg(test)]
mod tests;
