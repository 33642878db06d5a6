//! Invariants that must hold after every change, and when everything has settled.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use net::Family;
use simulated::{
    State,
    packet::{Disposition, Outcome, Outcomes},
};
use tokio::time::Instant;

use super::{
    probes::called_at,
    subject::Repairs,
    watch::{Sticky, Watch},
    world::{self, Called, Probe, SERVICES, Spec},
};
use crate::runner::health::Snapshot;

/// A sync waits at most this long for others before it.
const WAITS: Duration = Duration::from_secs(10);

impl Watch {
    /// Checks that Services which are `failed`, and were not `before`, are so for a reason.
    pub(super) fn check_failed(&self, failed: &BTreeSet<usize>, before: &BTreeSet<usize>) {
        let mut new = failed.difference(before);
        let recovers = self.recovers();
        if let Some(new) = new.find(|new| !recovers && self.refused != Some(**new)) {
            self.fail(&format!(
                "Service {new} is not applied, and no reason is known"
            ));
        }
    }

    /// Returns whether something went wrong that explains why a Service is not applied.
    pub(super) fn recovers(&self) -> bool {
        let within = self.rules.recovers_within();
        self.may_fail || self.went_wrong.is_some_and(|at| at.elapsed() < within)
    }

    /// Checks that health reports the truth: a family is unhealthy if its syncs have failed for
    /// longer than `timeout`. A family without a successful sync since the process was stopped is
    /// not checked.
    pub(super) fn check_health(&self, health: &Snapshot, timeout: Duration) {
        for family in Family::ALL {
            if *self.was_stopped.get(family) {
                continue;
            }
            let since = self.overdue(family);
            let lasts = since.map_or(Duration::ZERO, |since| since.elapsed());
            // The sync may have waited for others before it began, so health may differ
            // by that time.
            let says = health.is_healthy(family);
            if lasts > timeout && says || lasts + WAITS < timeout && !says {
                self.fail(&format!(
                    "{family} fails since {since:?}, health says {health:?}"
                ));
            }
        }
    }

    /// Checks everything of these families after a change.
    pub(super) fn check(&mut self, state: &State, families: &[Family]) {
        let is_of = |service| families.contains(&world::family(service));
        self.drop_flows();
        // Objects that others removed may be needed only for later steps of a sync.
        let by_parts = match self.rules.repairs() {
            Repairs::ReadOfAll | Repairs::FullWithoutFault => true,
            Repairs::All | Repairs::Read => false,
        };
        for flow in self.flows.clone() {
            let family = world::family(flow.service);
            if !families.contains(&family) || by_parts && self.damaged.get(family).is_some() {
                continue;
            }
            let led = flow.packet.established;
            let dispositions = self.dispositions(state, flow.service, &flow.packet);
            let goes_on = dispositions
                .iter()
                .all(|disposition| led.map(Disposition::Passes) == Some(*disposition));
            if !goes_on {
                self.fail(&format!("{flow:?} is broken: {dispositions:?}"));
            }
        }
        self.check_foreign(state);
        self.check_sticky(state, families);
        for family in families {
            let is_whole = self.damaged.get(*family).is_none();
            if let Some(open) = self.rules.exposed(state, *family).filter(|_| is_whole) {
                self.fail(&format!("{open} is open"));
            }
        }
        let probes = self.probes.iter().filter(|probe| is_of(probe.service));
        for probe in probes.cloned().collect::<Vec<_>>() {
            let is_damaged = self.damaged.get(world::family(probe.service)).is_some();
            let history = &self.histories[probe.service];
            let is_lost = history.has_lost_addresses
                || history.has_lost_node_port && probe.called == Called::NodePort;
            if is_damaged || history.is_damaged || is_lost {
                continue;
            }
            let found = self.outcomes(state, probe.service, &probe.packet);
            self.check_probe(&probe, &found);
        }
    }

    /// Returns whether a Service may be closed although it was applied and stays: a change of it
    /// was refused, or may have been.
    fn may_be_left_out(&self, service: usize) -> bool {
        let is_left_out = *self.left_out.get(world::family(service));
        let is_refused = is_left_out || self.refused == Some(service);
        is_refused && self.rules.closes_what_is_left_out()
    }

    /// Returns whether source ranges of a Service may be missing; then callers in them are dropped.
    fn lacks_ranges(&self, service: usize) -> bool {
        let versions = self.histories[service].versions.iter();
        let mut now = versions.filter_map(|(_, spec)| spec.as_deref());
        *self.lacks_members.get(world::family(service)) && now.any(Spec::has_ranges)
    }

    /// Checks the possible outcomes of a call.
    fn check_probe(&self, probe: &Probe, found: &Outcomes) {
        let external = self.rules.external_policy();
        let history = &self.histories[probe.service];
        let reachable = |spec: &Spec| spec.reachable(probe.called, probe.caller, external);
        let now = || history.versions.iter().map(|(_, spec)| spec.as_deref());
        let sets: Vec<_> = now()
            .map(|spec| spec.map_or_else(Vec::new, reachable))
            .collect();
        let is_whole = history.in_force && !history.is_interrupted;
        let by_steps = self.rules.changes_by_steps(is_whole) && history.is_pending();
        let admits = |spec: &Spec| spec.admits(probe.called, probe.caller);
        // A version that could not be removed lets in the same callers as before.
        let left = || history.left.iter().map(|spec| &**spec);
        let lets_in = by_steps && now().flatten().chain(left()).any(admits);
        let has = |to: &SocketAddr| now().flatten().any(|spec| spec.has(to));
        // A client that is let in again is for a moment remembered with an endpoint that
        // may be leaving.
        let is_let_in = sets.iter().any(|set| !set.is_empty());
        let may = |to: &SocketAddr| {
            let stays = |spec: &Spec| {
                let has_stayed = spec.has_stayed(probe.called, probe.caller, external, to);
                has_stayed && (is_let_in || !reachable(spec).is_empty())
            };
            let remembered = history.remembered.iter().map(|spec| &**spec);
            sets.iter().any(|set| set.contains(to))
                || now().flatten().chain(remembered).any(stays)
                || left().any(|spec| reachable(spec).contains(to))
                || lets_in && has(to)
        };
        let is_open = |outcome: &&Outcome| match outcome.disposition {
            Disposition::Passes(to) => to != probe.packet.destination && !may(&to),
            _ => false,
        };
        if let Some(open) = found.iter().find(is_open) {
            self.fail(&format!("{probe:?} is open: {open:?}, may {sets:?}"));
        }
        if let Some(odd) = self.odd_source(probe, found) {
            let (versions, left) = (&history.versions, &history.left);
            self.fail(&format!(
                "{probe:?} has another source than it may: {odd:?}, is {versions:?}, left {left:?}"
            ));
        }
        let may_close = self.may_be_left_out(probe.service)
            || !history.in_force
            || self.lacks_ranges(probe.service);
        let stays_open = !may_close && sets.iter().all(|set| !set.is_empty());
        let is_closed = |outcome: &&Outcome| match outcome.disposition {
            Disposition::Passes(to) => !may(&to),
            _ => true,
        };
        if stays_open && let Some(closed) = found.iter().find(is_closed) {
            self.fail(&format!("{probe:?} is closed: {closed:?}, may {sets:?}"));
        }
    }

    /// Returns an outcome in which endpoints see a source that they must not see.
    fn odd_source<'a>(&self, probe: &Probe, found: &'a Outcomes) -> Option<&'a Outcome> {
        let family = world::family(probe.service);
        let program_failed = *self.program_failed.get(family);
        if !self.rules.has_source_rules(probe.called, program_failed) {
            return None;
        }
        let history = &self.histories[probe.service];
        let now = history
            .versions
            .iter()
            .filter_map(|(_, spec)| spec.as_ref());
        let may: Vec<bool> = now
            .chain(&history.left)
            .map(|spec| spec.masquerades(probe.called, probe.caller))
            .collect();
        found.iter().find(|outcome| match outcome.disposition {
            Disposition::Passes(to) => {
                to != probe.packet.destination && !may.contains(&outcome.masqueraded)
            }
            _ => false,
        })
    }

    /// Stops watching connections that need not continue, as the mode says.
    fn drop_flows(&mut self) {
        let (rules, histories) = (&self.rules, &self.histories);
        self.flows.retain(|flow| {
            let mut versions = histories[flow.service].versions.iter();
            versions.all(|(_, spec)| rules.goes_on(flow, spec.as_deref()))
        });
    }

    /// Drops clients whose endpoints cannot be reached any more: they need not stay there,
    /// even if those can be reached again later.
    pub(super) fn drop_sticky(&mut self) {
        let external = self.rules.external_policy();
        let histories = &self.histories;
        let now = Instant::now();
        self.sticky.retain(|sticky| {
            let Probe {
                service,
                called,
                caller,
                ..
            } = sticky.probe;
            let versions = || histories[service].versions.iter();
            let specs = || versions().filter_map(|(_, spec)| spec.as_deref());
            let is_local = |spec: &Spec| spec.is_local(called, caller, external);
            let (any, all) = (specs().any(is_local), specs().all(is_local));
            if any != all && !self.rules.stays_across_policies() {
                return false;
            }
            let stays = |spec: &Spec| {
                let reachable = spec.reachable(called, caller, external);
                spec.remembers() && reachable.contains(&sticky.on)
            };
            let stays = |(_, spec): &(u64, Option<Arc<Spec>>)| spec.as_deref().is_some_and(stays);
            now < sticky.until && versions().all(stays)
        });
    }

    /// Checks that clients stay on their endpoints for as long as those can be reached.
    fn check_sticky(&mut self, state: &State, families: &[Family]) {
        self.drop_sticky();
        for at in 0..self.sticky.len() {
            let Sticky { probe, on, .. } = &self.sticky[at];
            let (probe, on) = (probe.clone(), *on);
            if !families.contains(&world::family(probe.service)) {
                continue;
            }
            let dispositions = self.dispositions(state, probe.service, &probe.packet);
            let history = &self.histories[probe.service];
            let begins = !self.rules.outlives_process() && !history.in_force;
            let may_go = begins || self.may_be_left_out(probe.service);
            let others = self.visited(&probe);
            let stays = |disposition: &Disposition| match disposition {
                Disposition::Passes(to) => *to == on || others.contains(to),
                Disposition::Dropped => self.lacks_ranges(probe.service),
                _ => false,
            };
            if !may_go && !dispositions.iter().all(stays) {
                self.fail(&format!(
                    "{probe:?} does not stay on {on}: {dispositions:?}"
                ));
            }
        }
    }

    /// Returns whether the kernel refuses the elements of some Service.
    pub(super) fn is_refusing(&self) -> bool {
        self.refused.is_some()
    }

    /// Checks that everything is as desired, and that every endpoint is in use.
    pub(super) fn check_exactly(&mut self, state: &State) {
        self.check_repaired();
        for number in 0..SERVICES {
            if self.histories[number].is_pending() {
                self.fail(&format!("Service {number} is not applied"));
            }
        }
        for history in &mut self.histories {
            history.remembered.clear();
        }
        self.check(state, &Family::ALL);
        if let Some(wrong) = self.rules.wrong(state, &Watch::own()) {
            self.fail(&wrong);
        }
        self.check_unneeded(state);
        let external = self.rules.external_policy();
        for probe in self.probes.clone() {
            let history = &self.histories[probe.service];
            let Some((_, spec)) = history.versions.front() else {
                continue;
            };
            let Some(spec) = spec.clone().filter(|spec| !spec.has_affinity()) else {
                continue;
            };
            let dispositions = self.dispositions(state, probe.service, &probe.packet);
            let all = spec.reachable(probe.called, probe.caller, external);
            let unused = all
                .iter()
                .find(|to| !dispositions.contains(&Disposition::Passes(**to)));
            if let Some(unused) = unused {
                self.fail(&format!(
                    "{probe:?} never reaches {unused}: {dispositions:?}"
                ));
            }
        }
        self.check_udp(state);
    }

    /// Checks that nothing is left, except objects of others.
    pub(super) fn check_cleaned(&self, state: &State) {
        if let Some(left) = self.rules.remains(state) {
            self.fail(&format!("{left} is left by a cleanup"));
        }
        self.check_foreign(state);
    }

    /// Checks that everything of others is still there.
    fn check_foreign(&self, state: &State) {
        let there = self.rules.foreign(state);
        if let Some((family, name)) = self.foreign.difference(&there).next() {
            self.fail(&format!("{family} {name} of others is gone"));
        }
    }

    /// Checks that nothing is left for addresses that neither a Service nor a connection uses.
    pub(super) fn check_unneeded(&self, state: &State) {
        let now = self.histories.iter().enumerate();
        let now = now.filter_map(|(number, history)| {
            let (_, spec) = history.versions.back()?;
            Some((number, spec.clone()?))
        });
        let now: Vec<_> = now.collect();
        let is_used = |ip: &IpAddr| {
            let has = |(number, spec): &(usize, Arc<Spec>)| {
                let mut all = Called::ALL.into_iter();
                all.any(|called| spec.has_address(called) && called_at(*number, called).ip() == *ip)
            };
            let mut flows = self.flows.iter();
            now.iter().any(has) || flows.any(|flow| flow.packet.destination.ip() == *ip)
        };
        if let Some(unneeded) = self.rules.unneeded(state, &is_used) {
            self.fail(&format!("{unneeded} is left"));
        }
    }

    /// Checks that no flow of a UDP client goes to an endpoint that does not serve.
    pub(super) fn check_udp(&mut self, state: &State) {
        let external = self.rules.external_policy();
        let mut stale = None;
        for flow in state.conntrack.flows() {
            let mut probes = self.probes.iter();
            let called = probes.find(|probe| probe.packet.destination == flow.original.destination);
            let Some(probe) = called else { continue };
            let spec = self.histories[probe.service].versions.front();
            let Some((_, Some(spec))) = spec else {
                continue;
            };
            let reachable = spec.reachable(probe.called, probe.caller, external);
            let exists = !reachable.is_empty();
            if exists && !self.rules.serves(spec, flow.reply.source) {
                stale = Some(format!("{flow} is stale"));
            }
        }
        if let Some(stale) = stale {
            self.fail(&stale);
        }
    }

    /// Checks that earlier changes by another process were repaired.
    pub(super) fn check_repaired(&self) {
        if self.damaged.iter().any(|(_, damaged)| damaged.is_some()) {
            self.fail("what another process changed is not repaired");
        }
    }
}
