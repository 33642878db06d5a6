//! Services that choose userspace mode on a node in another mode: a second mode relays them, next to
//! the mode of the kernel.
//!
//! It is created when the first Service chooses it. The new mode of a ServicePort serves before the
//! former one lets go; while both have it, the rules that come first in the kernel decide.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    future::pending,
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use net::{Family, PerFamily};
use prometheus::Registry;

use crate::{
    kernel::probe::Kernel,
    modes::{
        Asked, Compared, Explanation, Mode, Outcomes, Packet, Reason, SyncError, SyncReport,
        Unsupported,
        cleanup::Captures,
        userspace::{
            Capture, Counters, Loads, Options, Userspace,
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
    /// Whether the mode of the kernel serves all ServicePorts, and capture comes first: IPVS would
    /// forget the connections of a virtual server with it.
    pub(super) stays: bool,
    /// Counters that are registered already.
    pub(super) counters: Option<Counters>,
    pub(super) registry: Registry,
    /// Tells those who remove stale rules what the mode has.
    pub(super) captures: Arc<Captures>,
    /// Filled with its loads.
    pub(super) loads: Arc<OnceLock<Loads>>,
}

impl Parts {
    fn build(&mut self) -> Result<Userspace, Box<dyn std::error::Error>> {
        let choice = capture::choose(self.capture, &self.kernel)?;
        let capture = Capture::new(choice, &self.kernel)?.next_to_kernel();
        let counters = match &self.counters {
            Some(counters) => counters.clone(),
            // Once only: the next attempt must not register them again.
            None => {
                let registered = Counters::register(&self.registry)?;
                self.counters.insert(registered).clone()
            }
        };
        let options = self.options.clone();
        Ok(Userspace::new(options, &self.kernel, capture, counters)?)
    }
}

/// The second mode, and the ServicePorts that it serves.
pub(super) struct Chosen {
    parts: Parts,
    mode: Option<Userspace>,
    /// The ServicePorts of the second mode.
    all: Relayed,
    /// Those of them that the mode of the kernel does not have. The second mode lets go of the others
    /// when that one serves them.
    relayed: Relayed,
    /// ServicePorts that choose it and stay with the mode of the kernel, each with the reason, if it was
    /// not reported yet.
    kept: PerFamily<BTreeMap<ServicePortName, Unsupported>>,
    /// Changes of ServicePorts to or from this mode that the mode of the kernel has not applied.
    owed: PerFamily<Changes>,
    /// The reports of syncs that the mode of the kernel has not reported yet.
    reports: PerFamily<SyncReport>,
    /// Whether the mode of the kernel has served since this process started. Before, an earlier
    /// process may serve all ServicePorts in userspace mode.
    is_served: PerFamily<bool>,
    /// Whether its last sync failed, so that everything must be compared.
    is_behind: PerFamily<bool>,
}

/// When flows that must follow a ServicePort into this mode are deleted, where the mode of the
/// kernel is synced first.
const SOON: Duration = Duration::from_secs(1);

/// ServicePorts that are not served, each with the reason.
type Failed = BTreeMap<ServicePortName, String>;

impl Chosen {
    /// No mode is created yet.
    pub(super) fn new(parts: Parts) -> Chosen {
        Chosen {
            parts,
            mode: None,
            all: Relayed::default(),
            relayed: Relayed::default(),
            kept: PerFamily::default(),
            owed: PerFamily::default(),
            reports: PerFamily::default(),
            is_served: PerFamily::default(),
            is_behind: PerFamily::default(),
        }
    }

    /// The ServicePorts of `map` that the mode of the kernel serves.
    pub(super) fn others(&self, map: &ServiceMap) -> ServiceMap {
        match self.parts.stays {
            true => map.clone(),
            false => map.without(&self.relayed),
        }
    }

    /// Returns whether something has been relayed.
    pub(super) fn is_there(&self) -> bool {
        self.mode.is_some()
    }

    /// Divides the ServicePorts to compare into those that become or stay relayed, and those that do
    /// not; reports which of the latter ask for it.
    fn divide(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
    ) -> (Vec<ServicePortName>, Vec<ServicePortName>) {
        let (mut wanted, mut unwanted) = (Vec::new(), Vec::new());
        for (family, changes) in asked {
            let Some(changes) = changes else { continue };
            let known = self.relayed.iter();
            for name in changes.concerned(family, map, known, ServicePort::is_relayed) {
                let port = map.get(&name).filter(|port| port.is_relayed());
                match port.map(|port| self.why_kept(port)) {
                    Some(None) => wanted.push(name),
                    Some(Some(why)) => self.keep(map, name, why),
                    None => unwanted.push(name),
                }
            }
        }
        (wanted, unwanted)
    }

    /// Why `port` cannot be relayed next to this mode of the kernel; `None` if it can.
    fn why_kept(&self, port: &ServicePort) -> Option<&'static str> {
        let by_routes = self.parts.capture == Requested::Local;
        let by_rules = |mode: &Userspace| {
            let mut engines = mode.engines().into_iter();
            engines.any(|(family, _)| family == port.name.family)
        };
        if by_routes && !port.external_ips.is_empty() {
            // Routes capture packets that rules have translated. An external IP can be anyone's
            // address, for example that of another Service's endpoint.
            Some(
                "it has external IPs, and routes to them would also capture what is sent to other \
                  Services whose endpoints have these addresses",
            )
        } else if !by_routes && self.mode.as_ref().is_some_and(|mode| !by_rules(mode)) {
            Some("iptables cannot redirect its IP family on this node")
        } else {
            None
        }
    }

    /// Creates the mode if a ServicePort of `map` asks for it. Must be called before a sync of
    /// either mode.
    pub(super) async fn prepare(&mut self, map: &ServiceMap, asked: Asked<'_>) {
        if self.mode.is_some() {
            return;
        }
        let (wanted, _) = self.divide(map, asked);
        if wanted.is_empty() {
            return;
        }
        let built = self.parts.build().map_err(|error| error.to_string());
        match built {
            Ok(mode) => {
                self.parts.captures.begin(mode.engines()).await;
                let _ = self.parts.loads.set(mode.loads());
                let all = Changes {
                    full: true,
                    ..Changes::default()
                };
                for family in Family::ALL {
                    mode.translate(family, map, &all);
                }
                self.mode = Some(mode);
            }
            Err(error) => {
                let why = format!("nothing can be relayed on this node: {error}");
                for name in wanted {
                    self.keep(map, name, &why);
                }
            }
        }
    }

    /// Returns whether this mode is synced after that of the kernel: if that one serves all
    /// ServicePorts, as its jumps must be written before those of capture, which come first; and until
    /// it serves at all, as this mode removes the capture of an earlier process.
    pub(super) fn comes_second(&self) -> bool {
        self.parts.stays
            || Family::ALL
                .iter()
                .any(|family| !self.is_served.get(*family))
    }

    /// To be called before a sync of the mode of the kernel, if this mode
    /// [`comes_second`](Self::comes_second).
    pub(super) fn expect(&mut self, map: &ServiceMap, asked: Asked<'_>) {
        if self.is_there() && !self.parts.stays {
            for name in self.divide(map, asked).0 {
                self.set(map, &name, true);
            }
        }
    }

    /// Has the second mode serve what is new for it.
    pub(super) async fn begin(&mut self, map: &ServiceMap, asked: Asked<'_>) {
        if !self.is_there() {
            return;
        }
        for (_, report) in self.reports.iter_mut() {
            report.unfinished.clear();
        }
        let (wanted, unwanted) = self.divide(map, asked);
        Arc::make_mut(&mut self.all).extend(wanted.iter().cloned());
        let mut failed = self.sync(map, asked, &wanted).await;
        failed.retain(|name, _| chooses(map, name));
        for name in wanted.iter().filter(|name| !failed.contains_key(*name)) {
            self.set(map, name, true);
        }
        for name in &unwanted {
            self.set(map, name, false);
        }
        for (name, why) in failed {
            self.keep(map, name, &why);
        }
    }

    /// Returns whether nothing serves some ServicePorts until the mode of the kernel is synced once
    /// more.
    pub(super) fn leaves_unserved(&self) -> bool {
        !self.parts.stays && self.owed.iter().any(|(_, owed)| !owed.is_empty())
    }

    /// Returns the changes for the mode of the kernel, which then serves [`others`](Self::others).
    pub(super) fn changes<'a>(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'a>,
    ) -> PerFamily<Option<Cow<'a, Changes>>> {
        let others = self.others(map);
        if let Some(mode) = &mut self.mode {
            mode.expect_changes(true);
        }
        self.owed.as_ref().map(|family, owed| {
            let changes = (*asked.get(family))?;
            let changes = if owed.is_empty() {
                Cow::Borrowed(changes)
            } else {
                let mut all = owed.clone();
                all.merge(changes.clone());
                Cow::Owned(all)
            };
            if let Some(mode) = &self.mode {
                mode.translate(family, &others, &changes);
            }
            Some(changes)
        })
    }

    /// Leaves a ServicePort that chooses this mode to that of the kernel, and reports `why`.
    fn keep(&mut self, map: &ServiceMap, name: ServicePortName, why: &str) {
        let why = format!("the mode of the node serves it, because {why}");
        let reason = Reason::new(Preferences::MODE, why).at(&name);
        self.set(map, &name, false);
        self.kept.get_mut(name.family).insert(name, reason);
    }

    /// Has the mode of the kernel serve the ServicePort from its next sync on, unless it is
    /// `relayed`.
    fn set(&mut self, map: &ServiceMap, name: &ServicePortName, relayed: bool) {
        self.kept.get_mut(name.family).remove(name);
        if self.relayed.contains(name) == relayed {
            return;
        }
        let names = Arc::make_mut(&mut self.relayed);
        match relayed {
            true => names.insert(name.clone()),
            false => names.remove(name),
        };
        let owed = self.owed.get_mut(name.family);
        owed.ports.insert(name.clone());
        let former = map.get(name).map(|port| former(port, relayed));
        if let Some(former) = former.filter(|former| *former != Former::default()) {
            owed.stale.ports.insert(name.clone(), former);
        }
    }

    /// Records a sync of the mode of the kernel with these `outcomes`, in which it `wrote` unless it
    /// gave way to another process.
    pub(super) fn applied(&mut self, outcomes: &Outcomes, wrote: bool) {
        if let Some(mode) = &mut self.mode {
            mode.expect_changes(false);
        }
        for (family, outcome) in outcomes.iter().filter(|_| wrote) {
            if matches!(outcome, Some(Ok(_))) {
                *self.owed.get_mut(family) = Changes::default();
                *self.is_served.get_mut(family) = true;
            }
        }
    }

    /// Lets go of ServicePorts that the mode of the kernel serves after a sync with these
    /// `outcomes` in which it `wrote`, and completes them.
    pub(super) async fn end(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
        outcomes: &mut Outcomes,
        wrote: bool,
    ) {
        let is_served = |name: &ServicePortName| match outcomes.get(name.family) {
            Some(Ok(report)) => wrote && !report.failed.contains_key(name),
            _ => false,
        };
        let mut left = Vec::new();
        if self.all.len() > self.relayed.len() {
            let leaving = self.all.difference(&self.relayed);
            left.extend(leaving.filter(|name| is_served(name)).cloned());
        }
        if !left.is_empty() {
            let all = Arc::make_mut(&mut self.all);
            for name in &left {
                all.remove(name);
            }
            let changes = Changes::default();
            let due = asked.map(|_, asked| asked.map(|_| &changes));
            self.sync(map, due, &left).await;
        }
        for (family, outcome) in outcomes.iter_mut() {
            if let (Some(Ok(report)), Some(changes)) = (outcome, asked.get(family)) {
                let mut own = mem::take(self.reports.get_mut(family));
                let kept = mem::take(self.kept.get_mut(family));
                own.unsupported
                    .retain(|reason| !kept.contains_key(&reason.port));
                own.unsupported.extend(kept.into_values());
                add_to(report, own);
                let unsupported = crate::modes::unsupported_mode(family, map, changes);
                report.unsupported.extend(unsupported);
                if !self.owed.get(family).is_empty() {
                    report.next_check = Some(SOON);
                }
            }
        }
    }

    /// Syncs the second mode. `names` may differ although nothing of them changed. Returns which of
    /// its ServicePorts are not served.
    async fn sync(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
        names: &[ServicePortName],
    ) -> Failed {
        let Some(mode) = &mut self.mode else {
            return Failed::new();
        };
        let changes = asked.map(|family, asked| {
            let asked = asked?;
            let known = |name: &&ServicePortName| self.all.contains(*name);
            let named = names.iter().filter(|name| name.family == family);
            let ports = asked.ports.iter().filter(known).chain(named);
            Some(Changes {
                ports: ports.cloned().collect(),
                full: asked.full || *self.is_behind.get(family),
                retry: asked.retry,
                taken_back: asked.taken_back,
                ..Changes::default()
            })
        });
        let due = changes.as_ref().map(|_, changes| changes.as_ref());
        let outcomes = mode.sync(&map.only(&self.all), due).await;
        let mut failed = Failed::new();
        for (family, outcome) in outcomes {
            let Some(outcome) = outcome else { continue };
            *self.is_behind.get_mut(family) = outcome.is_err();
            let report = self.reports.get_mut(family);
            let why = match outcome {
                Ok(mut done) => {
                    let ports = mem::take(&mut done.failed);
                    failed.extend(ports.iter().map(|(name, why)| (name.clone(), why.clone())));
                    let why = done.not_served.take();
                    add_to(&mut done, mem::take(report));
                    *report = done;
                    why
                }
                Err(error) => {
                    let why = error.to_string();
                    report.unfinished.push(format!(
                        "Services with {} are not up to date: {why}",
                        Preferences::MODE
                    ));
                    Some(why)
                }
            };
            let Some(why) = why else { continue };
            let new = names.iter().filter(|name| name.family == family);
            let new = new.filter(|name| !self.relayed.contains(*name));
            failed.extend(new.map(|name| (name.clone(), why.clone())));
        }
        failed
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

    /// Explains `packet` if it is for something that is relayed; `None` if it is not.
    pub(super) async fn explain(
        &mut self,
        map: &ServiceMap,
        packet: &Packet,
    ) -> Result<Option<Explanation>, SyncError> {
        let Some(mode) = &mut self.mode else {
            return Ok(None);
        };
        // Endpoints can have addresses of those that are not relayed.
        let explanation = mode.explain(map, packet).await?;
        let served_by = explanation.served_by.as_ref();
        let is_relayed = served_by.is_some_and(|(name, _)| self.relayed.contains(name));
        Ok(is_relayed.then_some(explanation))
    }

    /// Waits until a full sync is due for the second mode. May be dropped while it waits.
    pub(super) async fn externally_modified(&mut self) {
        match &mut self.mode {
            Some(mode) => mode.externally_modified().await,
            None => pending().await,
        }
    }
}

fn chooses(map: &ServiceMap, name: &ServicePortName) -> bool {
    map.get(name).is_some_and(|port| port.is_relayed())
}

/// The flows of `port` that must follow it from one mode to the other.
fn former(port: &ServicePort, relayed: bool) -> Former {
    if !relayed {
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

/// Adds the outcomes of a second sync to those of a first one.
pub(super) fn add(outcomes: &mut Outcomes, second: Outcomes) {
    for (family, second) in second {
        match (outcomes.get_mut(family), second) {
            (Some(Ok(first)), Some(Ok(mut second))) => {
                // Of what it examined, each sync names what is not supported.
                second.unsupported.append(&mut first.unsupported);
                second.examined += first.examined;
                *first = second;
            }
            (first, Some(second)) => *first = Some(second),
            (_, None) => {}
        }
    }
}

/// Adds a second report to a first one.
fn add_to(report: &mut SyncReport, second: SyncReport) {
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
