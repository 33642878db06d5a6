//! The continuous checks: after every call that changes something, nothing is open that must be
//! closed, and nothing is closed that was open and stays so.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use net::{Family, PerFamily};
use nix::errno::Errno;
use simulated::{
    State,
    packet::{Disposition, Outcomes, Packet},
    prints,
};
use testing::Random;
use tokio::time::Instant;

use super::{
    counts::Counts,
    faults::Faults,
    history::History,
    subject::{Removals, Repairs, Reported, Rules},
    world::{self, Called, Flow, Probe, SERVICES, Spec},
};
use crate::modes::Asked;

/// More calls than any sync needs.
pub(super) const CALLS: usize = 400;
/// How many lines of events before a failure are shown.
const RECORDED: usize = 80;

/// Changes that another process made since the last repair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Damage {
    /// The number of the last such change.
    last: u64,
    /// How many such changes there were.
    times: u32,
}

/// A client that stays on an endpoint.
pub(super) struct Sticky {
    pub(super) probe: Probe,
    pub(super) on: SocketAddr,
    pub(super) until: Instant,
}

/// State of the run, as the checks see it.
pub(super) struct Watch {
    pub(super) rules: Box<dyn Rules>,
    pub(super) random: Random,
    pub(super) faults: Faults,
    pub(super) histories: Vec<History>,
    pub(super) probes: Vec<Probe>,
    pub(super) flows: Vec<Flow>,
    pub(super) sticky: Vec<Sticky>,
    /// The Service whose elements the kernel refuses.
    pub(super) refused: Option<usize>,
    /// Changes that another process made to our objects, and that were not repaired yet.
    pub(super) damaged: PerFamily<Option<Damage>>,
    /// How many changes of ours other processes have made so far.
    pub(super) edits: u64,
    /// The value of `edits` at the beginning of the sync that runs.
    at_begin: u64,
    /// Whether the last sync was supposed to compare everything.
    is_full: PerFamily<bool>,
    /// The value of `edits` when the sync that runs began to read the rules.
    pub(super) read: PerFamily<Option<u64>>,
    /// Calls of the sync that runs.
    pub(super) calls: usize,
    /// Whether everything is applied and stays so: there is nothing to change.
    pub(super) is_settled: bool,
    /// Whether something went wrong since the sync that runs began, for which it may fail.
    pub(super) may_fail: bool,
    /// When something last went wrong.
    pub(super) went_wrong: Option<Instant>,
    /// Since when no sync of a family succeeded, if the last one failed.
    pub(super) failing: PerFamily<Option<Instant>>,
    /// Since when a sync of a family runs.
    syncing: PerFamily<Option<Instant>>,
    /// Whether the process was stopped, and no sync of a family has succeeded since.
    pub(super) was_stopped: PerFamily<bool>,
    /// Whether a sync of a family has succeeded since the process began.
    has_synced: PerFamily<bool>,
    /// The last sync's report on the removals of a family.
    removals: PerFamily<Removals>,
    /// Whether the rules of a family could not be read or written at the last attempt.
    pub(super) program_failed: PerFamily<bool>,
    /// The family whose rules are being written, one table after the other.
    pub(super) writing: Option<Family>,
    /// Whether a transaction of a family was refused since its last successful sync: the Service
    /// that is to blame may be left out.
    pub(super) left_out: PerFamily<bool>,
    /// Whether a member of a set was refused since the last successful sync. If it is a source
    /// range, its callers are kept out like all others that are in none.
    pub(super) lacks_members: PerFamily<bool>,
    /// Where each client of each Service was sent so far, if clients may be sent to any
    /// of these endpoints again.
    pub(super) visited: BTreeMap<(usize, IpAddr), BTreeSet<SocketAddr>>,
    /// Rules, chains and other objects of other processes.
    pub(super) foreign: BTreeSet<(Family, &'static str)>,
    /// The last events of the run, the latest last.
    recorded: VecDeque<String>,
    /// Whether something that must hold did not. The task that found it ended, and possibly
    /// nothing waits for that task.
    has_failed: Cell<bool>,
    pub(super) counts: Counts,
}

impl Watch {
    pub(super) fn new(seed: u64, rules: Box<dyn Rules>) -> Watch {
        Watch {
            rules,
            random: Random::new(seed ^ 0x0b5e_1e55),
            faults: Faults::default(),
            histories: (0..SERVICES).map(|_| History::new()).collect(),
            probes: super::probes::probes(),
            flows: Vec::new(),
            sticky: Vec::new(),
            refused: None,
            damaged: PerFamily::default(),
            edits: 0,
            at_begin: 0,
            is_full: PerFamily::default(),
            read: PerFamily::default(),
            calls: 0,
            is_settled: false,
            may_fail: false,
            went_wrong: None,
            failing: PerFamily::default(),
            syncing: PerFamily::default(),
            was_stopped: PerFamily::default(),
            has_synced: PerFamily::default(),
            removals: PerFamily::default(),
            program_failed: PerFamily::default(),
            writing: None,
            left_out: PerFamily::default(),
            lacks_members: PerFamily::default(),
            visited: BTreeMap::new(),
            foreign: BTreeSet::new(),
            recorded: VecDeque::new(),
            has_failed: Cell::new(false),
            counts: Counts::default(),
        }
    }

    /// Records the desired version of a Service from the change `version` on.
    pub(super) fn desire(&mut self, number: usize, version: u64, spec: Option<Arc<Spec>>) {
        self.counts.changes += 1;
        self.histories[number].versions.push_back((version, spec));
        self.drop_sticky();
    }

    /// Records an event, for readers of a failure.
    pub(super) fn record(&mut self, what: impl FnOnce() -> String) {
        let what = what();
        if prints() {
            println!("{what}");
        }
        // The members of each set are read by a call of its own, which looks the same here.
        if self.recorded.back() == Some(&what) {
            return;
        }
        if self.recorded.len() == RECORDED {
            self.recorded.pop_front();
        }
        self.recorded.push_back(what);
    }

    /// Records that a sync begins, with these requests.
    pub(super) fn sync_begins(&mut self, asked: Asked<'_>) {
        let now = Instant::now();
        self.syncing = asked.map(|_, changes| changes.map(|_| now));
        self.is_full = asked.map(|_, changes| changes.is_some_and(|changes| changes.full));
        self.counts.syncs += 1;
        self.calls = 0;
        self.at_begin = self.edits;
        self.read = PerFamily::default();
        self.may_fail = self.faults.outage.is_some();
        self.record(|| "sync".to_owned());
    }

    /// Records that a sync of `family` was reported to be successful.
    pub(super) fn in_force(&mut self, family: Family, reported: &Reported<'_>) {
        let &Reported {
            version,
            failed,
            removals,
            is_finished,
        } = reported;
        let before = std::mem::replace(self.removals.get_mut(family), removals);
        let is_new = removals == Removals::Left && before == Removals::Made;
        if is_new && !self.recovers() && self.refused.is_none() {
            self.fail(&format!("{family}: something is left without a reason"));
        }
        for (number, history) in self.histories.iter_mut().enumerate() {
            if world::family(number) != family {
                continue;
            }
            if failed.contains(&number) {
                history.in_force = false;
                self.sticky.retain(|sticky| sticky.probe.service != number);
                continue;
            }
            // Rules that a failed sync could not change may be left of an earlier version.
            if removals == Removals::Made {
                history.left.clear();
            }
            while history.versions.len() > 1 && history.versions[1].0 <= version {
                let earlier = history.versions.pop_front().and_then(|(_, spec)| spec);
                if removals == Removals::Left {
                    history.left.extend(earlier.clone());
                }
                let sticky = earlier.filter(|spec| spec.has_affinity());
                history.remembered.extend(sticky);
            }
            (history.in_force, history.is_damaged) = (true, false);
            history.is_interrupted &= history.is_pending();
            let served = history.versions.front().and_then(|(_, spec)| spec.as_ref());
            if served.is_some_and(|spec| spec.has_address(Called::NodePort)) {
                history.has_lost_node_port = false;
            }
            if served.is_some() {
                history.has_lost_addresses = false;
            }
        }
        *self.failing.get_mut(family) = None;
        *self.syncing.get_mut(family) = None;
        *self.left_out.get_mut(family) = false;
        *self.lacks_members.get_mut(family) = false;
        *self.was_stopped.get_mut(family) = false;
        *self.has_synced.get_mut(family) = true;
        // Changes that others made while it ran are not known. Objects that could not be removed
        // may be theirs.
        let known = match self.rules.repairs() {
            Repairs::All => Some(self.at_begin),
            Repairs::Read => self.read.get(family).filter(|_| removals == Removals::Made),
            Repairs::ReadOfAll => self.read.get(family).filter(|_| failed.is_empty()),
            Repairs::FullWithoutFault => {
                let is_full = *self.is_full.get(family) && !self.may_fail;
                // The program that reads the rules may still be waiting for that of an earlier
                // sync.
                let has_read = self.read.get(family).is_some();
                (is_full && has_read && is_finished).then_some(self.at_begin)
            }
        };
        let damaged = self.damaged.get_mut(family);
        let repaired = damaged.take_if(|damage| known.is_some_and(|known| damage.last <= known));
        for number in failed.iter().filter(|_| repaired.is_some()) {
            self.histories[*number].is_damaged = true;
        }
    }

    /// Records that a sync of `family` is reported to have failed.
    pub(super) fn failed(&mut self, family: Family, error: &str) {
        self.counts.failed_syncs += 1;
        if !self.may_fail {
            self.fail(&format!("a sync fails without a reason: {error}"));
        }
        self.is_interrupted(|one| one == family);
        let since = self.syncing.get_mut(family).take();
        let failing = self.failing.get_mut(family);
        *failing = failing.or(since).or_else(|| Some(Instant::now()));
        self.record(|| format!("{family} failed: {error}"));
    }

    /// Records that changes of Services of these families were interrupted.
    fn is_interrupted(&mut self, is_of: impl Fn(Family) -> bool) {
        for (number, history) in self.histories.iter_mut().enumerate() {
            history.is_interrupted |= history.is_pending() && is_of(world::family(number));
        }
    }

    /// Records that the calls that follow belong to no sync.
    pub(super) fn between_syncs(&mut self) {
        self.calls = 0;
    }

    /// Records that a process begins; whether it `knows_clients` of the one before.
    pub(super) fn begins(&mut self, knows_clients: bool) {
        self.failing = PerFamily::default();
        self.syncing = PerFamily::default();
        self.was_stopped = PerFamily::default();
        self.has_synced = PerFamily::default();
        self.removals = PerFamily::default();
        self.is_interrupted(|_| true);
        if !self.rules.outlives_process() {
            self.flows.clear();
            if !knows_clients {
                self.sticky.clear();
            }
            for history in &mut self.histories {
                history.in_force = false;
            }
        }
        self.lose_node_ports();
        self.record(|| "a process begins".to_owned());
    }

    /// Records that the marks of our node ports were removed before the process read them.
    fn lose_node_ports(&mut self) {
        if !self.rules.loses_node_ports() {
            return;
        }
        for (number, history) in self.histories.iter_mut().enumerate() {
            let family = world::family(number);
            let times = self.damaged.get(family).map_or(0, |damage| damage.times);
            let is_new = !self.has_synced.get(family);
            history.has_lost_node_port |= is_new && times > 0;
            history.has_lost_addresses |= is_new && times > 1;
        }
    }

    /// Changes something as another process would.
    pub(super) fn edit(&mut self, state: &mut State) {
        let was_ours = self.rules.edit(state, &mut self.random);
        self.counts.edits += 1;
        self.goes_wrong();
        self.foreign = self.rules.foreign(state);
        if let Some(family) = was_ours {
            self.edits += 1;
            let damage = self.damaged.get_mut(family).get_or_insert_default();
            damage.last = self.edits;
            damage.times += 1;
            self.lose_node_ports();
            self.sticky
                .retain(|sticky| world::family(sticky.probe.service) != family);
            self.record(|| format!("another process changes what is ours of {family}"));
            self.flows = self.unbroken(state);
        }
    }

    /// Records that the process continues after it was stopped.
    pub(super) fn goes_on(&mut self) {
        self.was_stopped = PerFamily::each(|_| true);
        self.goes_wrong();
    }

    /// Records that something goes wrong now.
    pub(super) fn goes_wrong(&mut self) {
        self.may_fail = true;
        self.went_wrong = Some(Instant::now());
    }

    /// Records that the changes of others are repaired in the families that are as desired.
    pub(super) fn is_whole(&mut self, is_whole: impl Fn(Family) -> bool) {
        for (family, damaged) in self.damaged.iter_mut() {
            damaged.take_if(|_| is_whole(family));
        }
    }

    /// Returns the connections that continue.
    fn unbroken(&mut self, state: &State) -> Vec<Flow> {
        let mut flows = std::mem::take(&mut self.flows);
        flows.retain(|flow| {
            let led = flow.packet.established.map(Disposition::Passes);
            let dispositions = self.dispositions(state, flow.service, &flow.packet);
            dispositions
                .iter()
                .all(|disposition| Some(*disposition) == led)
        });
        flows
    }

    /// Returns where the client of a call was sent so far, if it may be sent to any of
    /// these endpoints again.
    pub(super) fn visited(&self, probe: &Probe) -> BTreeSet<SocketAddr> {
        let client = (probe.service, probe.packet.source.ip());
        self.visited.get(&client).cloned().unwrap_or_default()
    }

    pub(super) fn own() -> [IpAddr; 2] {
        Family::ALL.map(world::node_address)
    }

    /// Returns all possible dispositions of a packet.
    pub(super) fn dispositions(
        &mut self,
        state: &State,
        service: usize,
        packet: &Packet,
    ) -> BTreeSet<Disposition> {
        let found = self.outcomes(state, service, packet);
        found
            .into_iter()
            .map(|outcome| outcome.disposition)
            .collect()
    }

    /// Returns all possible outcomes of a packet.
    pub(super) fn outcomes(&mut self, state: &State, service: usize, packet: &Packet) -> Outcomes {
        self.counts.packets += 1;
        let family = world::family(service);
        self.rules.outcomes(state, family, packet, &Watch::own())
    }

    /// Makes the kernel refuse the elements of one Service; `None`: it accepts all again.
    pub(super) fn refuse(&mut self, state: &mut State, refused: Option<(usize, Errno)>) {
        // A running sync may already have been refused.
        if self.refused.is_some() && self.syncing.iter().any(|(_, since)| since.is_some()) {
            self.goes_wrong();
        }
        self.refused = refused.map(|(service, _)| service);
        // A table that is written again lacks the Service.
        if let Some(service) = self.refused {
            self.histories[service].in_force = false;
            self.sticky.retain(|sticky| sticky.probe.service != service);
        }
        self.record(|| format!("elements are refused of {refused:?}"));
        self.rules.refuse(state, refused);
    }

    /// Returns since when no sync of a family succeeded, although one was due.
    pub(super) fn overdue(&self, family: Family) -> Option<Instant> {
        self.failing.get(family).or(*self.syncing.get(family))
    }

    /// Returns whether something that must hold did not.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    /// Ends the run with this failure.
    pub(super) fn fail(&self, why: &str) -> ! {
        self.has_failed.set(true);
        let recorded: Vec<&str> = self.recorded.iter().map(String::as_str).collect();
        panic!("{why}\nwhat happened last:\n  {}", recorded.join("\n  "));
    }
}
