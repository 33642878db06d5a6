//! The sync runner: folds batches of events into the service map and has the
//! mode put the changes in force, again and again until it succeeds.
//!
//! *When* is decided in [`pace`]; what happened is noted in [`health`] and
//! [`metrics`].

mod conflicts;
pub mod health;
mod latency;
pub mod metrics;
mod no_local;
pub mod pace;
mod told;
mod trim;
mod unhonoured;

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
    health::{FAMILIES, Health},
    latency::Triggers,
    metrics::Metrics,
    no_local::NoLocalEndpoints,
    pace::{Outcome, Pace},
    told::Told,
    unhonoured::Said,
};
use crate::{
    events::Recorder,
    modes::{Mode, SyncError, SyncReport},
    services::{Batch, Changes, Event, IpFamily, Node, Owner, ServiceMap, Tracker},
};

/// How soon to look again for addresses that linger.
const LINGER: Duration = Duration::from_secs(1);

/// Whoever is told what came in force.
pub trait AfterSync: Send {
    /// `map` is in force; `changes` says what differs from the last time.
    fn synced(&mut self, map: &ServiceMap, changes: &Changes);
}

/// The addresses of this node.
pub trait NodeAddresses: Send {
    /// Those that serve node ports; `node` is this node's object, once it is
    /// known.
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

/// Brings a mode in step with what batches of events say.
pub struct Runner<M> {
    mode: M,
    tracker: Tracker,
    pace: pace::Options,
    health: Arc<Health>,
    metrics: Metrics,
    triggers: Triggers,
    followers: Vec<Box<dyn AfterSync>>,
    pending: Changes,
    told: Told,
    said: Said,
    conflicts: Conflicts,
    /// Some sync came in force.
    synced: bool,
}

impl<M: Mode> Runner<M> {
    /// A runner that has not synced yet.
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
            pending: Changes {
                full: true,
                ..Changes::default()
            },
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

    /// Connections that would end with this process.
    pub fn carried(&self) -> usize {
        self.mode.carried()
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
        self.ask(&mut pace);
        loop {
            let now = Instant::now();
            let due = pace.due(now);
            if due <= now {
                while let Ok(batch) = batches.try_recv() {
                    self.fold(batch);
                }
                self.sync(&mut pace, addresses.as_mut()).await;
                // Signals and probes have their turn, however short the sync
                // period is.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                batch = batches.recv() => match batch {
                    Some(batch) => {
                        if self.fold(batch) {
                            self.ask(&mut pace);
                        }
                    }
                    None => return,
                },
                () = changed(addresses.as_mut(), &mut watched) => {
                    self.pending.full = true;
                    self.ask(&mut pace);
                }
                () = self.mode.disturbed() => {
                    self.pending.full = true;
                    self.ask(&mut pace);
                }
                () = sleep_until(due) => {}
            }
        }
    }

    /// True if `batch` changed anything.
    fn fold(&mut self, batch: Batch) -> bool {
        let (mut services, mut slices) = (0, 0);
        for event in &batch.events {
            match event {
                Event::Service(_) | Event::ServiceGone(_) => services += 1,
                Event::EndpointSlice(slice) => {
                    slices += 1;
                    if let Owner::Service(service) = &slice.owner
                        && let Some(at) = slice.trigger.time()
                    {
                        self.triggers.add(service, at);
                    }
                }
                Event::EndpointSliceGone(_) => slices += 1,
                Event::Node(_) | Event::NodeGone(_) => {}
            }
        }
        let changes = self.tracker.apply(batch.events);
        let changed = !changes.is_empty();
        self.metrics.services.seen(services, changed);
        self.metrics.endpoints.seen(slices, changed);
        let node = self.tracker.node();
        self.health.set_node(node.map(|node| &**node));
        self.pending.merge(changes);
        changed
    }

    fn ask(&self, pace: &mut Pace) {
        pace.request();
        for family in self.concerned() {
            self.health.queued(family);
            self.metrics.queued(family);
        }
    }

    /// The families that the next sync concerns.
    fn concerned(&self) -> Vec<IpFamily> {
        let concerned = |family: &IpFamily| {
            self.pending.full
                || self.pending.ports.iter().any(|p| p.family == *family)
                || self.told.concerns(*family)
        };
        FAMILIES.into_iter().filter(concerned).collect()
    }

    async fn sync(&mut self, pace: &mut Pace, addresses: Option<&mut impl NodeAddresses>) {
        let begun = Instant::now();
        if pace.begin(begun) {
            self.pending.full = true;
        }
        let full = self.pending.full;
        if let Some(addresses) = addresses.filter(|_| full) {
            self.observe_addresses(addresses);
        }
        let families = self.concerned();
        for family in &families {
            // Not asked for by anybody, perhaps; yet if this sync hangs or
            // fails, it is what is overdue.
            self.health.queued(*family);
        }
        let done = self.mode.sync(self.tracker.map(), &self.pending).await;
        let ended = Instant::now();
        for family in &families {
            self.metrics.took(*family, ended - begun, full);
        }
        let outcome = match done {
            Ok(report) => {
                tracing::debug!(
                    mode = %self.mode.name(),
                    full,
                    examined = report.examined,
                    failed = report.failed.len(),
                    micros = (ended - begun).as_micros() as u64,
                    "synced"
                );
                let lingering = (report.lingering > 0).then_some(LINGER);
                for pause in [lingering, report.look_again].into_iter().flatten() {
                    pace.look_again(ended + pause);
                }
                self.in_force(&families, report)
            }
            Err(error) => self.failed(&error),
        };
        pace.end(ended, outcome, full);
    }

    /// Whose node ports are at which address depends on the node's addresses.
    fn observe_addresses(&mut self, addresses: &mut impl NodeAddresses) {
        let node = self.tracker.node();
        match addresses.serving_node_ports(node.map(|node| &**node)) {
            Ok(addresses) => {
                let changes = self.tracker.set_node_addresses(addresses);
                self.pending.merge(changes);
            }
            // Those that were observed last stay.
            Err(error) => tracing::warn!("cannot list the addresses of this node: {error}"),
        }
    }

    fn in_force(&mut self, families: &[IpFamily], report: SyncReport) -> Outcome {
        for family in families {
            self.health.updated(*family);
            self.metrics.synced(*family);
        }
        self.metrics.services.in_force();
        self.metrics.endpoints.in_force();
        self.metrics
            .service_ports
            .set(self.tracker.map().len() as i64);
        for (family, took) in self.triggers.in_force(&self.pending, SystemTime::now()) {
            self.metrics.programmed(family, took);
        }
        for follower in &mut self.followers {
            follower.synced(self.tracker.map(), &self.pending);
        }
        let changed = std::mem::take(&mut self.pending);
        self.conflicts.report(self.tracker.map(), &changed);
        if !std::mem::replace(&mut self.synced, true) {
            trim::trim();
        }
        let mode = self.mode.name();
        self.said
            .tell(mode, report.unhonoured, &changed, self.tracker.map());
        let failed = self.told.tell(report.failed);
        self.metrics.service_ports_failed.set(failed as i64);
        match failed {
            0 => Outcome::Done,
            _ => Outcome::Partly,
        }
    }

    fn failed(&mut self, error: &SyncError) -> Outcome {
        self.metrics.failures.inc();
        tracing::error!(mode = %self.mode.name(), "sync failed, will be tried again: {error}");
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
