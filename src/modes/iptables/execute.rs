//! Running steps, in a safe order.

use std::collections::BTreeSet;

use xtables::{
    run::{Refusals, Writer},
    transaction::{Op, Phase},
};

use super::{
    Error,
    count::{Done, RuleCount},
    diff::{Change, Closing, Full, PortSteps, Stale, Translation},
};
use crate::{modes::progress::SyncProgress, services::ServicePortName};

/// The objects that are counted. The number of their chains becomes known with each ServicePort.
const COUNTED: &str = "ServicePorts";

/// Runs the steps of one sync of one family.
pub struct Execution<'a> {
    writer: &'a Writer,
    progress: &'a SyncProgress,
    /// Work of the steps that were run.
    pub done: Done,
    /// Steps that were refused.
    pub refusals: Refusals<ServicePortName>,
    /// The chains that changed, by name; `None`: nobody asks for them.
    changed: Option<BTreeSet<String>>,
    /// Stale rules could not be removed: they still jump to chains of ServicePorts.
    pub leads_left: bool,
}

impl Execution<'_> {
    /// Returns an execution of which nothing was run yet. Counts in `progress`.
    pub fn new<'a>(writer: &'a Writer, progress: &'a SyncProgress) -> Execution<'a> {
        Execution {
            writer,
            progress,
            done: Done::default(),
            refusals: Refusals::default(),
            changed: None,
            leads_left: false,
        }
    }

    /// Makes [`changed_chains`](Self::changed_chains) list the chains that steps change from now
    /// on.
    pub fn record_changed_chains(&mut self) {
        self.changed = Some(BTreeSet::new());
    }

    /// Names of the chains that were changed and recorded.
    pub fn changed_chains(&self) -> impl Iterator<Item = &String> {
        self.changed.iter().flatten()
    }

    /// Runs all steps of `change` at once.
    ///
    /// # Errors
    /// When some were refused; it is not known which of them took effect.
    pub async fn change(&mut self, change: &Change) -> Result<(), Error> {
        self.done.examined = change.examined();
        self.progress.begin(COUNTED, self.done.examined);
        self.progress.send(self.done.examined);
        self.done.transactions += self.writer.run(&change.transaction).await?;
        self.progress.confirm();
        let groups = &change.transaction.groups;
        self.count(groups.iter().flat_map(|group| &group.ops));
        Ok(())
    }

    /// Runs the steps of a full sync. A refusal for one ServicePort affects only that one.
    ///
    /// # Errors
    /// When a step was refused that all need, or the program does not run.
    pub async fn full(&mut self, full: &mut Full) -> Result<(), Error> {
        let Closing {
            chains,
            leads,
            ports,
        } = full.closing();
        self.done.examined = full.ports().len();
        self.progress.begin(COUNTED, self.done.examined);
        let common = [chains, leads];
        self.required(&common, Phase::Close).await?;
        for groups in self.writer.chunks(&ports) {
            self.run(groups, Phase::Close).await?;
        }
        drop(ports);
        let [chains, leads] = common;
        self.required(&[chains], Phase::Translate).await?;
        let (mut chunk, mut weight) = (Vec::new(), 0);
        for port in full.ports() {
            self.progress.send(1);
            let translation = full.translation(&port, self.writer.chunk());
            let Some(Translation { first, goes, comes }) = translation else {
                continue;
            };
            for groups in self.writer.chunks(&first) {
                self.run(groups, Phase::Translate).await?;
            }
            weight += goes.weight();
            chunk.push(goes);
            if self.is_guarded(&comes) {
                weight += comes.weight();
                chunk.push(comes);
            }
            if weight >= self.writer.chunk() {
                self.run(&chunk, Phase::Translate).await?;
                self.progress.confirm();
                chunk.clear();
                weight = 0;
            }
        }
        chunk.push(leads);
        self.required(&chunk, Phase::Translate).await?;
        self.progress.confirm();
        drop(chunk);
        let Stale { leads, chains } = full.stale();
        let leads = [leads];
        let refused = self.refusals.refused.len();
        self.run(&leads, Phase::Translate).await?;
        self.leads_left = self.refusals.refused.len() > refused;
        for groups in self.writer.chunks(&chains) {
            self.run(groups, Phase::Translate).await?;
        }
        self.run(&leads, Phase::Open).await?;
        for groups in self.writer.chunks(&chains) {
            self.run(groups, Phase::Open).await?;
        }
        Ok(())
    }

    async fn run(&mut self, groups: &[PortSteps], phase: Phase) -> Result<(), Error> {
        let refusals = &mut self.refusals;
        self.done.transactions += self.writer.run_phase(groups, phase, refusals).await?;
        let ops = groups.iter().flat_map(|group| &group.ops);
        self.count(ops.filter(|op| op.phase() == phase));
        Ok(())
    }

    /// Returns whether all guards of `comes` were accepted: the rules that keep clients out, and
    /// the chains to which they jump.
    fn is_guarded(&self, comes: &PortSteps) -> bool {
        let mut refused = self.refusals.refused.iter();
        refused.all(|one| one.owner != comes.owner)
    }

    /// As [`run`](Self::run), but steps without an owner may not be refused.
    async fn required(&mut self, groups: &[PortSteps], phase: Phase) -> Result<(), Error> {
        self.run(groups, phase).await?;
        let refused = &mut self.refusals.refused;
        match refused.iter().position(|one| one.owner.is_none()) {
            Some(at) => Err(refused.swap_remove(at).error.into()),
            None => Ok(()),
        }
    }

    fn count<'a>(&mut self, ops: impl Iterator<Item = &'a Op> + Clone) {
        self.done.written += RuleCount::written(ops.clone());
        if let Some(changed) = &mut self.changed {
            changed.extend(ops.map(|op| op.chain.clone()));
        }
    }
}
