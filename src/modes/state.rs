//! State of one IP family in a mode, kept between syncs.
//!
//! The same for all modes: whether the record of the applied state can be relied on, which of it
//! may differ from the kernel because a step failed, and which ServicePorts could not be applied.
//! The runner decides when to try again, with growing pauses ([`Changes::retry`]); this state says
//! what to try again.

use std::collections::BTreeSet;

use net::Family;

use super::{FailedPorts, Metrics, SyncReport, stale::StaleFlows};
use crate::services::{Changes, ServiceMap, ServicePortName};

/// How reliable the mode's record of the applied state is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheState {
    /// There is no record: nothing was observed yet, or it was dropped.
    #[default]
    Unknown,
    /// The kernel may hold something else. It is observed at the next full sync
    /// or retry.
    Dirty,
    /// Nothing indicates that the kernel holds something else.
    Clean,
}

/// State of one family. `P` is the type of pending work that a mode may have to repeat, such as the
/// frontends whose step failed.
#[derive(Debug, Default)]
pub struct FamilyState<P> {
    cache: CacheState,
    pending: P,
    failed: FailedPorts,
    /// The failures when the last sync began.
    failed_before: FailedPorts,
    unfinished: BTreeSet<String>,
    /// Stale flows that could not be deleted yet, where the kernel translates.
    pub flows: StaleFlows,
}

impl<P> FamilyState<P> {
    /// Returns how reliable the record of the applied state is.
    pub fn cache(&self) -> CacheState {
        self.cache
    }

    /// Returns true if a sync of `changes` has to observe the kernel: it was asked
    /// to, there is no record, or the record is dirty and a retry is due.
    pub fn must_observe(&self, changes: &Changes) -> bool {
        match self.cache {
            CacheState::Unknown => true,
            CacheState::Dirty => changes.full || changes.retry,
            CacheState::Clean => changes.full,
        }
    }

    /// Drops the record: the next sync observes the kernel.
    pub fn invalidate(&mut self) {
        self.cache = CacheState::Unknown;
    }

    /// Records that the kernel may hold something else than the record says.
    pub fn suspect(&mut self) {
        if self.cache == CacheState::Clean {
            self.cache = CacheState::Dirty;
        }
    }

    /// Records that the record and the kernel are the same, except for pending work.
    pub fn applied(&mut self) {
        self.cache = CacheState::Clean;
    }

    /// The work that has to be repeated; a sync that does it takes it.
    pub fn pending(&mut self) -> &mut P {
        &mut self.pending
    }

    /// The ServicePorts that could not be applied, each with the reason.
    pub fn failed(&self) -> &FailedPorts {
        &self.failed
    }

    /// Returns true if `name` could not be applied.
    pub fn has_failed(&self, name: &ServicePortName) -> bool {
        self.failed.contains_key(name)
    }

    /// Returns true if everything is applied, and nothing waits.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.unfinished.is_empty()
    }

    /// Records that `name` could not be applied. Reasons add up.
    pub fn fail(&mut self, name: ServicePortName, why: String) {
        self.failed.add(name, why);
    }

    /// Records the result of applying `name` again.
    pub fn record(&mut self, name: ServicePortName, applied: Result<(), String>) {
        self.clear_failure(&name);
        if let Err(why) = applied {
            self.fail(name, why);
        }
    }

    /// Records that something that concerns no single ServicePort was not done.
    pub fn leave_unfinished(&mut self, what: String) {
        self.unfinished.insert(what);
    }

    /// Records that `name` is applied again: why it failed before does not matter any more.
    pub fn clear_failure(&mut self, name: &ServicePortName) {
        self.failed.remove(name);
    }

    /// Records that everything is applied again: no failure from before matters any more.
    pub fn clear_failures(&mut self) {
        self.failed = FailedPorts::default();
        self.unfinished.clear();
    }

    /// Records that a sync begins: its failures will be compared with the present ones.
    pub fn begin_sync(&mut self) {
        self.failed_before = self.failed.clone();
    }

    /// Records that a sync failed as a whole: whatever had failed before it may still not be
    /// applied.
    pub fn restore_failures(&mut self) {
        let before = &self.failed_before;
        for name in before.over(&self.failed.clone()) {
            self.failed.add(name.clone(), before[name].clone());
        }
    }

    /// Ends a sync that took effect, where the kernel translates: deletes the flows of UDP clients
    /// that are stale now that `map` is applied, and completes the `report`.
    pub async fn end_sync(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        metrics: &dyn Metrics,
        report: &mut SyncReport,
    ) {
        let came_in_force = self.failed_before.over(&self.failed);
        self.flows.came_in_force(came_in_force);
        self.flows.clear(family, map, changes, metrics).await;
        self.report(report);
        report.unfinished.extend(self.flows.unfinished());
    }

    /// Adds failed ServicePorts and unfinished work to a sync's `report`.
    pub fn report(&self, report: &mut SyncReport) {
        report.failed.add_all(&self.failed);
        report.unfinished.extend(self.unfinished.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::port_name;

    fn name(port: &str) -> ServicePortName {
        port_name(&format!("web:{port}"))
    }

    #[test]
    fn the_kernel_is_observed_when_asked_or_where_the_record_is_no_good() {
        let changes = |full, retry| Changes {
            full,
            retry,
            ..Changes::default()
        };
        let asked = [(false, false), (false, true), (true, false)];
        let mut state = FamilyState::<()>::default();
        let observes = |state: &FamilyState<()>| {
            asked.map(|(full, retry)| state.must_observe(&changes(full, retry)))
        };
        assert_eq!(observes(&state), [true, true, true]);
        state.suspect();
        assert_eq!(state.cache(), CacheState::Unknown, "no better than before");
        state.applied();
        assert_eq!(observes(&state), [false, false, true]);
        state.suspect();
        assert_eq!(observes(&state), [false, true, true]);
        state.applied();
        state.invalidate();
        assert_eq!(observes(&state), [true, true, true]);
    }

    #[test]
    fn failures_stay_until_what_failed_is_applied_anew() {
        let mut state = FamilyState::<()>::default();
        assert!(state.is_complete());
        state.fail(name("a"), "full".to_owned());
        state.fail(name("a"), "busy".to_owned());
        state.fail(name("b"), "busy".to_owned());
        state.leave_unfinished("a rule".to_owned());
        state.clear_failure(&name("b"));
        let mut report = SyncReport::default();
        state.report(&mut report);
        assert_eq!(report.failed.get(&name("a")).unwrap(), "full; busy");
        assert_eq!(report.failed.len(), 1);
        assert_eq!(report.unfinished, ["a rule"]);
        assert!(state.has_failed(&name("a")) && !state.has_failed(&name("b")));
        let before = state.failed().clone();
        state.begin_sync();
        state.clear_failures();
        assert!(state.is_complete());
        state.fail(name("a"), "timed out".to_owned());
        state.fail(name("c"), "timed out".to_owned());
        state.restore_failures();
        let failed = ["a", "c"].map(|port| &*state.failed()[&name(port)]);
        assert_eq!(failed, ["timed out", "timed out"], "what is new counts");
        state.clear_failures();
        state.restore_failures();
        assert_eq!(state.failed(), &before);
    }
}
