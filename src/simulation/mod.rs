//! The modes on a [simulated kernel](simulated), with faults at every call: one thread, a clock
//! that stands still, and a seed from which everything follows.
//!
//! A run changes Services, has clients call them, has other processes change rules, kills the
//! process and starts it again, lets time pass, and has calls to the kernel fail. All the time it
//! is checked that nothing is open that must be closed, that nothing is closed that stays open,
//! that connections continue, that a sync which fails has a reason, and that the time between
//! retries grows. Soon after faults stop, everything is as desired.

mod calls;
mod checks;
mod counts;
mod docker;
mod faults;
mod history;
mod iptables;
mod ipvs;
mod named_cases;
mod nftables;
mod probes;
mod process;
mod real_calls;
mod subject;
mod unserved;
mod userspace;
mod watch;
mod watching;
mod world;

use std::{sync::Arc, time::Duration};

use net::{Family, PerFamily};
use nix::errno::Errno;
use parking_lot::Mutex;
use simulated::Kernel;
use testing::{Random, cases};
use tokio::time::{advance, sleep};

use self::{
    counts::Counts,
    faults::Faults,
    process::{Process, SYNC_PERIOD},
    subject::Subject,
    watch::Watch,
    watching::Watching,
    world::{SERVICES, Spec},
};
use crate::{
    modes::{Difference, Mode, SyncReport},
    services::{Changes, ServiceMap},
};

/// Without faults everything is applied after this time: whatever failed is retried at least once
/// per sync period.
const SETTLED: Duration = Duration::from_secs(75);
/// Number of steps between the times at which faults stop.
const STEPS_TO_SETTLE: usize = 25;
/// Number of steps of a long run that follow from one seed.
const STEPS_OF_SEED: usize = 10_000;
/// The length in steps of a run that is recorded in docs/reliability.csv.
const MEASURED: u64 = 1_000_000;

/// One run of the simulation: a mode on a simulated kernel, with the faults of one seed.
struct Simulation<S> {
    subject: S,
    random: Random,
    kernel: Kernel,
    watch: Arc<Mutex<Watch>>,
    process: Option<Process>,
    specs: Vec<Option<Arc<Spec>>>,
    /// Whether it is known which networks cluster IPs are from.
    networks_known: bool,
    /// The number of the last change.
    version: u64,
}

/// Returns a runtime of one thread whose clock advances only when all tasks wait.
fn stopped_clock() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build();
    runtime.expect("a runtime")
}

/// Syncs both families with a mode, which succeeds. Returns its report on each.
async fn sync(mode: &mut impl Mode, map: &ServiceMap, changes: &Changes) -> PerFamily<SyncReport> {
    let outcomes = mode.sync(map, PerFamily::each(|_| Some(changes))).await;
    outcomes.map(|_, outcome| outcome.expect("an answer").expect("a sync"))
}

/// Runs `steps` steps that follow from the seed. Returns the counts of the run.
fn run(seed: u64, steps: usize, subject: impl Subject) -> Counts {
    stopped_clock().block_on(async {
        let watch = Arc::new(Mutex::new(Watch::new(seed, Box::new(subject))));
        let kernel = Kernel::new(Watching(Arc::clone(&watch)));
        let _entered = kernel.enter();
        kernel.change(|state| subject.prepare(state));
        let mut simulation = Simulation {
            subject,
            random: Random::new(seed),
            kernel,
            watch,
            process: None,
            specs: vec![None; SERVICES],
            networks_known: false,
            version: 1,
        };
        simulation.begin(false);
        for step in 1..=steps {
            simulation.step().await;
            if step.is_multiple_of(STEPS_TO_SETTLE) {
                simulation.settle().await;
            }
        }
        simulation.settle().await;
        simulation.clean_up().await;
        let counts = simulation.watch.lock().counts;
        Counts {
            steps: steps as u64,
            ..counts
        }
    })
}

/// Runs as many of `seeds` seeds as [`cases`] says, of `steps` steps each, or the run that the
/// environment requests: `TRIPOD_SIMULATE_STEPS` steps, of which every [`STEPS_OF_SEED`] follow
/// from a seed of their own, the first from `TRIPOD_SIMULATE_SEED`. So a failure can be examined
/// without waiting for a long run. The counts of a run of at least [`MEASURED`] steps are figures
/// of docs/reliability.md, in the row `name`.
fn all(name: &str, seeds: u32, steps: usize, subject: impl Subject) {
    let asked = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = asked("TRIPOD_SIMULATE_SEED");
    let (of_seed, mut left) = match asked("TRIPOD_SIMULATE_STEPS") {
        Some(steps) => (STEPS_OF_SEED, steps as usize),
        None if first.is_some() => (steps, steps),
        None => (steps, cases(seeds) as usize * steps),
    };
    let (mut all, begun) = (Counts::default(), std::time::Instant::now());
    for seed in first.unwrap_or(0).. {
        let steps = left.min(of_seed);
        if steps == 0 {
            break;
        }
        println!("TRIPOD_SIMULATE_SEED={seed} TRIPOD_SIMULATE_STEPS={steps}");
        let counts = run(seed, steps, subject);
        println!("{:?}: {counts:?}", begun.elapsed());
        all.add(counts);
        left -= steps;
    }
    if all.steps >= MEASURED {
        all.print(name, begun.elapsed());
    }
}

/// Fails unless the same seed gives the same run, and another seed a different one.
fn assert_reproduced(steps: usize, subject: impl Subject) {
    let of = |seed| run(seed, steps, subject);
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

impl<S: Subject> Simulation<S> {
    /// Starts a process, which knows only the objects, and the clients of the process before
    /// it if that left them.
    fn begin(&mut self, knows_clients: bool) {
        self.kernel.revive();
        let specs = self.specs.iter().flatten();
        let mut objects = vec![world::node()];
        if self.networks_known {
            objects.push(world::service_networks(true));
        }
        objects.extend(specs.flat_map(|spec| spec.events()));
        // A process that cannot start ends, and its supervisor starts it again.
        let faults = std::mem::take(&mut self.watch.lock().faults);
        let process = Process::begin(
            &self.subject,
            &self.kernel,
            &self.watch,
            self.version,
            objects,
            knows_clients,
        );
        self.watch.lock().faults = faults;
        self.process = Some(process);
    }

    async fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.begin(false);
    }

    /// Replaces the running process, which leaves its clients to the new one.
    async fn restart(&mut self) {
        let leaves = self.subject.leave();
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.begin(leaves);
    }

    /// Lets time pass; a process that was killed meanwhile starts again.
    async fn pass(&mut self, time: Duration) {
        sleep(time).await;
        assert!(!self.watch.lock().has_failed(), "a task of the mode ended");
        let ended = self.process.as_ref().is_none_or(Process::has_ended);
        if ended || self.kernel.is_dead() {
            self.kill().await;
        } else if let Some(process) = &self.process {
            let health = process.health.snapshot();
            self.watch.lock().check_health(&health, 2 * SYNC_PERIOD);
        }
    }

    async fn step(&mut self) {
        let faultless = self.watch.lock().is_refusing() && self.random.chance(600);
        self.watch.lock().faults = if faultless {
            Faults::default()
        } else {
            self.subject.faults()
        };
        match self.random.below(100) {
            0..60 => self.change(),
            60..80 => self.call(),
            80..86 => {
                self.kernel.change(|state| self.watch.lock().edit(state));
                // Calls that are made before the change is noticed.
                (0..3).for_each(|_| self.call());
            }
            86..88 => self.kill().await,
            88..90 => self.restart().await,
            90 => self.outage().await,
            91..93 => self.refuse(),
            93 => self.change_networks(),
            94 => self.stop().await,
            _ => {
                let seconds = self.random.below(40);
                self.pass(Duration::from_secs(seconds as u64)).await;
            }
        }
        let millis = self.random.one(&[0, 1, 5, 20, 100, 300]);
        self.pass(Duration::from_millis(millis)).await;
    }

    fn call(&mut self) {
        self.kernel.change(|state| self.watch.lock().call(state));
    }

    fn call_over_udp(&mut self) {
        self.kernel
            .change(|state| self.watch.lock().call_over_udp(state));
    }

    /// Adds, changes or removes one or two Services.
    fn change(&mut self) {
        self.version += 1;
        let mut events = Vec::new();
        for _ in 0..1 + self.random.below(2) {
            let number = self.random.below(SERVICES);
            let next = match &self.specs[number] {
                Some(_) if self.random.chance(80) => None,
                Some(spec) => Some(spec.changed(&mut self.random)),
                None => Some(Spec::random(number, &mut self.random)),
            };
            let next = next.map(Arc::new);
            match &next {
                Some(spec) => events.extend(spec.events()),
                None => events.extend(world::gone(number)),
            }
            let mut watch = self.watch.lock();
            let version = self.version;
            watch.record(|| format!("change {version}: {next:?}"));
            watch.desire(number, version, next.clone());
            self.specs[number] = next;
        }
        if let Some(process) = &self.process {
            process.send(self.version, events);
        }
    }

    /// Changes whether the networks of cluster IPs are known, on which all rules depend.
    fn change_networks(&mut self) {
        self.networks_known = !self.networks_known;
        self.version += 1;
        self.watch.lock().record(|| "other networks".to_owned());
        if let Some(process) = &self.process {
            process.send(
                self.version,
                vec![world::service_networks(self.networks_known)],
            );
        }
    }

    /// Makes the kernel refuse everything for a while.
    async fn outage(&mut self) {
        let errno = self
            .random
            .one(&[Errno::EPERM, Errno::ENOMEM, Errno::EBUSY]);
        let lasts = self.random.chance(500);
        self.watch.lock().faults.outage = Some(errno);
        self.watch
            .lock()
            .record(|| format!("all is refused: {errno}"));
        self.change();
        let time = if lasts {
            4 * SYNC_PERIOD
        } else {
            SYNC_PERIOD / 3
        };
        self.pass(time).await;
    }

    /// Stops the process for a while, as SIGSTOP does, while others continue: to the process the
    /// clock jumps.
    async fn stop(&mut self) {
        let seconds = self.random.one(&[10, 300, 7200]);
        self.watch
            .lock()
            .record(|| format!("the process is stopped for {seconds} s"));
        self.change();
        self.kernel.change(|state| self.watch.lock().edit(state));
        (0..3).for_each(|_| self.call());
        advance(Duration::from_secs(seconds)).await;
        self.watch.lock().goes_on();
    }

    /// Makes the kernel refuse the elements of one Service for a while, or none: no other Service
    /// may suffer.
    fn refuse(&mut self) {
        let service = self.random.below(SERVICES);
        let errno = self.random.one(&[Errno::EINVAL, Errno::ENOMEM]);
        let refused = self.random.chance(700).then_some((service, errno));
        self.kernel
            .change(|state| self.watch.lock().refuse(state, refused));
    }

    /// Stops faults, and checks that soon everything is as desired, and no other object is there.
    async fn settle(&mut self) {
        // A client that calls while rules are missing must not bypass the Service for ever.
        self.call_over_udp();
        self.watch.lock().faults = Faults::default();
        self.watch.lock().record(|| "faults stop".to_owned());
        self.kernel
            .change(|state| self.watch.lock().refuse(state, None));
        self.pass(self.subject.patience() + SETTLED).await;
        if let Some((family, first)) = self.differences().await.first() {
            let why = format!("{family} differs: {first:?}");
            self.watch.lock().fail(&why);
        }
        self.kernel
            .change(|state| self.watch.lock().check_exactly(state));
        self.sync_without_a_cause().await;
        self.kernel.change(|state| self.watch.lock().edit(state));
        self.call_over_udp();
        self.pass(self.subject.noticed()).await;
        self.watch.lock().check_repaired();
        self.kernel
            .change(|state| self.watch.lock().check_udp(state));
        self.edit_during_a_sync().await;
    }

    /// Checks that a full sync changes nothing if everything is applied.
    async fn sync_without_a_cause(&mut self) {
        let syncs = {
            let mut watch = self.watch.lock();
            watch.record(|| "everything is applied".to_owned());
            watch.is_settled = true;
            watch.counts.syncs
        };
        self.pass(SYNC_PERIOD + Duration::from_secs(1)).await;
        let mut watch = self.watch.lock();
        watch.is_settled = false;
        if watch.counts.syncs == syncs {
            watch.fail("there was no full sync");
        }
    }

    /// Checks that a cleanup removes everything that the mode ever installed, and no other object,
    /// although calls fail at first.
    async fn clean_up(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill().await;
        }
        self.kernel.revive();
        self.watch.lock().begins(false);
        self.watch.lock().faults = self.subject.faults();
        let _ = self.subject.cleanup().await;
        self.kernel.revive();
        self.watch.lock().faults = Faults::default();
        let cleaned = self.subject.cleanup().await;
        let watch = self.watch.lock();
        if let Err(why) = cleaned {
            watch.fail(&format!("it cannot be cleaned up: {why}"));
        }
        drop(watch);
        self.kernel
            .change(|state| self.watch.lock().check_cleaned(state));
    }

    /// Checks that a change by another process during a sync is repaired as well.
    async fn edit_during_a_sync(&mut self) {
        self.watch.lock().faults = Faults {
            edits: 100,
            once: true,
            ..Faults::default()
        };
        self.change();
        self.pass(Duration::from_secs(2)).await;
        self.watch.lock().faults = Faults::default();
        self.pass(self.subject.noticed_after_a_sync()).await;
        // That sync may have been about to remove the changed object.
        let differs = self.differences().await;
        self.watch
            .lock()
            .is_whole(|family| !differs.iter().any(|(one, _)| *one == family));
        self.watch.lock().check_repaired();
    }

    /// The first difference of each family between the kernel and the desired state.
    async fn differences(&self) -> Vec<(Family, Difference)> {
        let Some(process) = &self.process else {
            return Vec::new();
        };
        let compared = process.questions.compare().await.expect("it runs");
        let first = compared.into_iter().filter_map(|(family, found)| {
            let mut found = found?.expect("it can be read").into_iter();
            Some((family, found.next()?))
        });
        first.collect()
    }
}
