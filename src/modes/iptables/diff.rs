//! Computes the steps that apply ServicePorts. Pure.
//!
//! A [`Change`] compares ServicePorts with the applied ones, and is one transaction. A [`Full`]
//! sync compares everything with the observed rules, and is made piece by piece, so that the rules
//! of all Services are at no time in memory together. Both compare a ServicePort in the same way
//! (`kernel::xtables::difference`).

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use net::Family;
use xtables::{
    desired::{Entry, OwnerRules, RuleSet},
    difference::{Comparison, between, missing},
    observed::Observed,
    rule::Table,
    transaction::{Action, Group, Op, Transaction},
};

use super::{
    applied::{Applied, IndexChain},
    count::RuleCount,
    large,
    observe::distance,
    plan::{self, Options},
};
use crate::services::{ServiceMap, ServicePort, ServicePortName};

/// Chains that are deleted in one group: a refusal keeps all of them.
const TOGETHER: usize = 50;

/// Steps of ServicePorts.
pub type PortSteps = Group<ServicePortName>;

/// How much of a ServicePort changes at once.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Chains of endpoints that a sync adds, or removes.
    pub chains: usize,
    /// The [weight](Group::weight) above which steps are several groups.
    pub weight: usize,
}

/// Changes for some ServicePorts.
pub struct Change {
    /// The steps that make the change.
    pub transaction: Transaction<ServicePortName>,
    /// ServicePorts that are not yet such as they are desired.
    pub pending: HashSet<ServicePortName>,
    /// The ServicePorts, as they will be; `None`: gone.
    ports: Vec<(ServicePortName, Option<Arc<ServicePort>>)>,
    removed: RuleCount,
    added: RuleCount,
    /// How many ServicePorts more, or less, take the step to a chain of the index.
    steps: HashMap<IndexChain, i32>,
}

impl Change {
    /// Plans the steps that bring the ServicePorts called `names` from the `applied` state to that
    /// of `map`, or nearer to it within the `limits`. Each is named once.
    pub fn new<'a>(
        applied: &Applied,
        map: &ServiceMap,
        names: impl IntoIterator<Item = &'a ServicePortName>,
        limits: Limits,
    ) -> Change {
        let family = applied.options.family;
        let mut pending = HashSet::new();
        let mut groups = Vec::new();
        let mut ports = Vec::new();
        let (mut removed, mut added) = (RuleCount::default(), RuleCount::default());
        let (mut first, mut released) = (Vec::new(), Vec::new());
        let mut steps = applied.steps.pending();
        for name in names {
            let old = applied.port(name);
            let new = map.get(name);
            let step = large::step(old.map(|old| &**old), new.map(|new| &**new), limits.chains);
            let step = step.map(Arc::new);
            if step.is_some() {
                pending.insert(name.clone());
            }
            let new = step.as_ref().or(new);
            let is_same = match (old, new) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (old, new) => old.is_none() && new.is_none(),
            };
            if is_same {
                continue;
            }
            let rules = |port: Option<&Arc<ServicePort>>| {
                port.map_or_else(OwnerRules::default, |port| {
                    plan::plan(port, &applied.options)
                })
            };
            let (before, after) = (rules(old), rules(new));
            let group = Group::of(name.clone(), between(&before, &after, family));
            groups.extend(large::divided(group, limits.weight));
            removed += RuleCount::of(&before);
            added += RuleCount::of(&after);
            let is_first = |step: &Entry| steps.add(IndexChain::after(step));
            first.extend(after.steps.into_iter().filter(is_first));
            released.extend(before.steps);
            ports.push((name.clone(), new.cloned()));
        }
        // A step that one ServicePort leaves and another takes stays.
        released.retain(|step| steps.release(IndexChain::after(step)));
        Change {
            transaction: with_steps(family, &first, groups, &released),
            pending,
            ports,
            removed,
            added,
            steps: steps.deltas(),
        }
    }

    /// Returns how many ServicePorts were planned.
    pub fn examined(&self) -> usize {
        self.ports.len()
    }

    /// Records in `applied` that this change has been applied.
    pub fn commit(self, applied: &mut Applied) {
        for (name, port) in self.ports {
            match port {
                Some(port) => applied.insert(port),
                None => applied.remove(&name),
            }
        }
        applied.rules -= self.removed;
        applied.rules += self.added;
        applied.steps.change(self.steps);
    }
}

/// Returns a transaction of these `groups`, before which the `first` steps are added, and after
/// which the `last` ones are removed.
fn with_steps(
    family: Family,
    first: &[Entry],
    groups: Vec<PortSteps>,
    last: &[Entry],
) -> Transaction<ServicePortName> {
    let nothing = OwnerRules::default();
    let come = |step: &Entry| between(&nothing, &OwnerRules::of_step(step), family);
    let go = |step: &Entry| between(&OwnerRules::of_step(step), &nothing, family);
    let mut all = vec![Group::common(first.iter().flat_map(come).collect())];
    all.extend(groups);
    all.push(Group::common(last.iter().flat_map(go).collect()));
    Transaction {
        family,
        groups: all,
    }
}

/// A full sync of one family: first the rules that do not send traffic to endpoints, for all
/// Services; then those that do, some Services at a time; then the removal of rules that no Service
/// needs.
pub struct Full {
    /// The ServicePorts of the family, sorted by name.
    ports: Vec<Arc<ServicePort>>,
    /// Those that are not yet such as they are desired.
    pub pending: HashSet<ServicePortName>,
    comparison: Comparison,
    fixed: Vec<Op>,
    applied: Applied,
}

/// The steps before traffic is sent to endpoints.
pub struct Closing {
    /// Chains that do not depend on one ServicePort.
    pub chains: PortSteps,
    /// The rules in such chains, and the jumps to them. They come last: each
    /// transaction has the kernel follow all jumps from its own chains
    /// (`nft_chain_validate`).
    pub leads: PortSteps,
    /// Each ServicePort's steps in tables filter and mangle.
    pub ports: Vec<PortSteps>,
}

/// The steps of a ServicePort in table nat.
pub struct Translation {
    /// Chains to which nothing jumps yet.
    pub first: Vec<PortSteps>,
    /// Rules that jump to chains of the ServicePort and are not replaced.
    pub goes: PortSteps,
    /// All else.
    pub comes: PortSteps,
}

/// The steps that delete rules that no Service needs.
pub struct Stale {
    /// The rules in chains that stay, and the jumps from the kernel's own.
    pub leads: PortSteps,
    /// The chains to which nothing jumps then.
    pub chains: Vec<PortSteps>,
}

impl Full {
    /// Compares the `observed` rules with those that do not depend on Services. Of each ServicePort
    /// at most `chains` chains of endpoints are added.
    pub fn new(
        map: &ServiceMap,
        observed: Observed,
        fixed: &RuleSet,
        options: Options,
        chains: usize,
    ) -> Full {
        let mut pending = HashSet::new();
        let ports = map.sorted().into_iter();
        let ports = ports.filter(|port| port.name.family == options.family);
        let ports = ports.map(|port| {
            let Some(step) = large::first_step(port, &observed, chains) else {
                return Arc::clone(port);
            };
            pending.insert(port.name.clone());
            Arc::new(step)
        });
        let ports = ports.collect();
        let (comparison, ops) = Comparison::begin(observed, fixed, options.family);
        Full {
            ports,
            pending,
            comparison,
            fixed: ops,
            applied: Applied::new(options, RuleCount::of_fixed(fixed)),
        }
    }

    /// Returns the ServicePorts of the family, sorted by name.
    pub fn ports(&self) -> Vec<Arc<ServicePort>> {
        self.ports.clone()
    }

    /// Returns the first steps.
    pub fn closing(&mut self) -> Closing {
        let mut common = std::mem::take(&mut self.fixed);
        let mut ports = Vec::new();
        for port in self.ports() {
            let rules = plan::plan(&port, &self.applied.options);
            self.applied.rules += RuleCount::of(&rules);
            let tables = [Table::Filter, Table::Mangle];
            let ops = missing(&rules, &tables, &mut self.comparison);
            if !ops.is_empty() {
                ports.push(Group::of(port.name.clone(), ops));
            }
            for step in self.applied.take_steps(rules.steps) {
                let rules = OwnerRules::of_step(&step);
                common.extend(missing(&rules, &Table::ALL, &mut self.comparison));
            }
        }
        let (chains, leads) = common
            .into_iter()
            .partition(|op| matches!(op.action, Action::Fill(_)));
        Closing {
            chains: Group::common(chains),
            leads: Group::common(leads),
            ports,
        }
    }

    /// Plans the steps of `port` in table nat, if it takes some: the removal of rules that jump to
    /// its chains, and all additions, with the removal of the rules that they replace.
    ///
    /// Both belong into one transaction. If the rules were removed with everything else that is
    /// stale, an address that the ServicePort no longer has would be translated to its new
    /// endpoints until then, which clients of that address may not reach in any version of it; and
    /// for a long time if the sync ends in between. They are two groups so that a removed address
    /// is closed even if the additions are refused; an address that stays is not closed. Chains of
    /// many endpoints come before, so that no more than one of them weighs more than `limit`.
    pub fn translation(&mut self, port: &ServicePort, limit: usize) -> Option<Translation> {
        let rules = plan::plan(port, &self.applied.options);
        let mut comes = missing(&rules, &[Table::Nat], &mut self.comparison);
        if comes.is_empty() {
            return None;
        }
        let chains = plan::policy_chains(port);
        let family = self.applied.options.family;
        let is_replaced = |goes: &Op| comes.iter().any(|one| one.replaces(goes, family));
        let goes = self.comparison.stale_leads(&chains.all()).into_iter();
        let (replaced, goes): (Vec<Op>, _) = goes.partition(is_replaced);
        comes.extend(replaced);
        let [goes, comes] = [goes, comes].map(|ops| Group::of(port.name.clone(), ops));
        let mut first = large::divided(comes, limit);
        let comes = first.pop()?;
        Some(Translation { first, goes, comes })
    }

    /// Plans the steps that delete rules that no Service needs.
    pub fn stale(&mut self) -> Stale {
        let mut chains: Vec<PortSteps> = self.comparison.stale(distance, TOGETHER);
        let mut leads = Group::common(Vec::new());
        let removes = |op: &mut Op| matches!(op.action, Action::Remove(_));
        // Only the first group has rules of chains that stay.
        if let Some(shared) = chains.first_mut() {
            leads.ops.extend(shared.ops.extract_if(.., removes));
        }
        Stale { leads, chains }
    }

    /// Returns all steps, each group of one owner, without running any.
    pub fn steps(&mut self) -> Vec<PortSteps> {
        let Closing {
            chains,
            leads,
            ports,
        } = self.closing();
        let translation: Vec<PortSteps> = self
            .ports()
            .into_iter()
            .filter_map(|port| self.translation(&port, usize::MAX))
            .flat_map(|Translation { first, goes, comes }| [first, vec![goes, comes]].concat())
            .collect();
        let stale = self.stale();
        let groups = [chains, leads].into_iter().chain(ports);
        let groups = groups.chain(translation).chain([stale.leads]);
        groups.chain(stale.chains).collect()
    }

    /// The state applied now, except ServicePorts that have `failed`.
    pub fn applied(self, failed: impl Fn(&ServicePortName) -> bool) -> Applied {
        let mut applied = self.applied;
        let ports = self.ports.into_iter();
        for port in ports.filter(|port| !failed(&port.name)) {
            applied.insert(port);
        }
        applied
    }
}
