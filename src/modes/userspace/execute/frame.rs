//! The frame of a sync: the other processes that it acts on, and the ServicePorts that it compares.

use std::collections::BTreeSet;

use net::{Family, PerFamily};

use super::Executor;
use crate::{
    modes::{Asked, handover::Handover, state::FamilyState, userspace::capture::Extent},
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
};

impl Executor {
    /// The handover to and from other processes.
    pub fn handover(&self) -> &Handover {
        &self.shared.options.handover
    }

    /// Begins a sync: it acts on the other processes that there are now, and on everything that
    /// they gave. If that makes a difference, everything in the `families` is compared.
    pub fn begin_sync<P>(&mut self, families: &mut PerFamily<FamilyState<P>>) {
        self.others = self.handover().other_processes();
        if self.acted_on.differs(&self.others) {
            for (_, state) in families.iter_mut() {
                state.invalidate();
            }
        }
        self.take_inherited();
    }

    /// Records that a sync took effect. A family that was not asked for is synced later.
    pub fn end_sync(&mut self, asked: Asked<'_>) {
        if asked.v4.is_some() && asked.v6.is_some() {
            self.handover().acted_on(self.others);
            self.acted_on = self.others;
            self.reported = self.others;
        }
    }

    /// Waits until another process starts or stops taking over from this one, or one that gave way
    /// ends; then a sync of both families is due. Cancel safe.
    pub async fn others_changed(&mut self) {
        self.reported = self.handover().changed(self.reported).await;
    }

    /// Returns whether another process serves the addresses from now on.
    pub fn yields(&self) -> bool {
        self.others.yields()
    }

    /// Returns whether a process that gave way still has connections.
    pub fn has_predecessor(&self) -> bool {
        self.others.has_predecessor()
    }

    /// The ServicePorts that a sync of a `family` in this `state` compares. Those of `map` that are
    /// not `served` have no groups.
    pub fn due<P>(
        &self,
        family: Family,
        state: &FamilyState<P>,
        map: &ServiceMap,
        changes: &Changes,
        served: impl Fn(&ServicePort) -> bool,
    ) -> BTreeSet<ServicePortName> {
        let mut names: BTreeSet<_> = changes.ports.iter().cloned().collect();
        let extent = Extent::of(state, changes);
        if extent >= Extent::Retry {
            names.extend(state.failed().keys().cloned());
        }
        if extent == Extent::Full {
            let all = map.iter().filter(|port| served(port));
            let all = all.map(|port| &port.name).chain(self.ports());
            names.extend(all.filter(|name| name.family == family).cloned());
        }
        names
    }
}
