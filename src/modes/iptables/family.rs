//! One IP family: its state, and syncs.

use std::{mem, time::Duration};

use hashbrown::HashSet;
use net::Family;
use xtables::{
    Engine, Toolkit,
    desired::RuleSet,
    difference::Comparison,
    features::Features,
    observed::Observed,
    rule::Table,
    run::{Refusals, Refused, Writer},
    sync_watch::SyncWatch,
    transaction::{CHAIN, Transaction},
};

use super::{
    Error, Setup,
    accounts::Accounts,
    applied::{Applied, Size},
    cleanup::OWNED,
    count::Done,
    counters::Counters,
    diff::{Change, Full, Limits},
    execute::Execution,
    observe::interest,
    plan::{self, Options},
    setup::{open_loopback, settings, without_unsettable},
};
use crate::{
    log_once::LogOnce,
    modes::{
        Difference, Metrics, SyncReport, Unwritten,
        progress::SyncProgress,
        repairs::Repairs,
        state::{CacheState, FamilyState},
        tcp_be_liberal, unsupported,
    },
    services::{Changes, ServiceMap, ServicePortName},
};

/// A family that is served, with its rules.
pub struct ServedFamily {
    /// The family that the rules are of.
    pub family: Family,
    /// Matches and targets of this kernel that rules may use.
    pub features: Features,
    /// Reads and writes the rules.
    pub writer: Writer,
    /// Notices changes by others.
    pub watch: SyncWatch,
    /// The applied state, unless the cache's state is unknown.
    applied: Option<Applied>,
    /// With the ServicePorts of which more changes with the next sync.
    state: FamilyState<HashSet<ServicePortName>>,
    /// Whether rules that are not among the applied ones jump to chains of ServicePorts: packets
    /// would reach the new rules of a change through them.
    leads_left: bool,
    /// Logs why node ports are not served on loopback.
    logged: LogOnce,
    repairs: Repairs,
    progress: SyncProgress,
    accounts: Accounts,
    /// Why the kernel's rules could not be read for a comparison.
    unread: Option<String>,
    /// Whether table mangle can be read; where it cannot, nothing is written to it either.
    has_mangle: bool,
}

/// Why the kernel's rules differ from those that a full sync wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Differs {
    /// The sync asks for something else than the last one, or something was refused before.
    AsAsked,
    /// Another process changed them.
    ByOthers,
}

impl ServedFamily {
    /// Takes over the rules of one family, written with these tools.
    ///
    /// # Errors
    /// When rules cannot use something that iptables mode does not work without.
    pub fn open(tools: Toolkit) -> Result<ServedFamily, Error> {
        let Toolkit { writer, features } = tools;
        let (family, engine) = (writer.family(), writer.engine);
        let program = writer.xtables.program();
        tracing::info!("{family}: rules go to {engine:?} through {program}");
        let mut needed = plan::NEEDED.into_iter();
        if let Some((missing, remedy)) = needed.find(|(one, _)| !features.contains(*one)) {
            return Err(Error::Impossible {
                family,
                what: missing.spelling(),
                remedy,
            });
        }
        Ok(ServedFamily {
            family,
            features,
            writer,
            // KUBE-FIREWALL, too, which the kubelet also writes, as without its rule neighbours
            // reach the node's loopback.
            watch: SyncWatch::new(family, engine, &OWNED),
            applied: None,
            state: FamilyState::default(),
            leads_left: false,
            logged: LogOnce::default(),
            repairs: Repairs::default(),
            progress: SyncProgress::default(),
            accounts: Accounts::default(),
            unread: None,
            has_mangle: true,
        })
    }

    /// The counter of a sync's progress.
    pub fn progress(&self) -> SyncProgress {
        self.progress.clone()
    }

    /// Returns false if another process changed our rules, as far as that shows without
    /// reading them. While they cannot be read, only the next try finds out.
    pub fn is_unmodified(&mut self) -> bool {
        self.applied.is_none() || self.unread.is_some() || self.watch.is_unmodified()
    }

    /// Makes loopback addresses serve node ports, if that is configured: the setting, after the
    /// rule that keeps neighbours from other listeners there.
    ///
    /// # Errors
    /// When the setting or the rule was refused.
    pub async fn prepare(&mut self, setup: &Setup) -> Result<(), Error> {
        let options = self.options(setup, &ServiceMap::default(), &Changes::default());
        if !options.serves_localhost() {
            return Ok(());
        }
        let guard = plan::loopback_guard(&options);
        let observed = self.observe().await?;
        let (_, ops) = Comparison::begin(observed, &guard, self.family);
        let transaction = Transaction::common(self.family, ops);
        self.writer.run(&transaction).await?;
        Ok(open_loopback()?)
    }

    /// Reads the kernel's rules. If table mangle cannot be read, that is logged once.
    async fn observe(&mut self) -> Result<Observed, Error> {
        let observed = self
            .writer
            .observe_readable(interest, &Table::ALL, |_, _| {});
        let (observed, unread) = observed.await?;
        self.has_mangle = unread.is_none();
        if let Some(error) = unread {
            let why = format!(
                "{}: {error}; the rules of Services, in tables nat and filter, are compared",
                self.family
            );
            if self.logged.is_new(&why) {
                tracing::warn!("{why}");
            }
        }
        Ok(observed)
    }

    /// The rules that do not depend on Services, in the tables that can be read.
    fn fixed(&self, options: &Options) -> RuleSet {
        let mut fixed = plan::fixed(options);
        if !self.has_mangle {
            fixed.leave_out(Table::Mangle);
        }
        fixed
    }

    /// Brings the kernel in step with `map`. Returns the work that it took, and a report.
    ///
    /// # Errors
    /// When something was refused that all ServicePorts need, or the kernel could not be read.
    pub async fn sync(
        &mut self,
        setup: &Setup,
        counters: &Counters,
        map: &ServiceMap,
        changes: &Changes,
    ) -> Result<(Done, SyncReport), Error> {
        let options = self.options(setup, map, changes);
        self.state.begin_sync();
        self.repairs.begin(changes);
        let done = self
            .bring_in_step(&*setup.metrics, map, changes, options)
            .await;
        let done = done.inspect_err(|_| self.watch.suspect())?;
        counters.synced(self.family, done.total, done.written);
        if done.observed {
            let is_suspect = self.watch.take_suspect();
            if is_suspect || done.transactions > 0 {
                self.state.flows.rules_were_missing();
            }
        } else if self.watch.misses_changes() {
            // Rules that are now written again may have been missing.
            let names = changes.ports.iter();
            let of_family = names.filter(|name| name.family == self.family);
            self.state.flows.came_in_force(of_family);
        }
        let is_pending = !self.state.pending().is_empty();
        let mut report = SyncReport {
            examined: done.examined,
            // Changes of others come between.
            next_check: is_pending.then_some(Duration::ZERO),
            unsupported: unsupported::of_changed(self.family, map, changes, |port| {
                plan::unsupported(port, self.features)
            }),
            ..SyncReport::default()
        };
        let own = [self.unread.as_ref(), self.accounts.missing()];
        report.unfinished.extend(own.into_iter().flatten().cloned());
        let (family, metrics) = (self.family, &*setup.metrics);
        self.state
            .end_sync(family, map, changes, metrics, &mut report)
            .await;
        Ok((done, report))
    }

    /// The options of a sync, which its rules depend on.
    pub(super) fn options(
        &mut self,
        setup: &Setup,
        map: &ServiceMap,
        changes: &Changes,
    ) -> Options {
        let chains = self.limits(setup.undivided).chains;
        let now = self.applied.as_ref().map(|applied| &applied.options);
        let size = match &self.applied {
            Some(applied) => {
                let changed = changes.ports.union(self.state.pending());
                applied.size_after(map, changed, chains)
            }
            None => Size::of(map, self.family),
        };
        let node = map.this_node();
        let mut options = setup.options(self.family, self.features, node, size, now);
        let applied = now.map(|now| now.tcp_be_liberal);
        options.tcp_be_liberal = tcp_be_liberal(options.tcp_be_liberal, applied, changes);
        if let Some(why) = without_unsettable(&mut options)
            && self.logged.is_new(&why)
        {
            // A warning was given at start, from the probe.
            tracing::info!("{why}");
        }
        options
    }

    fn limits(&self, undivided: usize) -> Limits {
        let weight = self.writer.chunk();
        let chains = match self.writer.engine {
            Engine::NfTables => (weight / CHAIN).min(undivided),
            // It writes the whole table for each step.
            Engine::Legacy => usize::MAX,
        };
        Limits { chains, weight }
    }

    /// Compares the tables with their desired state for `map`. Changes nothing.
    ///
    /// # Errors
    /// When the tables cannot be read.
    pub async fn compare(
        &mut self,
        setup: &Setup,
        map: &ServiceMap,
    ) -> Result<Vec<Difference>, Error> {
        let family = self.family;
        let options = self.options(setup, map, &Changes::default());
        let settings = Difference::of_settings(settings(&options));
        let observed = self.observe().await?;
        let chains = observed.chains();
        let fixed = self.fixed(&options);
        let steps = Full::new(map, observed, &fixed, options, usize::MAX).steps();
        let differences = steps.iter().flat_map(|group| {
            let owner = group.owner.as_ref();
            let ops = group.ops.iter();
            let chains = &chains;
            ops.map(move |op| Difference::of_step(owner, op, chains, family))
        });
        Ok(differences.chain(settings).collect())
    }

    /// Applies the changes since the last sync. If they are refused, or do not suffice, reads the
    /// kernel and applies the difference. If that cannot be read, the changes are applied
    /// nevertheless.
    async fn bring_in_step(
        &mut self,
        metrics: &dyn Metrics,
        map: &ServiceMap,
        changes: &Changes,
        mut options: Options,
    ) -> Result<Done, Error> {
        let family = self.family;
        self.repairs.log(&[]);
        self.accounts.ensure(&mut options, changes);
        let applied = self.applied.take();
        let applied = applied.filter(|applied| applied.options == options);
        // Only then is a difference the work of another process, and not a change that this sync is
        // asked for, or one that was refused before.
        let mut pending = changes.ports.iter();
        let is_anew = applied.is_none();
        let is_repair = !is_anew
            && changes.full
            && self.state.failed().is_empty()
            && !pending.any(|name| name.family == family);
        let differs = if is_repair {
            Differs::ByOthers
        } else {
            Differs::AsAsked
        };
        let must_observe = self.must_observe(changes);
        let mut known = applied;
        if let Some(applied) = known.take_if(|_| !must_observe) {
            match self.change(applied, map, changes).await {
                Ok(done) => return Ok(done),
                Err(error) => {
                    metrics.unwritten(family, Unwritten::Changes, 1);
                    tracing::debug!("{family}: everything is compared after: {error}");
                }
            }
        }
        if is_anew {
            self.watch.pause();
        }
        let outcome = match (self.observe().await, known) {
            (Ok(observed), _) => {
                self.unread = None;
                self.state.invalidate();
                self.full(map, observed, options, differs).await
            }
            (Err(error), Some(applied)) if !self.leads_left => {
                self.unread = Some(format!("rules are not compared: {error}"));
                self.state.suspect();
                self.change(applied, map, changes).await
            }
            (Err(error), _) => {
                self.state.invalidate();
                Err(error)
            }
        };
        outcome.inspect_err(|_| metrics.unwritten(family, Unwritten::Rules, 1))
    }

    /// Returns true if a sync of `changes` has to read the kernel.
    fn must_observe(&mut self, changes: &Changes) -> bool {
        let is_clean = self.state.cache() == CacheState::Clean;
        let mut names = changes.ports.iter();
        self.leads_left
            || names.any(|name| self.state.has_failed(name))
            || self.state.must_observe(changes) && !(is_clean && self.watch.is_unchanged())
    }

    /// Applies the changes since the last sync.
    async fn change(
        &mut self,
        mut applied: Applied,
        map: &ServiceMap,
        changes: &Changes,
    ) -> Result<Done, Error> {
        let family = self.family;
        let limits = self.limits(applied.options.undivided);
        let of_family = |name: &&ServicePortName| name.family == family;
        let pending = self.state.pending().clone();
        let names = changes.ports.iter().chain(&pending);
        let mut names: Vec<&ServicePortName> = names.filter(of_family).collect();
        let gone: Vec<ServicePortName>;
        if changes.full {
            // `changes` does not name the remains of a failed sync.
            let is_gone = |name: &&ServicePortName| map.get(name).is_none();
            gone = applied.names().filter(is_gone).cloned().collect();
            let all = map.iter().map(|port| &port.name);
            names.extend(all.filter(of_family).chain(&gone));
        }
        // The kernel's rules of failed ServicePorts are not known.
        names.retain(|name| !self.state.has_failed(name));
        names.sort_unstable();
        names.dedup();
        let mut change = Change::new(&applied, map, names, limits);
        let mut execution = Execution::new(&self.writer, &self.progress);
        execution.change(&change).await?;
        *self.state.pending() = mem::take(&mut change.pending);
        change.commit(&mut applied);
        execution.done.total = applied.rules;
        self.applied = Some(applied);
        Ok(execution.done)
    }

    /// Applies the difference from the `observed` rules, which `differs` for that reason.
    async fn full(
        &mut self,
        map: &ServiceMap,
        observed: Observed,
        options: Options,
        differs: Differs,
    ) -> Result<Done, Error> {
        let fixed = self.fixed(&options);
        let serves_localhost = options.serves_localhost();
        let chains = self.limits(options.undivided).chains;
        let mut full = Full::new(map, observed, &fixed, options, chains);
        let mut execution = Execution::new(&self.writer, &self.progress);
        if differs == Differs::ByOthers {
            execution.record_changed_chains();
        }
        execution.full(&mut full).await?;
        // Now that the rule is there that keeps neighbours from loopback.
        if serves_localhost {
            open_loopback()?;
        }
        let chain = |chain: &String| format!("{} chain {chain}", self.family);
        let repaired: Vec<_> = execution.changed_chains().map(chain).collect();
        self.repairs.log(&repaired);
        self.leads_left = execution.leads_left;
        self.state.clear_failures();
        let Refusals {
            refused,
            may_repeat,
        } = execution.refusals;
        for Refused { owner, error } in refused {
            match owner {
                Some(owner) => self.state.fail(owner, error.to_string()),
                None => self.state.leave_unfinished(error.to_string()),
            }
        }
        if may_repeat {
            let program = self.writer.program();
            self.state.leave_unfinished(format!(
                "{program} failed after it had written some of the rules; they are compared \
                 again, since some may be there twice"
            ));
        }
        self.state.applied();
        if !self.state.is_complete() || self.accounts.missing().is_some() {
            self.state.suspect();
        }
        let mut pending = mem::take(&mut full.pending);
        pending.retain(|name| !self.state.has_failed(name));
        *self.state.pending() = pending;
        let applied = full.applied(|name| self.state.has_failed(name));
        let done = Done {
            total: applied.rules,
            observed: true,
            ..execution.done
        };
        // A change deletes only one of two equal rules.
        self.applied = (!may_repeat).then_some(applied);
        Ok(done)
    }
}
