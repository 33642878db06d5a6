//! The same mode on the kernel of this thread's namespace and on the model.

use std::{
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use net::{Family, PerFamily};
use prometheus::Registry;
use simulated::{
    Faultless, Kernel, State,
    packet::{Outcome, Outcomes, Packet},
};
use testing::sh;
use tokio::runtime::Runtime;
use xtables::Engine;

use super::{
    super::{subject::Subject, world},
    expected::Expected,
};
use crate::{
    kernel::probe,
    modes::Mode,
    runner::metrics::Metrics,
    services::{Changes, Event, ServiceMap, Tracker},
};

/// Everything is applied after this time.
const SOON: Duration = Duration::from_secs(60);
/// Time that passes between two changes on the clock of the model, which stands still otherwise.
const BETWEEN_CHANGES: Duration = Duration::from_secs(1);
/// Schedulers that Services request.
const SCHEDULERS: [&str; 2] = ["rr", "sh"];

/// A mode that runs on both.
pub(super) struct Sides<S: Subject> {
    subject: S,
    tracker: Tracker,
    real: (Runtime, S::Mode),
    model: (Runtime, S::Mode),
    kernel: Kernel,
    /// The node's addresses.
    own: Vec<IpAddr>,
}

impl<S: Subject> Sides<S> {
    /// Starts the mode on both, with iptables rules in `engine`.
    pub(super) fn new(subject: S, engine: Option<Engine>, own: Vec<IpAddr>) -> Sides<S> {
        let clock = super::super::stopped_clock();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let mut examined = probe::Kernel::examine(&probe::Examination {
            schedulers: &SCHEDULERS.map(str::to_owned),
            ..probe::Examination::default()
        });
        if let Some(engine) = engine {
            examined = runtime.block_on(examined.with_programs(engine));
        }
        let metrics = || Metrics::register(&Registry::new()).expect("a registry of its own");
        let mode = runtime.block_on(async { subject.mode(&examined, &metrics()) });
        let kernel = Kernel::new(Faultless);
        let simulated = {
            let _entered = kernel.enter();
            kernel.change(|state| {
                subject.prepare(state);
                let addresses: Vec<_> = own.iter().map(|ip| (*ip, length(ip))).collect();
                state.links.add("eth1", &addresses);
            });
            let examined = match engine {
                Some(engine) => examined.with_simulated_programs(engine),
                None => examined,
            };
            clock.block_on(async { subject.mode(&examined, &metrics()) })
        };
        let mut tracker = Tracker::new(world::NODE);
        tracker.apply([world::node(), world::service_networks(true)]);
        tracker.set_node_addresses(Family::ALL.map(world::node_address).into());
        Sides {
            subject,
            tracker,
            real: (runtime, mode),
            model: (clock, simulated),
            kernel,
            own,
        }
    }

    /// Applies events on both.
    pub(super) fn bring_in_force(&mut self, events: Vec<Event>) {
        let is_first = self.tracker.map().is_empty();
        let mut changes = self.tracker.apply(events);
        changes.full |= is_first;
        let changes = changes.by_family();
        let map = self.tracker.map();
        let (runtime, mode) = &mut self.real;
        runtime.block_on(bring_in_force(mode, map, changes.clone()));
        let _entered = self.kernel.enter();
        let (runtime, mode) = &mut self.model;
        runtime.block_on(async {
            // As on the real side, where clients call meanwhile.
            tokio::time::sleep(BETWEEN_CHANGES).await;
            bring_in_force(mode, map, changes).await;
        });
    }

    /// Runs `work` on the real side.
    pub(super) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.real.0.block_on(work)
    }

    /// Reads or changes the model.
    pub(super) fn model<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut changed = None;
        // The notifications of the change are for sockets of the model.
        let _clock = self.model.0.enter();
        self.kernel.change(|state| changed = Some(change(state)));
        changed.expect("it was called")
    }

    /// Returns the possible outcomes of a packet, according to the model.
    fn outcomes(&self, packet: &Packet) -> Outcomes {
        let family = Family::of(&packet.source.ip());
        self.model(|state| self.subject.outcomes(state, family, packet, &self.own))
    }

    /// Returns the possible outcomes of a packet, each with its appearance to a caller.
    pub(super) fn expected(&self, packet: &Packet) -> Vec<(Expected, Outcome)> {
        let outcomes = self.outcomes(packet);
        self.model(|state| {
            let is_own = |ip: &IpAddr| self.own.contains(ip) || state.links.is_local(ip);
            let shown = outcomes
                .into_iter()
                .map(|outcome| (Expected::of(&outcome, packet, is_own), outcome));
            shown.collect()
        })
    }

    /// Makes the model remember the outcome of a packet.
    pub(super) fn remember(&self, family: Family, outcome: &Outcome) {
        self.model(|state| {
            for update in &outcome.updates {
                self.subject.remember(state, family, update);
            }
        });
    }

    /// Tells the model about a connection to the endpoint `to`.
    pub(super) fn connect(&self, packet: &Packet, to: SocketAddr) {
        self.model(|state| self.subject.connect(state, packet, to));
    }

    /// The rules of the real kernel, as its programs print them.
    pub(super) fn shown(&self, family: Family) -> String {
        let (nft, iptables) = match family {
            Family::V4 => ("ip", "iptables"),
            Family::V6 => ("ip6", "ip6tables"),
        };
        sh(&format!(
            "nft list table {nft} tripod 2>&1 || {iptables}-save 2>&1; ipvsadm -Ln 2>&1 || true"
        ))
    }
}

fn length(ip: &IpAddr) -> u8 {
    match Family::of(ip) {
        Family::V4 => 32,
        Family::V6 => 128,
    }
}

/// Syncs a mode until everything is applied and nothing differs.
async fn bring_in_force(mode: &mut impl Mode, map: &ServiceMap, mut changes: PerFamily<Changes>) {
    let begun = Instant::now();
    loop {
        let asked = PerFamily::each(|family| Some(changes.get(family)));
        let outcomes = mode.sync(map, asked).await;
        let mut missing = Vec::new();
        for (family, outcome) in outcomes {
            let report = outcome.expect("an answer").expect("a sync");
            missing.extend(
                report
                    .failed
                    .iter()
                    .map(|(name, why)| format!("{name}: {why}")),
            );
            missing.extend(report.unfinished);
            let compared = mode.compare(map).await;
            let differences = compared.get(family).as_ref();
            let differences = differences.map(|found| found.as_ref().expect("it can be read"));
            missing.extend(
                differences
                    .into_iter()
                    .flatten()
                    .map(|one| format!("{one:?}")),
            );
        }
        if missing.is_empty() {
            return;
        }
        assert!(begun.elapsed() < SOON, "not applied: {missing:#?}");
        changes = PerFamily::each(|_| Changes {
            retry: true,
            ..Changes::default()
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
