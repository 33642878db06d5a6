//! The simulated process: a mode with the runner that has it sync, joined as `tripod`
//! joins them, and its reports.

use std::{
    collections::{BTreeSet, VecDeque},
    future::ready,
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use net::{Family, PerFamily};
use parking_lot::Mutex;
use prometheus::Registry;
use simulated::Kernel;
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};

use super::{
    subject::{self, Subject},
    watch::Watch,
    world,
};
use crate::{
    config::ModeName,
    modes::{Asked, Compared, ExplainResult, Mode, Outcomes, Packet, progress::SyncProgress},
    runner::{
        NodeAddresses, Runner, health::Health, metrics::Metrics, question::Questions, schedule,
    },
    services::{Batch, Event, Node, ServiceMap, Tracker},
};

/// Time between two full syncs, as in kube-proxy.
pub(super) const SYNC_PERIOD: Duration = Duration::from_secs(30);
/// Number of syncs that may follow each other within [`WINDOW`], in addition to those
/// caused by something that happened.
const SYNCS: usize = 40;
const WINDOW: Duration = Duration::from_secs(60);

/// A process that runs.
pub(super) struct Process {
    pub(super) health: Arc<Health>,
    pub(super) questions: Questions,
    batches: mpsc::Sender<Batch>,
    sent: Arc<AtomicU64>,
    runner: JoinHandle<()>,
}

impl Process {
    /// Starts, with `objects` as the complete state.
    pub(super) fn begin(
        subject: &impl Subject,
        kernel: &Kernel,
        watch: &Arc<Mutex<Watch>>,
        version: u64,
        objects: Vec<Event>,
        knows_clients: bool,
    ) -> Process {
        let (batches, received) = mpsc::channel(1024);
        let health = Arc::new(Health::new(2 * SYNC_PERIOD));
        let metrics = Metrics::register(&Registry::new()).expect("a registry of its own");
        let sent = Arc::new(AtomicU64::new(version));
        let mode = Reported {
            mode: subject.mode(&subject.kernel(), &metrics),
            kernel: kernel.clone(),
            watch: Arc::clone(watch),
            sent: Arc::clone(&sent),
            batches: batches.clone(),
            syncs: VecDeque::new(),
            lingers: false,
            failed: PerFamily::default(),
        };
        let options = schedule::Options {
            sync_period: SYNC_PERIOD,
            ..schedule::Options::default()
        };
        let tracker = Tracker::new(world::NODE);
        let mut runner = Runner::new(mode, tracker, options, Arc::clone(&health), metrics);
        let questions = runner.questions();
        let runner = tokio::spawn(async move {
            runner.run(received, Some(Addresses), ready(())).await;
        });
        watch.lock().begins(knows_clients);
        let process = Process {
            health,
            questions,
            batches,
            sent,
            runner,
        };
        process.send(version, objects);
        process
    }

    /// Sends events, after which the change `version` should be applied.
    pub(super) fn send(&self, version: u64, events: Vec<Event>) {
        self.sent.store(version, Ordering::Relaxed);
        let sent = self.batches.try_send(events);
        sent.expect("the runner takes batches");
    }

    /// Ends as a process that is killed does.
    pub(super) async fn kill(self) {
        self.runner.abort();
        if let Err(error) = self.runner.await
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }

    /// Returns whether it ended by itself, which must never happen.
    pub(super) fn has_ended(&self) -> bool {
        self.runner.is_finished()
    }
}

/// A mode whose reports are compared with the kernel.
struct Reported<M> {
    mode: M,
    kernel: Kernel,
    watch: Arc<Mutex<Watch>>,
    sent: Arc<AtomicU64>,
    batches: mpsc::Sender<Batch>,
    /// When the last syncs began, and how much had happened by then; without syncs that
    /// only checked whether connections ended.
    syncs: VecDeque<(Instant, u64)>,
    /// Whether connections for which an address lingers were open at the end of the last sync.
    lingers: bool,
    /// Services that were not applied after the last sync.
    failed: PerFamily<BTreeSet<usize>>,
}

impl<M> Reported<M> {
    /// Returns the last change that the runner knows of: each batch is one.
    fn known(&self) -> u64 {
        let waiting = self.batches.max_capacity() - self.batches.capacity();
        self.sent.load(Ordering::Relaxed) - waiting as u64
    }

    /// Checks that the time between retries grows: there are never many syncs in a short time.
    fn count(&mut self) {
        let now = Instant::now();
        let watch = self.watch.lock();
        let happened = watch.counts.happened();
        if !std::mem::take(&mut self.lingers) {
            self.syncs.push_back((now, happened));
        }
        while self.syncs.front().is_some_and(|(at, _)| *at + WINDOW < now) {
            self.syncs.pop_front();
        }
        let before = self.syncs.front().map_or(happened, |(_, before)| *before);
        if self.syncs.len() > SYNCS + 3 * (happened - before) as usize {
            watch.fail("sync follows sync");
        }
    }
}

impl<M: Mode> Mode for Reported<M> {
    fn name(&self) -> ModeName {
        self.mode.name()
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        // A mode that was killed may continue until its task is aborted; then every call fails at
        // once.
        if !self.kernel.is_dead() {
            self.count();
        }
        let known = self.known();
        self.watch.lock().sync_begins(asked);
        let outcomes = self.mode.sync(map, asked).await;
        // Nobody receives the reports of a process that was killed.
        if self.kernel.is_dead() {
            return outcomes;
        }
        let mut watch = self.watch.lock();
        for (family, outcome) in outcomes.iter() {
            let outcome = outcome.as_ref().filter(|_| asked.get(family).is_some());
            match outcome {
                None => {}
                Some(Ok(report)) => {
                    self.lingers |= report.lingering > 0;
                    let names = report.failed.keys();
                    let names = names.map(|name| name.service.name.to_string());
                    let failed: BTreeSet<usize> = names
                        .filter_map(|name| name.strip_prefix("web-")?.parse().ok())
                        .collect();
                    let why = &report.failed;
                    watch.record(|| format!("{family} applied up to {known}, failed {why:?}"));
                    let before = self.failed.get_mut(family);
                    watch.check_failed(&failed, before);
                    before.clone_from(&failed);
                    let removals = watch.rules.removals(&report.unfinished);
                    let is_complete = failed.is_empty() && report.unfinished.is_empty();
                    let position = self.mode.progress().get(family).position();
                    if is_complete && position.is_some_and(|at| at.done < at.planned) {
                        watch.fail("a sync that ended counts less than it planned");
                    }
                    let reported = subject::Reported {
                        version: known,
                        failed: &failed,
                        removals,
                        is_finished: report.unfinished.is_empty(),
                    };
                    watch.in_force(family, &reported);
                }
                Some(Err(error)) => watch.failed(family, &error.to_string()),
            }
        }
        outcomes
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        self.mode.compare(map).await
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        self.mode.explain(map, packet).await
    }

    async fn externally_modified(&mut self) {
        self.watch.lock().between_syncs();
        self.mode.externally_modified().await;
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        self.mode.progress()
    }
}

/// The node's addresses, which never change.
struct Addresses;

impl NodeAddresses for Addresses {
    fn serving_node_ports(&mut self, _: Option<&Node>) -> io::Result<BTreeSet<IpAddr>> {
        Ok(Family::ALL.map(world::node_address).into())
    }

    async fn changed(&mut self) -> io::Result<()> {
        std::future::pending().await
    }
}
