//! The sync runner: folds batches of events into the service map and has the
//! mode put the changes in force, again and again until it succeeds.
//!
//! *When* is decided in [`pace`]; what happened is noted in [`health`] and
//! [`metrics`]. Each IP family has its own pending changes, retries and health:
//! one that fails keeps nothing of the other back.

mod conflicts;
pub mod health;
mod latency;
pub mod metrics;
mod no_local;
pub mod pace;
mod told;
mod trim;
mod unsupported;

use std::{
    collections::BTreeSet,
    io,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, sleep_until},
};

use self::{
    conflicts::Conflicts,
    health::Health,
    latency::Triggers,
    metrics::Metrics,
    no_local::NoLocalEndpoints,
    pace::{Outcome, Pace, Turn},
    told::{Fails, Told},
    unsupported::Said,
};
use crate::{
    events::Recorder,
    modes::{Mode, SyncError, SyncReport},
    net::{Family, PerFamily},
    services::{Batch, Changes, Event, Node, Owner, ServiceMap, Tracker},
};

/// How soon to look again for addresses that linger.
const LINGER: Duration = Duration::from_secs(1);

/// Whoever is told what came in force.
pub trait AfterSync: Send {
    /// What `map` has of `family` is in force; `changes` says what of it differs
    /// from the last time.
    fn synced(&mut self, family: Family, map: &ServiceMap, changes: &Changes);
}

/// The addresses of this node.
pub trait NodeAddresses: Send {
    /// Returns the addresses that serve node ports; `node` is this node's
    /// object, once it is known.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn serving_node_ports(&mut self, node: Option<&Node>) -> io::Result<BTreeSet<IpAddr>>;
    /// Waits for the next change; is dropped while it waits.
    ///
    /// # Errors
    /// When no further change can be told.
    fn changed(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// What is not in force yet of one family.
#[derive(Debug, Default)]
struct Pending {
    changes: Changes,
    /// Something was added for which no sync was asked yet.
    fresh: bool,
    /// Events about Services and EndpointSlices that this is due to.
    events: Events,
}

/// How many events of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Events {
    services: u32,
    slices: u32,
}

/// Brings a mode in step with what batches of events say.
pub struct Runner<M> {
    mode: M,
    tracker: Tracker,
    pace: pace::Options,
    health: Arc<Health>,
    metrics: Metrics,
    triggers: Triggers,
    followers: Vec<Box<dyn AfterSync>>,
    /// What is not in force yet.
    pending: PerFamily<Pending>,
    told: Told,
    said: Said,
    conflicts: Conflicts,
    /// Some sync came in force.
    synced: bool,
}

impl<M: Mode> Runner<M> {
    /// Returns a runner that has not synced yet.
    pub fn new(
        mode: M,
        tracker: Tracker,
        pace: pace::Options,
        health: Arc<Health>,
        metrics: Metrics,
    ) -> Self {
        Runner {
            mode,
            tracker,
            pace,
            health,
            triggers: Triggers::new(SystemTime::now()),
            followers: vec![Box::new(NoLocalEndpoints::new(metrics.clone()))],
            metrics,
            pending: PerFamily::each(|_| Pending {
                changes: Changes {
                    full: true,
                    ..Changes::default()
                },
                ..Pending::default()
            }),
            told: Told::default(),
            said: Said::new(Recorder::nowhere()),
            conflicts: Conflicts::new(Recorder::nowhere()),
            synced: false,
        }
    }

    /// Has Events posted to `recorder` about Services that ask for what the
    /// mode cannot do, and for addresses of others.
    pub fn post_to(&mut self, recorder: Recorder) {
        self.said = Said::new(recorder.clone());
        self.conflicts = Conflicts::new(recorder);
    }

    /// Tells `follower` what came in force, after each sync.
    pub fn follow(&mut self, follower: impl AfterSync + 'static) {
        self.followers.push(Box::new(follower));
    }

    /// Runs until the source of batches ends. The first sync waits for the
    /// first batch, the complete initial state. A change of node addresses
    /// causes a full sync, as does whoever disturbs what the mode installed.
    pub async fn run(
        &mut self,
        mut batches: Receiver<Batch>,
        mut addresses: Option<impl NodeAddresses>,
    ) {
        let mut watched = addresses.is_some();
        let Some(first) = batches.recv().await else {
            return;
        };
        let mut pace = Pace::new(self.pace.clone(), Instant::now());
        self.fold(first);
        self.ask_all(&mut pace);
        loop {
            let now = Instant::now();
            let due = pace.due(now);
            if due <= now {
                while let Ok(batch) = batches.try_recv() {
                    self.fold(batch);
                }
                // For what came just now; the other family need not wait for it.
                self.ask(&mut pace);
                self.sync(&mut pace, addresses.as_mut()).await;
                // Signals and probes have their turn, however short the sync
                // period is.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                batch = batches.recv() => match batch {
                    Some(batch) => {
                        self.fold(batch);
                        self.ask(&mut pace);
                    }
                    None => return,
                },
                () = changed(addresses.as_mut(), &mut watched) => self.ask_all(&mut pace),
                () = self.mode.externally_modified() => self.ask_all(&mut pace),
                () = sleep_until(due) => {}
            }
        }
    }

    fn fold(&mut self, batch: Batch) {
        let mut events = Events::default();
        for event in &batch.events {
            match event {
                Event::Service(_) | Event::ServiceGone(_) => events.services += 1,
                Event::EndpointSlice(slice) => {
                    events.slices += 1;
                    if let Owner::Service(service) = &slice.owner
                        && let Some(at) = slice.trigger.time()
                    {
                        self.triggers.add(service, at);
                    }
                }
                Event::EndpointSliceGone(_) => events.slices += 1,
                Event::Node(_) | Event::NodeGone(_) => {}
            }
        }
        let changes = self.tracker.apply(batch.events);
        self.metrics.services.seen(events.services);
        self.metrics.endpoints.seen(events.slices);
        let node = self.tracker.node();
        self.health.set_node(node.map(|node| &**node));
        self.merge(changes, events);
    }

    fn merge(&mut self, changes: Changes, events: Events) {
        for (family, changes) in changes.by_family() {
            if changes.is_empty() {
                continue;
            }
            let pending = self.pending.get_mut(family);
            pending.changes.merge(changes);
            pending.fresh = true;
            pending.events.services += events.services;
            pending.events.slices += events.slices;
        }
        self.count_pending();
    }

    /// Shows what is not in force yet; what waits for both families counts once.
    fn count_pending(&self) {
        let (v4, v6) = (&self.pending.v4.events, &self.pending.v6.events);
        let metrics = &self.metrics;
        metrics.services.set_pending(v4.services.max(v6.services));
        metrics.endpoints.set_pending(v4.slices.max(v6.slices));
    }

    /// Asks for a sync of the families that something new waits for.
    fn ask(&mut self, pace: &mut Pace) {
        for (family, pending) in self.pending.iter_mut() {
            if std::mem::take(&mut pending.fresh) {
                pace.request(family);
                self.health.queued(family);
                self.metrics.queued(family);
            }
        }
    }

    /// Asks for a full sync.
    fn ask_all(&mut self, pace: &mut Pace) {
        for (_, pending) in self.pending.iter_mut() {
            pending.changes.full = true;
            pending.fresh = true;
        }
        self.ask(pace);
    }

    async fn sync(&mut self, pace: &mut Pace, addresses: Option<&mut impl NodeAddresses>) {
        let begun = Instant::now();
        let turns = pace.begin(begun);
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
            // Not asked for by anybody, perhaps; yet if this sync hangs or
            // fails, it is what is overdue.
            self.health.queued(family);
        }
        let outcomes = self.mode.sync(self.tracker.map(), asked).await;
        let ended = Instant::now();
        for (family, outcome) in outcomes {
            if !due(family) {
                continue;
            }
            let full = *full.get(family);
            self.metrics.took(family, ended - begun, full);
            let outcome = match outcome.unwrap_or_else(|| Ok(SyncReport::default())) {
                Ok(report) => {
                    tracing::debug!(
                        mode = %self.mode.name(),
                        %family,
                        full,
                        examined = report.examined,
                        failed = report.failed.len(),
                        micros = (ended - begun).as_micros() as u64,
                        "synced"
                    );
                    let lingering = (report.lingering > 0).then_some(LINGER);
                    for pause in [lingering, report.look_again].into_iter().flatten() {
                        pace.look_again(family, ended + pause);
                    }
                    self.in_force(family, report)
                }
                Err(error) => self.failed(family, &error),
            };
            pace.end(family, ended, outcome);
        }
        if full.v4 && full.v6 {
            pace.was_full(ended);
        }
        self.count_pending();
        // What the node's addresses changed, of a family whose turn it was not.
        self.ask(pace);
    }

    /// Whose node ports are at which address depends on the node's addresses.
    fn observe_addresses(&mut self, addresses: &mut impl NodeAddresses) {
        let node = self.tracker.node();
        match addresses.serving_node_ports(node.map(|node| &**node)) {
            Ok(addresses) => {
                let changes = self.tracker.set_node_addresses(addresses);
                self.merge(changes, Events::default());
            }
            // Those that were observed last stay.
            Err(error) => tracing::warn!("cannot list the addresses of this node: {error}"),
        }
    }

    fn in_force(&mut self, family: Family, report: SyncReport) -> Outcome {
        self.health.updated(family);
        self.metrics.synced(family);
        let map = self.tracker.map();
        self.metrics.service_ports.set(map.len() as i64);
        let Pending { changes, .. } = std::mem::take(self.pending.get_mut(family));
        for took in self.triggers.in_force(family, &changes, SystemTime::now()) {
            self.metrics.programmed(family, took);
        }
        for follower in &mut self.followers {
            follower.synced(family, map, &changes);
        }
        self.conflicts.report(family, map, &changes);
        if !std::mem::replace(&mut self.synced, true) {
            trim::trim();
        }
        let mode = self.mode.name();
        self.said
            .tell(mode, family, report.unsupported, &changes, map);
        let fails = self.told.tell(family, report.failed, report.unfinished);
        let failed = self.told.service_ports();
        self.metrics.service_ports_failed.set(failed as i64);
        match fails {
            Fails::Nothing => Outcome::Done,
            Fails::AsBefore => Outcome::Partly { anew: false },
            Fails::Anew => Outcome::Partly { anew: true },
        }
    }

    fn failed(&mut self, family: Family, error: &SyncError) -> Outcome {
        self.metrics.failed(family);
        let changes = &mut self.pending.get_mut(family).changes;
        changes.bound(self.tracker.map());
        tracing::error!(mode = %self.mode.name(), "sync of {family} failed, will be tried again: {error}");
        Outcome::Failed
    }
}

/// Waits for a change of addresses, for as long as `watched`.
async fn changed(addresses: Option<&mut impl NodeAddresses>, watched: &mut bool) {
    match addresses {
        Some(changes) if *watched => {
            if let Err(error) = changes.changed().await {
                tracing::error!("node addresses are looked at every sync period only: {error}");
                *watched = false;
            }
        }
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
