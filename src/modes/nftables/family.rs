//! One IP family: its table, the applied state, and syncs.

use hashbrown::HashSet;
use net::{Family, Frontend};
use nftables::{Element, Rules, Watcher};
use nix::errno::Errno;

use super::{
    Error, Setup,
    applied::{Applied, TABLE},
    compare,
    diff::{Batch, Change},
    execute::{NotInForce, execute},
    observe::observe,
    plan::{self, Features, Options, SetId, Sets, Slots},
    refused_clients::RefusedClients,
    stale_clients::StaleClients,
};
use crate::{
    kernel::probe::Kernel,
    modes::{
        Difference, Metrics, SyncError, SyncReport, Unwritten, progress::SyncProgress,
        repairs::Repairs, state::FamilyState, tcp_be_liberal, unsupported,
    },
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
};

/// A family that this kernel can serve.
pub struct ServedFamily {
    /// The table of this family in the kernel.
    pub table: FamilyTable,
    pub(super) features: Features,
}

impl ServedFamily {
    /// Opens `family` on a `kernel` that can serve it. Changes nothing.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open(kernel: &Kernel, family: Family) -> Result<ServedFamily, Error> {
        Ok(ServedFamily {
            table: FamilyTable::open(family)?,
            features: plan::features(kernel, family),
        })
    }

    /// The options of the table: its input apart from ServicePorts.
    pub fn options(&self, setup: &Setup, map: &ServiceMap, changes: &Changes) -> Options {
        let mut options = Options::new(
            &setup.configuration,
            &setup.configured,
            self.table.family(),
            map,
            &setup.node_ports.served(),
            &setup.counted,
            self.features,
        );
        let applied = self.table.options();
        // Once there is such a Service, the rules stay: each change writes the whole table.
        options.delivers |= applied.is_some_and(|applied| applied.delivers);
        let applied = applied.map(|applied| applied.tcp_be_liberal);
        options.tcp_be_liberal = tcp_be_liberal(options.tcp_be_liberal, applied, changes);
        options
    }

    /// Deletes the entries of clients whose endpoints are gone, if that is due.
    pub fn delete_stale_clients(&mut self, metrics: &dyn Metrics) {
        if self.table.delete_stale_clients().is_err() {
            metrics.unwritten(self.table.family(), Unwritten::Remnants, 1);
        }
    }

    /// Counts clients that there was no room to remember, if that is due.
    pub fn count_refused_clients(&mut self, metrics: &dyn Metrics) {
        let refused = self.table.count_refused_clients();
        metrics.unwritten(self.table.family(), Unwritten::Clients, refused);
    }

    /// Applies the ServicePorts of the family in `map`, and deletes flows to removed endpoints.
    ///
    /// # Errors
    /// When nothing was applied.
    pub async fn sync(
        &mut self,
        setup: &Setup,
        map: &ServiceMap,
        changes: &Changes,
        watcher: &mut Watcher,
    ) -> Result<SyncReport, SyncError> {
        let family = self.table.family();
        let options = self.options(setup, map, changes);
        self.table.state.begin_sync();
        let done = self.table.sync(map, changes, options, watcher);
        let done = done.inspect_err(|_| setup.metrics.unwritten(family, Unwritten::Rules, 1))?;
        self.delete_stale_clients(&*setup.metrics);
        let were_late = self.table.stale_clients.take_late();
        let state = &mut self.table.state;
        if done.rewritten || were_late {
            state.flows.rules_were_missing();
        }
        let mut report = SyncReport {
            examined: done.examined,
            unsupported: unsupported::of_changed(family, map, changes, |port| {
                plan::unsupported(port, self.features)
            }),
            ..SyncReport::default()
        };
        state
            .end_sync(family, map, changes, &*setup.metrics, &mut report)
            .await;
        Ok(report)
    }
}

/// Number of times that a table is written when others change nf_tables meanwhile, or elements of
/// it are refused.
const ATTEMPTS: u32 = 20;

/// How many of them fail if others changed anything since the table was read. From then on, only
/// notifications say whether that concerned it.
const UNCHANGED: u32 = 4;

/// Result of one sync.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Number of ServicePorts that were compared.
    pub examined: usize,
    /// Whether the whole table was written.
    pub rewritten: bool,
}

/// The table of one family.
pub struct FamilyTable {
    family: Family,
    rules: Rules,
    sets: Sets,
    /// The applied state; `None`: it is not known, and the table is written again.
    applied: Option<Applied>,
    state: FamilyState<()>,
    /// Routes on which clients must not be sent any more, although they were before.
    stale_clients: StaleClients,
    refused_clients: RefusedClients,
    repairs: Repairs,
    progress: SyncProgress,
}

impl FamilyTable {
    /// Opens the table in the network namespace of the calling thread. Changes nothing.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open(family: Family) -> Result<FamilyTable, Error> {
        Ok(FamilyTable {
            family,
            rules: Rules::open()?,
            sets: Sets::new(family),
            applied: None,
            state: FamilyState::default(),
            stale_clients: StaleClients::default(),
            refused_clients: RefusedClients::default(),
            repairs: Repairs::default(),
            progress: SyncProgress::default(),
        })
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns the number by which notifications name its socket.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn port(&self) -> Result<u32, Error> {
        Ok(self.rules.port()?)
    }

    /// The counter of a sync's progress.
    pub fn progress(&self) -> SyncProgress {
        self.progress.clone()
    }

    /// The ServicePorts that could not be applied, with the reasons.
    #[cfg(test)]
    pub fn failed(&self) -> &crate::modes::FailedPorts {
        self.state.failed()
    }

    /// The applied options; `None`: the kernel's table is not known.
    pub fn options(&self) -> Option<&Options> {
        self.applied.as_ref().map(|applied| &applied.options)
    }

    /// Records that changes of others until now were found for a sync of `changes`.
    pub fn begin(&mut self, changes: &Changes) {
        self.repairs.begin(changes);
    }

    /// Records that another process may have changed the table: the next sync writes it again.
    pub fn missed_changes(&mut self) {
        if self.applied.take().is_some() {
            tracing::warn!(
                "{}: notifications of changes by other programs were lost; table {TABLE} is \
                 written again",
                self.family
            );
        }
    }

    /// Records that another process changed the table: the next sync writes it again.
    pub fn externally_modified(&mut self) {
        if self.applied.take().is_some() {
            self.repairs
                .log(&[format!("{} table {TABLE}", self.family)]);
        }
    }

    /// Returns true if clients were sent to endpoints that are gone until a moment ago: the next
    /// sync deletes flows that they began meanwhile.
    pub fn were_late(&self) -> bool {
        self.stale_clients.were_late()
    }

    /// Applies the ServicePorts of the family in `map`. `watcher` is that of the mode.
    ///
    /// # Errors
    /// When nothing was applied.
    pub fn sync(
        &mut self,
        map: &ServiceMap,
        changes: &Changes,
        options: Options,
        watcher: &mut Watcher,
    ) -> Result<Done, Error> {
        self.repairs.log(&[]);
        if self.options().is_some_and(|applied| *applied != options) {
            self.applied = None;
        }
        let done = match self.applied.take() {
            Some(applied) => self.step(applied, map, changes)?,
            None => None,
        };
        let done = match done {
            Some(done) => done,
            None => self.rewrite(map, options, watcher)?,
        };
        Ok(done)
    }

    /// Returns the elements that are `port`'s own, with their sets.
    pub fn elements(&self, port: &ServicePort, options: &Options) -> Vec<(SetId, Element)> {
        let applied = self.applied.as_ref();
        let slots = applied.and_then(|applied| applied.slots(&port.name));
        let slots = slots.unwrap_or_else(|| Slots::new(port));
        plan::plan(port, &slots, options).own
    }

    /// Lists the differences between the table and its desired state for `map`. Changes nothing.
    ///
    /// # Errors
    /// When the table cannot be read.
    pub fn compare(
        &mut self,
        map: &ServiceMap,
        options: Options,
    ) -> Result<Vec<Difference>, Error> {
        let applied = self.applied.clone();
        let applied = applied.filter(|applied| applied.options == options);
        // Slots of endpoints follow from the state applied before.
        let mut desired = applied.unwrap_or_else(|| Applied::new(options));
        let ours = |name: &&ServicePortName| name.family == self.family;
        let names: HashSet<_> = map.iter().map(|port| &port.name).filter(ours).collect();
        let gone: Vec<_> = desired
            .names()
            .filter(|name| !names.contains(name))
            .collect();
        let ports = names.iter().copied().chain(gone);
        let change = Change::new(&desired, ports.map(|name| (name, map.get(name))));
        change.commit(&mut desired);
        let contents = self.rules.contents(self.family, TABLE)?;
        Ok(compare::differences(&desired, &self.sets, contents))
    }

    /// Applies the changes; returns `None` if the table is not in the expected state.
    fn step(
        &mut self,
        mut applied: Applied,
        map: &ServiceMap,
        changes: &Changes,
    ) -> Result<Option<Done>, Error> {
        let mut names = self.dirty(&applied, map, changes);
        let examined = names.len();
        if changes.full || changes.retry {
            self.state.clear_failures();
        }
        for name in &names {
            self.state.clear_failure(name);
        }
        loop {
            let ports = names.iter().map(|name| (name, map.get(name)));
            let change = Change::new(&applied, ports);
            if change.is_empty() {
                change.commit(&mut applied);
                break;
            }
            let mut batch = change.batch(&applied, &self.sets);
            let run = |transaction: &_| self.rules.run(transaction, None);
            match execute(&batch, &self.progress, run) {
                Ok(()) => {
                    self.stale_clients.after(&mut batch.change);
                    batch.change.commit(&mut applied);
                    break;
                }
                Err(NotInForce::Elements(refused, _)) => {
                    names.retain(|name| !refused.contains_key(name));
                    for name in blocked(&mut names, refused.keys(), &applied, map) {
                        let why = "one of its addresses is still that of another ServicePort, \
                             which cannot be changed now";
                        self.state.fail(name, why.to_owned());
                    }
                    for (name, why) in refused {
                        self.state.fail(name, why);
                    }
                }
                // Nothing of it was applied; writing the whole table would take more memory still.
                Err(NotInForce::Refused(error)) if error.is_passing() => {
                    self.applied = Some(applied);
                    self.state.restore_failures();
                    return Err(error.into());
                }
                Err(NotInForce::Refused(error)) => {
                    tracing::warn!("{}: {error}; the table is written again", self.family);
                    return Ok(None);
                }
                Err(NotInForce::Changed(error) | NotInForce::Unknown(error)) => {
                    return Err(error.into());
                }
            }
        }
        self.applied = Some(applied);
        Ok(Some(Done {
            examined,
            rewritten: false,
        }))
    }

    /// Finds the ServicePorts that may not be applied as desired.
    fn dirty(
        &self,
        applied: &Applied,
        map: &ServiceMap,
        changes: &Changes,
    ) -> HashSet<ServicePortName> {
        let ours = |name: &&ServicePortName| name.family == self.family;
        let mut names: HashSet<_> = changes.ports.iter().filter(ours).cloned().collect();
        if changes.full {
            let differs = |name: &&ServicePortName| applied.get(name) != map.get(name);
            let there = map.iter().map(|port| &port.name).filter(ours);
            let all = there.chain(applied.names());
            names.extend(all.filter(differs).cloned());
        }
        if changes.full || changes.retry {
            names.extend(self.state.failed().keys().cloned());
        }
        names
    }

    /// Writes the whole table: the new one takes effect at the moment at which the old
    /// one is deleted.
    fn rewrite(
        &mut self,
        map: &ServiceMap,
        options: Options,
        watcher: &mut Watcher,
    ) -> Result<Done, Error> {
        self.state.clear_failures();
        let mut outcome = Err(Error::Unstable);
        let mut keeps_clients = true;
        for attempt in 0..ATTEMPTS {
            let mut applied = Applied::new(options.clone());
            let state = &self.state;
            let ports = map
                .iter()
                .filter(|port| port.name.family == self.family && !state.has_failed(&port.name));
            let change = Change::new(&applied, ports.map(|port| (&port.name, Some(port))));
            let routes = &change.preserved;
            let observed = match observe(&mut self.rules, self.family, routes) {
                // The table went meanwhile.
                Err(error) if error.errno() == Some(Errno::ENOENT) => continue,
                observed => observed?,
            };
            let mut clients = observed.clients;
            clients.retain(|(_, clients)| keeps_clients && !clients.is_empty());
            let has_clients = !clients.is_empty();
            let is_checked = attempt < UNCHANGED;
            let clients = (observed.exists || !is_checked).then_some(clients);
            let batch = Batch::whole(change, &applied, &self.sets, clients);
            let (rules, generation) = (&mut self.rules, observed.generation);
            // If others change something all the time, their changes have to be known.
            let ran = execute(&batch, &self.progress, |transaction| match attempt {
                0 => watcher.run_unwatched(rules, transaction, generation),
                _ => rules.run(transaction, is_checked.then_some(generation)),
            });
            match ran {
                Ok(()) => {
                    batch.change.commit(&mut applied);
                    let examined = applied.ports.len();
                    self.applied = Some(applied);
                    self.stale_clients.clear();
                    return Ok(Done {
                        examined,
                        rewritten: true,
                    });
                }
                Err(NotInForce::Changed(_)) => {}
                Err(NotInForce::Elements(refused, error)) => {
                    outcome = Err(error.into());
                    for (name, why) in refused {
                        self.state.fail(name, why);
                    }
                }
                // One of the clients may be the refused element.
                Err(NotInForce::Refused(error)) if has_clients => {
                    tracing::warn!(
                        "{}: {error}; the table is written without the clients of session affinity",
                        self.family
                    );
                    keeps_clients = false;
                    outcome = Err(error.into());
                }
                Err(NotInForce::Refused(error) | NotInForce::Unknown(error)) => {
                    return Err(error.into());
                }
            }
        }
        outcome
    }

    /// Deletes the entries of clients whose endpoints are gone, if that was not done just now.
    /// Failed deletions are tried again.
    ///
    /// # Errors
    /// When the kernel refused a deletion.
    pub fn delete_stale_clients(&mut self) -> Result<(), Error> {
        if self.applied.is_none() {
            // The table is written again, with only those clients that stay.
            return Ok(());
        }
        let outcome = self.stale_clients.delete(&mut self.rules);
        if let Err(error) = &outcome {
            let why = format!("clients may be sent to removed endpoints: {error}");
            self.state.leave_unfinished(why);
        }
        outcome
    }

    /// Returns how many connections began whose clients there was no room to remember, as far as
    /// that was read just now, and logs whose clients they are.
    pub fn count_refused_clients(&mut self) -> u64 {
        let applied = self.applied.as_ref();
        applied.map_or(0, |applied| {
            self.refused_clients.count(&mut self.rules, applied)
        })
    }
}

/// Removes those from `names` that have a frontend in `map` which is `applied` for one of the
/// ServicePorts that are `refused`, or for a removed name: they would share elements, and the next
/// change of the one deletes those of the other.
fn blocked<'a>(
    names: &mut HashSet<ServicePortName>,
    refused: impl Iterator<Item = &'a ServicePortName>,
    applied: &Applied,
    map: &ServiceMap,
) -> Vec<ServicePortName> {
    let frontends = |name: &ServicePortName| {
        let port = applied.get(name).into_iter();
        port.flat_map(|port| port.frontends()).collect::<Vec<_>>()
    };
    let mut taken: HashSet<Frontend> = refused.flat_map(frontends).collect();
    let mut blocked = Vec::new();
    loop {
        let has_taken = |name: &ServicePortName| {
            let port = map.get(name);
            port.is_some_and(|port| port.frontends().any(|at| taken.contains(&at)))
        };
        let more: Vec<_> = names.extract_if(has_taken).collect();
        if more.is_empty() {
            return blocked;
        }
        taken.extend(more.iter().flat_map(frontends));
        blocked.extend(more);
    }
}
