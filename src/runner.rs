//! The sync runner: folds batches of events into the service map and has the
//! mode put the changes in force, again and again until it succeeds.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::mpsc::Receiver,
    time::{Instant, MissedTickBehavior, interval_at, sleep_until},
};

use crate::{
    kernel::addresses::AddressChanges,
    modes::Mode,
    services::{Batch, Changes, ServicePortName, Tracker},
};

/// How often everything is compared with the kernel (`--iptables-sync-period`
/// and `--ipvs-sync-period` of kube-proxy have this default).
const SYNC_PERIOD: Duration = Duration::from_secs(30);

/// Pause before a sync that failed is tried again; it doubles up to the
/// longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// How soon to look again for addresses that linger.
const LINGER: Duration = Duration::from_secs(1);

/// How it goes, for `/healthz`.
#[derive(Debug, Default)]
pub struct Health {
    synced: AtomicBool,
}

impl Health {
    /// The last sync succeeded.
    pub fn is_synced(&self) -> bool {
        self.synced.load(Relaxed)
    }
}

/// Brings a mode in step with what `batches` say.
pub struct Runner<M> {
    mode: M,
    tracker: Tracker,
    health: Arc<Health>,
    pending: Changes,
    /// Reasons that are in the log already.
    told: BTreeMap<ServicePortName, String>,
    backoff: Duration,
}

impl<M: Mode> Runner<M> {
    /// A runner that has not synced yet.
    pub fn new(mode: M, tracker: Tracker, health: Arc<Health>) -> Self {
        Runner {
            mode,
            tracker,
            health,
            pending: Changes {
                full: true,
                ..Changes::default()
            },
            told: BTreeMap::new(),
            backoff: RETRY.0,
        }
    }

    /// Runs until the source of batches ends. The first sync waits for the
    /// first batch, the complete initial state.
    pub async fn run(
        &mut self,
        mut batches: Receiver<Batch>,
        mut addresses: Option<AddressChanges>,
    ) {
        let Some(first) = batches.recv().await else {
            return;
        };
        self.fold(first);
        let mut period = interval_at(Instant::now() + SYNC_PERIOD, SYNC_PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            while let Ok(batch) = batches.try_recv() {
                self.fold(batch);
            }
            let again = self.sync().await.map(|after| Instant::now() + after);
            tokio::select! {
                batch = batches.recv() => match batch {
                    Some(batch) => self.fold(batch),
                    None => return,
                },
                () = changed(&mut addresses) => self.pending.full = true,
                _ = period.tick() => self.pending.full = true,
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
            }
        }
    }

    fn fold(&mut self, batch: Batch) {
        let changes = self.tracker.apply(batch.events);
        self.pending.merge(changes);
    }

    /// One sync. Answers how soon another one is due, if it is.
    async fn sync(&mut self) -> Option<Duration> {
        let begun = Instant::now();
        match self.mode.sync(self.tracker.map(), &self.pending).await {
            Ok(report) => {
                tracing::debug!(
                    mode = %self.mode.name(),
                    full = self.pending.full,
                    examined = report.examined,
                    failed = report.failed.len(),
                    micros = begun.elapsed().as_micros() as u64,
                    "synced"
                );
                self.health.synced.store(true, Relaxed);
                self.pending = Changes::default();
                let lingering = (report.lingering > 0).then_some(LINGER);
                if self.tell(report.failed) {
                    return Some(lingering.map_or(self.backoff(), |l| l.min(self.backoff)));
                }
                self.backoff = RETRY.0;
                lingering
            }
            Err(error) => {
                self.health.synced.store(false, Relaxed);
                tracing::error!(mode = %self.mode.name(), "sync failed, will be tried again: {error}");
                Some(self.backoff())
            }
        }
    }

    fn backoff(&mut self) -> Duration {
        let now = self.backoff;
        self.backoff = (now * 2).min(RETRY.1);
        now
    }

    /// Logs each failure once, and that it is over. True if there are any.
    fn tell(&mut self, failed: Vec<(ServicePortName, String)>) -> bool {
        let mut now: BTreeMap<ServicePortName, String> = BTreeMap::new();
        for (name, why) in failed {
            now.entry(name)
                .and_modify(|all| {
                    all.push_str("; ");
                    all.push_str(&why);
                })
                .or_insert(why);
        }
        for (name, why) in &now {
            if self.told.get(name) != Some(why) {
                tracing::error!(service = %name, protocol = %name.protocol, "not in force as asked: {why}");
            }
        }
        for name in self.told.keys().filter(|name| !now.contains_key(*name)) {
            tracing::info!(service = %name, protocol = %name.protocol, "in force again");
        }
        self.told = now;
        !self.told.is_empty()
    }
}

async fn changed(addresses: &mut Option<AddressChanges>) {
    match addresses {
        Some(changes) => {
            if let Err(error) = changes.changed().await {
                tracing::error!("node addresses are looked at every sync period only: {error}");
                *addresses = None;
            }
        }
        None => std::future::pending().await,
    }
}
