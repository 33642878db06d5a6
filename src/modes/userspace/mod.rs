//! Userspace mode: accepts a connection, picks an endpoint and splices the bytes; when a backend
//! does not answer, retries with another.
//!
//! `plan` determines the service groups of a ServicePort, `diff` the steps to create them, and
//! `execute` runs these: a group has a set of `listeners`, to which [`capture`] directs the
//! packets. The code that relays bytes (`proxy`) runs on the workers, knows only service groups,
//! and reads them without locks.

pub(super) mod assignments;
pub mod capture;
mod cleanup;
mod diff;
mod execute;
pub(super) mod explain;
mod listeners;
mod loads;
mod node;
mod node_port_relay;
mod options;
mod plan;
mod proxy;
pub mod render;
mod return_path;
mod rings;
mod settings;
mod shares;
#[cfg(test)]
mod tests;
mod unserved;

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    sync::Arc,
};

use net::{Family, Frontend, PerFamily};
use xtables::Engine;

#[cfg(fuzzing)]
pub use self::assignments::read_anything;
#[cfg(test)]
pub(crate) use self::execute::tests::listening::Listening;
pub use self::{
    assignments::{Assignments, FlowToPass},
    capture::Capture,
    cleanup::{Installed, prepare_successor},
    loads::Loads,
    node_port_relay::{NodePortRelay, RelayMetrics, relayed},
    options::{Options, Role, workers},
    proxy::{
        counters::Counters,
        descriptors::Descriptors,
        dials::{Dial, Dials},
        tcp::Limits as DialLimits,
        udp::Association,
        usage::ConnectionLimits,
    },
    rings::{Io, Rings},
};
use self::{
    capture::{Extent, Method, Scope, Scopes},
    execute::Executor,
    plan::listen::NodeContext,
    return_path::ReturnPath,
    unserved::Unserved,
};
use super::{
    Asked, Compared, Difference, ExplainResult, Mode, Outcomes, Packet, SyncReport, both_failed,
    explain::Explain, progress::SyncProgress, state::FamilyState, unsupported,
};
use crate::{
    config::ModeName,
    kernel::probe::Kernel,
    node::ActedOn,
    services::{Changes, Node, ServiceMap, ServicePort, ServicePortName},
};

/// Userspace mode: the control path, and the workers that relay the bytes.
pub struct Userspace {
    executor: Executor,
    capture: Capture,
    return_path: ReturnPath,
    /// The state of each family, with the frontends that are not captured and the reasons.
    families: PerFamily<FamilyState<BTreeMap<Frontend, String>>>,
    node: NodeContext,
    /// The node-port addresses at the last sync.
    served: ActedOn,
    /// Why the node's addresses are those of an earlier listing; `None` if they are up to date.
    unlisted: Option<String>,
    unserved: Unserved,
    /// Whether the ports to which rules of an ended process redirect are known.
    knows_previous_ports: PerFamily<bool>,
    /// Whether the kernel settings were written, as far as possible.
    is_prepared: bool,
}

impl Userspace {
    /// The mode on a `kernel` that was examined; it does not serve anything yet.
    ///
    /// # Errors
    /// When its threads cannot be started.
    pub fn new(
        options: Options,
        kernel: &Kernel,
        capture: Capture,
        counters: Counters,
    ) -> io::Result<Self> {
        let executor = Executor::start(options, counters)?;
        let shared = Arc::clone(executor.shared());
        let transparent = Arc::clone(&shared.transparent);
        let options = &shared.options;
        let purpose = if options.transparent {
            return_path::Purpose::ShowClients
        } else {
            return_path::Purpose::RemoveStale
        };
        Ok(Userspace {
            node: NodeContext {
                methods: capture.methods(),
                addresses: Vec::new(),
                node_ports: options.node_ports.served(),
                opens_listeners: true,
            },
            served: options.node_ports.acted_on(),
            return_path: ReturnPath::new(purpose, transparent, kernel),
            executor,
            capture,
            families: PerFamily::default(),
            unlisted: None,
            unserved: Unserved::default(),
            knows_previous_ports: PerFamily::default(),
            is_prepared: false,
        })
    }

    /// The loads of endpoints, which can be read at any time.
    pub fn loads(&self) -> Loads {
        self.executor.loads()
    }

    /// Records which addresses of `family` the kernel serves, after `changes` to its ServicePorts in
    /// `map`: endpoints with these addresses are not called.
    pub fn translate(&self, family: Family, map: &ServiceMap, changes: &Changes) {
        let captured = &self.executor.shared().captured;
        captured.translate(family, map, changes);
    }

    /// Must be called `before` and after a mode of the kernel in this process writes rules.
    pub fn expect_changes(&mut self, before: bool) {
        self.capture.expect_changes(before);
    }

    /// The extent of each family's sync.
    fn extents(&self, asked: Asked<'_>) -> PerFamily<Option<Extent>> {
        asked.map(|family, changes| Some(Extent::of(self.families.get(family), changes?)))
    }

    /// Writes kernel settings once: later changes are an administrator's choice.
    pub fn write_settings(&mut self) {
        if mem::replace(&mut self.is_prepared, true) {
            return;
        }
        let methods = self.capture.methods();
        let redirects = methods
            .iter()
            .any(|(_, method)| *method == Method::Redirect);
        for outcome in settings::apply(redirects) {
            match outcome {
                Ok(written) => tracing::info!("{written}"),
                Err(refused) => tracing::warn!("{refused}"),
            }
        }
    }

    /// Determines the ports to which rules of an ended process redirect, before anything listens.
    /// Returns why they are not known for a family.
    async fn take_previous_ports(
        &mut self,
        extents: &PerFamily<Option<Extent>>,
    ) -> PerFamily<Option<capture::Error>> {
        let mut unknown = PerFamily::default();
        for family in Family::ALL {
            if *self.knows_previous_ports.get(family) || extents.get(family).is_none() {
                continue;
            }
            match self.capture.previous_ports(family).await {
                Ok(redirects) => {
                    self.executor.take_previous_ports(family, redirects);
                    *self.knows_previous_ports.get_mut(family) = true;
                }
                Err(error) => *unknown.get_mut(family) = Some(error),
            }
        }
        unknown
    }

    /// Has endpoints called whose address is another Service's, where capture lets that pass.
    fn let_marked_pass(&self) {
        for family in Family::ALL {
            let pass = self.capture.lets_marked_pass(family);
            self.executor.shared().captured.set_marks(family, pass);
        }
    }

    /// Updates the return path for answers to shown clients in the families that are due.
    async fn sync_return_path(&mut self, extents: PerFamily<Option<Extent>>) {
        let due = extents.map(|family, extent| match extent {
            Some(Extent::Full) => true,
            Some(Extent::Retry) => self.return_path.unfinished(family).is_some(),
            Some(Extent::Changed) | None => false,
        });
        for message in self.return_path.sync(due).await {
            match message {
                Ok(message) => tracing::info!("{message}"),
                Err(message) => tracing::warn!("{message}"),
            }
        }
    }

    /// Brings the service groups of due ServicePorts to the state of `map`, and closes what local
    /// capture need not keep.
    fn sync_groups(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
        extents: PerFamily<Option<Extent>>,
        reports: &mut PerFamily<SyncReport>,
    ) {
        let mut names = BTreeSet::new();
        for (family, changes) in asked {
            if let Some(changes) = changes.filter(|_| extents.get(family).is_some()) {
                let state = self.families.get(family);
                names.extend(self.executor.due(family, state, map, changes, |_| true));
            }
        }
        let (families, scheduler) = (&mut self.families, self.executor.shared().options.scheduler);
        for name in &names {
            reports.get_mut(name.family).examined += 1;
        }
        let unserved = &self.unserved;
        let plan = |port: &ServicePort| {
            let is_served = unserved.why(port.name.family).is_none();
            let plans = is_served.then(|| plan::plan(port, scheduler));
            Some(plans.unwrap_or_default())
        };
        let done =
            |name: ServicePortName, opened| families.get_mut(name.family).record(name, opened);
        self.executor.update(names, map, &self.node, plan, done);
        let due = extents.map(|_, extent| extent.is_some());
        self.close(Method::Local, due);
        self.executor.end_lingering(due);
    }

    /// Runs the waiting steps for those `families` that are captured by `method`.
    fn close(&mut self, method: Method, families: PerFamily<bool>) {
        let methods = &self.node.methods;
        let due = families.map(|family, due| due && *methods.get(family) == method);
        self.executor.close(due);
    }

    /// The scope of each family's capture.
    fn scopes(&mut self, asked: Asked<'_>, extents: PerFamily<Option<Extent>>) -> Scopes {
        let (families, executor) = (&mut self.families, &mut self.executor);
        extents.map(|family, extent| {
            let changed = extent.and_then(|_| *asked.get(family));
            // A ServicePort may get a frontend that could not be captured before and was kept for
            // connections.
            let is_changed = |frontend: &&Frontend| {
                let owner = executor.owner(frontend);
                owner.is_some_and(|owner| changed.is_some_and(|all| all.ports.contains(&owner)))
            };
            let again = families.get_mut(family).pending().keys();
            let again = again.filter(|one| extent >= Some(Extent::Retry) || is_changed(one));
            let again: Vec<Frontend> = again.copied().collect();
            let changed = executor.changed(family);
            changed.extend(again);
            // A family that is not due is synced later.
            let extent = extent?;
            let scope = Scope {
                extent,
                changed: changed.iter().copied().collect(),
                has_predecessor: executor.has_predecessor(),
            };
            let needed = extent > Extent::Changed || !scope.changed.is_empty();
            needed.then_some(scope)
        })
    }

    /// Records the results of capture of `family`, if it was `captured`, and completes the report
    /// of its sync.
    fn finish(
        &mut self,
        family: Family,
        captured: Option<capture::Report>,
        mut report: SyncReport,
    ) -> SyncReport {
        let state = self.families.get_mut(family);
        state.applied();
        if self.unlisted.is_some() {
            state.suspect();
        }
        if let Some(captured) = captured {
            let changed = mem::take(self.executor.changed(family));
            let uncaptured = state.pending();
            uncaptured.retain(|one, _| !captured.is_of_all && !changed.contains(one));
            uncaptured.extend(captured.failed);
            report.unfinished.extend(captured.unfinished);
            for message in captured.messages {
                tracing::warn!("{message}");
            }
        }
        self.close(Method::Redirect, PerFamily::each(|one| one == family));

        let state = self.families.get_mut(family);
        state.report(&mut report);
        for (frontend, why) in &*state.pending() {
            let why = format!("{frontend} is not captured: {why}");
            match self.executor.owner(frontend) {
                Some(owner) => report.failed.add(owner.clone(), why),
                None => report.unfinished.push(why),
            }
        }
        report
            .unfinished
            .extend(self.return_path.unfinished(family).cloned());
        // Capture may have reported the same.
        let unlisted = self.unlisted.iter();
        let unlisted = unlisted.filter(|why| !report.unfinished.contains(why));
        let unlisted: Vec<_> = unlisted.cloned().collect();
        report.unfinished.extend(unlisted);
        self.executor.report_lingering(family, &mut report);
        report
    }

    /// Updates the cluster-local clients from `node` and its addresses.
    fn update_cluster_local(&mut self, node: Option<&Node>) {
        let clients = &self.executor.shared().cluster_local;
        if clients.update(node, &self.node.addresses) {
            self.executor.filter_all();
        }
    }

    /// Returns in which engine of each family it has rules. Does not change.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        self.capture.engines()
    }
}

impl Mode for Userspace {
    fn name(&self) -> ModeName {
        ModeName::Userspace
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        self.write_settings();
        let node = map.this_node();
        // First: as long as inherited sockets arrive, further syncs are requested.
        self.executor.begin_sync(&mut self.families);
        let shared = Arc::clone(self.executor.shared());
        let options = &shared.options;
        options.node_ports.update(node);
        if self.served.differs(&options.node_ports) {
            for (_, state) in self.families.iter_mut() {
                state.invalidate();
            }
        }
        let extents = self.extents(asked);
        if let Err(error) = self.update_node(extents) {
            return both_failed(asked, error);
        }
        let mut unknown = self.take_previous_ports(&extents).await;
        let extents =
            extents.map(|family, extent| extent.filter(|_| unknown.get(family).is_none()));
        self.sync_return_path(extents).await;
        self.update_cluster_local(node);

        let mut reports = PerFamily::default();
        self.sync_groups(map, asked, extents, &mut reports);
        self.let_marked_pass();
        let scopes = self.scopes(asked, extents);
        let capturing = self.executor.handover().capturing().await;
        let mut captured = if capturing.is_some() && !self.executor.yields() {
            self.executor.count_captured(&scopes);
            let captured = self.capture.sync(self.executor.desired(), &scopes).await;
            self.executor
                .progress()
                .iter()
                .for_each(|(_, one)| one.confirm());
            captured
        } else {
            capture::Outcomes::default()
        };
        drop(capturing);
        self.let_marked_pass();
        // A family whose leftovers of an ended process are not known does not affect the other
        // one's connections.
        if extents.iter().any(|(_, extent)| extent.is_some()) {
            self.executor.end_sync(asked);
        }

        extents.map(|family, extent| {
            if let Some(error) = unknown.get_mut(family).take() {
                return Some(Err(error.into()));
            }
            let (extent, changes) = (extent?, (*asked.get(family))?);
            let report = mem::take(reports.get_mut(family));
            Some(match captured.get_mut(family).take() {
                Some(Err(error)) => Err(error.into()),
                done => {
                    let mut report = self.finish(family, done.and_then(Result::ok), report);
                    report.not_served = self.unserved.report(family, map);
                    report.unsupported = unsupported::of_changed(family, map, changes, |port| {
                        plan::unsupported(port, options.scheduler)
                    });
                    if extent == Extent::Full {
                        self.executor.close_inherited(family);
                        self.executor.give_up_previous_ports(family);
                    }
                    Ok(report)
                }
            })
        })
    }

    async fn compare(&mut self, _: &ServiceMap) -> Compared {
        if self.executor.yields() {
            // The other process captures, and knows the desired state.
            return Compared::default();
        }
        let captured = self.capture.compare(self.executor.desired()).await;
        captured.map(|family, found| {
            if self.unserved.why(family).is_some() {
                return None;
            }
            let failed = self.families.get(family).failed();
            let missing = self.executor.missing_listeners(family, failed);
            Some(match found {
                Ok(found) => {
                    let owned = found.into_iter().map(|(frontend, difference)| Difference {
                        owner: frontend.and_then(|f| self.executor.owner(&f)),
                        ..difference
                    });
                    Ok(missing.into_iter().chain(owned).collect())
                }
                Err(error) => Err(error.into()),
            })
        })
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        Ok(self.explanation(map, packet)?)
    }

    async fn externally_modified(&mut self) {
        let yields = self.executor.yields();
        let shared = Arc::clone(self.executor.shared());
        tokio::select! {
            () = self.executor.others_changed() => {}
            () = shared.options.handover.holding().arrived() => {}
            // A process that yields writes nothing: the changes are the other process's.
            () = self.capture.externally_modified(), if !yields => {}
        }
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        self.executor.progress().clone()
    }
}
