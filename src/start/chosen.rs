//! Services that choose userspace mode on a node in another mode: a second mode relays them, next to
//! the mode of the kernel.
//!
//! It is created when the first Service chooses it. The new mode of a ServicePort serves before the
//! former one lets go; while both have it, the rules that come first in the kernel decide.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, OnceLock},
};

use hashbrown::HashSet;
use net::{Family, PerFamily};
use prometheus::Registry;
use xtables::Engine;

use crate::{
    kernel::probe::Kernel,
    modes::{
        Asked, Compared, ExplainResult, Explanation, Mode, Outcomes, Packet, Reason, SyncReport,
        userspace::{
            Capture, Counters, Options, Userspace,
            capture::{self, Requested},
        },
    },
    services::{Changes, Former, Preferences, Relayed, ServiceMap, ServicePort, ServicePortName},
};

/// The parts from which the second mode is built.
pub(super) struct Parts {
    pub(super) options: Options,
    pub(super) kernel: Kernel,
    pub(super) capture: Requested,
    /// Counters that are registered already.
    pub(super) counters: Option<Counters>,
    pub(super) registry: Registry,
}

impl Parts {
    fn build(&self) -> Result<Userspace, Box<dyn std::error::Error>> {
        let choice = capture::choose(self.capture, &self.kernel)?;
        for reason in &choice.reasons {
            tracing::info!("Services with {}: {reason}", Preferences::MODE);
        }
        let capture = Capture::new(choice, &self.kernel)?.next_to_kernel();
        let counters = match &self.counters {
            Some(counters) => counters.clone(),
            None => Counters::register(&self.registry)?,
        };
        let options = self.options.clone();
        Ok(Userspace::new(options, &self.kernel, capture, counters)?)
    }
}

/// The second mode, and the ServicePorts that it serves.
pub(super) struct Chosen {
    parts: Parts,
    mode: Option<Userspace>,
    /// Tells those who remove stale rules in which engines it has some.
    engines: Arc<OnceLock<Vec<(Family, Engine)>>>,
    relayed: Relayed,
    /// ServicePorts that choose it and stay with the mode of the kernel, each with the reason.
    kept: BTreeMap<ServicePortName, String>,
    /// Changes of ServicePorts to or from this mode that the mode of the kernel has not applied.
    owed: PerFamily<Changes>,
    /// ServicePorts that the second mode has, and lets go after the next sync of the other one.
    leaving: BTreeSet<ServicePortName>,
    /// The reports of the last syncs.
    reports: PerFamily<SyncReport>,
    /// Whether its last sync failed, so that everything must be compared.
    is_behind: PerFamily<bool>,
}

impl Chosen {
    /// No mode is created yet. `engines` is filled when it is.
    pub(super) fn new(parts: Parts, engines: Arc<OnceLock<Vec<(Family, Engine)>>>) -> Chosen {
        Chosen {
            parts,
            mode: None,
            engines,
            relayed: Relayed::default(),
            kept: BTreeMap::new(),
            owed: PerFamily::default(),
            leaving: BTreeSet::new(),
            reports: PerFamily::default(),
            is_behind: PerFamily::default(),
        }
    }

    /// The ServicePorts of `map` that the mode of the kernel serves.
    pub(super) fn others(&self, map: &ServiceMap) -> ServiceMap {
        map.without(&self.relayed)
    }

    /// Returns whether something has been relayed.
    pub(super) fn is_there(&self) -> bool {
        self.mode.is_some()
    }

    /// Lists the ServicePorts that choose this mode and are not relayed, of those to compare.
    fn wanted(&self, map: &ServiceMap, asked: Asked<'_>) -> Vec<ServicePortName> {
        let mut wanted = Vec::new();
        let mut add = |port: &Arc<ServicePort>| {
            if port.is_relayed() && !self.relayed.contains(&port.name) {
                wanted.push(port.name.clone());
            }
        };
        for (family, changes) in asked {
            let Some(changes) = changes else { continue };
            if changes.full || changes.retry && !self.kept.is_empty() {
                map.of_family(family).for_each(&mut add);
            } else {
                let changed = changes.ports.iter().filter_map(|name| map.get(name));
                changed.for_each(&mut add);
            }
        }
        wanted
    }

    /// Creates the mode if a ServicePort of `map` asks for it. Must be called before a sync of
    /// either mode.
    pub(super) fn prepare(&mut self, map: &ServiceMap, asked: Asked<'_>) {
        self.kept
            .retain(|name, _| map.get(name).is_some_and(|port| port.is_relayed()));
        let wanted = self.wanted(map, asked);
        if self.mode.is_some() || wanted.is_empty() {
            return;
        }
        match self.parts.build() {
            Ok(mode) => {
                let _ = self.engines.set(mode.engines());
                self.mode = Some(mode);
            }
            Err(error) => {
                let why = format!("nothing can be relayed on this node: {error}");
                self.kept
                    .extend(wanted.into_iter().map(|name| (name, why.clone())));
            }
        }
    }

    /// Has the second mode serve what is new for it. Returns the changes for the mode of the kernel,
    /// which then serves [`others`](Self::others).
    pub(super) async fn begin<'a>(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'a>,
    ) -> PerFamily<Option<Cow<'a, Changes>>> {
        if self.mode.is_none() {
            return asked.map(|_, changes| changes.map(Cow::Borrowed));
        }
        let wanted = self.wanted(map, asked);
        let mut names: HashSet<_> = self.relayed.iter().cloned().collect();
        names.extend(wanted.iter().cloned());
        let all = Arc::new(names.clone());
        let reports = self.sync(map, &all, asked, &wanted).await;
        for (family, failed) in reports.iter() {
            let Some(failed) = failed else { continue };
            for name in &wanted {
                if name.family == family {
                    self.kept.remove(name);
                }
            }
            for (name, why) in failed {
                self.kept.insert(name.clone(), why.clone());
                names.remove(name);
            }
        }
        names.retain(|name| match map.get(name) {
            Some(port) => asked.get(name.family).is_none() || port.is_relayed(),
            None => false,
        });
        self.leaving = all.difference(&names).cloned().collect();
        let before = std::mem::replace(&mut self.relayed, Arc::new(names));
        for name in before.symmetric_difference(&self.relayed) {
            let owed = self.owed.get_mut(name.family);
            owed.ports.insert(name.clone());
            let former = map.get(name).map(|port| former(port, &self.relayed));
            let former = former.filter(|former| *former != Former::default());
            if let Some(former) = former {
                owed.stale.ports.insert(name.clone(), former);
            }
        }
        self.owed.as_ref().map(|family, owed| {
            let changes = (*asked.get(family))?;
            if owed.is_empty() {
                return Some(Cow::Borrowed(changes));
            }
            let mut all = owed.clone();
            all.merge(changes.clone());
            Some(Cow::Owned(all))
        })
    }

    /// Lets go of ServicePorts that the mode of the kernel serves after a sync with these
    /// `outcomes`, and completes them.
    pub(super) async fn end(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
        outcomes: &mut Outcomes,
    ) {
        let mut relayed = None;
        for (family, outcome) in outcomes.iter_mut() {
            match outcome {
                Some(Ok(_)) => *self.owed.get_mut(family) = Changes::default(),
                Some(Err(_)) => {
                    // They stay where they are until the other mode serves them.
                    let back = self.leaving.iter().filter(|name| name.family == family);
                    let all: &mut HashSet<_> =
                        relayed.get_or_insert_with(|| (*self.relayed).clone());
                    all.extend(back.filter(|name| map.get(name).is_some()).cloned());
                }
                None => {}
            }
        }
        if let Some(relayed) = relayed {
            self.leaving.retain(|name| !relayed.contains(name));
            self.relayed = Arc::new(relayed);
        }
        if !self.leaving.is_empty() {
            let leaving: Vec<_> = std::mem::take(&mut self.leaving).into_iter().collect();
            let changes = Changes::default();
            let due = asked.map(|_, asked| asked.map(|_| &changes));
            let all = Arc::clone(&self.relayed);
            self.sync(map, &all, due, &leaving).await;
        }
        let mut reports = std::mem::take(&mut self.reports);
        for (family, outcome) in outcomes.iter_mut() {
            if let (Some(Ok(report)), Some(changes)) = (outcome, asked.get(family)) {
                add(report, std::mem::take(reports.get_mut(family)));
                self.report_kept(family, map, changes, report);
            }
        }
    }

    /// Syncs the second mode, which has `all`. `names` may differ although nothing of them changed.
    /// Returns, for each family, which of its ServicePorts are not served, with the reasons.
    async fn sync(
        &mut self,
        map: &ServiceMap,
        all: &Relayed,
        asked: Asked<'_>,
        names: &[ServicePortName],
    ) -> PerFamily<Option<Vec<(ServicePortName, String)>>> {
        let Some(mode) = &mut self.mode else {
            return PerFamily::default();
        };
        let (is_behind, relayed) = (&self.is_behind, &self.relayed);
        let changes = asked.map(|family, asked| {
            let asked = asked?;
            let known = |name: &&ServicePortName| all.contains(*name) || relayed.contains(*name);
            let named = names.iter().filter(|name| name.family == family);
            let ports = asked.ports.iter().filter(known).chain(named);
            Some(Changes {
                ports: ports.cloned().collect(),
                full: asked.full || *is_behind.get(family),
                retry: asked.retry,
                taken_back: asked.taken_back,
                ..Changes::default()
            })
        });
        let due = changes.as_ref().map(|_, changes| changes.as_ref());
        let outcomes = mode.sync(&map.only(all), due).await;
        let new = |family| {
            let relayed = &self.relayed;
            let names = names.iter();
            names.filter(move |name| name.family == family && !relayed.contains(*name))
        };
        let mut reports = PerFamily::default();
        for (family, outcome) in outcomes {
            let report = self.reports.get_mut(family);
            let failed: Option<Vec<_>> = outcome.map(|outcome| {
                *self.is_behind.get_mut(family) = outcome.is_err();
                match outcome {
                    Ok(mut done) => {
                        let failed = std::mem::take(&mut done.failed);
                        let unserved = done.not_served.take();
                        let before = std::mem::replace(report, done);
                        report.examined += before.examined;
                        report.unsupported.extend(before.unsupported);
                        let unserved = unserved.into_iter().flat_map(|why| {
                            new(family).map(move |name| (name.clone(), why.clone()))
                        });
                        let failed = failed.iter();
                        let failed = failed.map(|(name, why)| (name.clone(), why.clone()));
                        unserved.chain(failed).collect()
                    }
                    Err(error) => {
                        report.unfinished.push(format!(
                            "Services with {} are not up to date: {error}",
                            Preferences::MODE
                        ));
                        let why = error.to_string();
                        new(family)
                            .map(|name| (name.clone(), why.clone()))
                            .collect()
                    }
                }
            });
            *reports.get_mut(family) = failed;
        }
        reports
    }

    /// Adds to `report` which ServicePorts stay with the mode of the kernel although they choose this
    /// one: those of `changes`, and those that failed in this sync.
    fn report_kept(
        &self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        report: &mut SyncReport,
    ) {
        let kept = self.kept.iter().filter(|(name, _)| name.family == family);
        report.unsupported.extend(kept.map(|(name, why)| {
            let why = format!("the mode of the node serves it, because {why}");
            Reason::new(Preferences::MODE, why).at(name)
        }));
        report
            .unsupported
            .extend(crate::modes::unsupported_mode(family, map, changes));
    }

    /// Adds differences of what is relayed to those that were found.
    pub(super) async fn compare(&mut self, map: &ServiceMap, compared: Compared) -> Compared {
        let Some(mode) = &mut self.mode else {
            return compared;
        };
        let mut own = mode.compare(&map.only(&self.relayed)).await;
        compared.map(|family, found| match (found, own.get_mut(family).take()) {
            (Some(Ok(mut found)), Some(Ok(more))) => {
                found.extend(more);
                Some(Ok(found))
            }
            (Some(Ok(_)), Some(Err(error))) => Some(Err(error)),
            (found, _) => found,
        })
    }

    /// Explains `packet` if it is for something that is relayed; else returns `explanation`.
    pub(super) async fn explain(
        &mut self,
        map: &ServiceMap,
        packet: &Packet,
        explanation: Explanation,
    ) -> ExplainResult {
        let served_by = explanation.served_by.as_ref();
        let is_relayed = served_by.is_some_and(|(name, _)| self.relayed.contains(name));
        match &mut self.mode {
            Some(mode) if is_relayed => mode.explain(map, packet).await,
            _ => Ok(explanation),
        }
    }

    /// Waits until a full sync is due for the second mode. May be dropped while it waits.
    pub(super) async fn externally_modified(&mut self) {
        match &mut self.mode {
            Some(mode) => mode.externally_modified().await,
            None => pending().await,
        }
    }
}

/// The flows of `port` that must follow it from one mode to the other.
fn former(port: &ServicePort, relayed: &Relayed) -> Former {
    if !relayed.contains(&port.name) {
        return Former {
            begun: true,
            ..Former::default()
        };
    }
    if port.name.protocol != net::Protocol::Udp {
        return Former::default();
    }
    let endpoints = port.endpoints.all.iter();
    Former {
        lost: port.frontends().collect(),
        gone: endpoints.map(|endpoint| endpoint.address).collect(),
        begun: false,
    }
}

/// Adds the report of the second mode to that of the first one.
fn add(report: &mut SyncReport, second: SyncReport) {
    report.examined += second.examined;
    report.unfinished.extend(second.unfinished);
    report.lingering += second.lingering;
    report.draining += second.draining;
    report.drains.extend(second.drains);
    report.drains.truncate(crate::modes::MOST_DRAINS);
    report.unsupported.extend(second.unsupported);
    let due = [report.next_check, second.next_check];
    report.next_check = due.into_iter().flatten().min();
}
