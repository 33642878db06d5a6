//! Applied rules of one family, and their difference from the desired rules. Pure.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use net::{Family, Frontend, Protocol};
use xtables::{
    desired::{Chain, Entry, OwnerRules, RuleSet},
    difference::between,
    extension::Extension,
    rule::Rule,
    transaction::{Action, Op},
};

use super::{
    chains::{Changed, Trees, listener},
    plan::{self, Environment, Listener},
};
use crate::modes::userspace::capture::{Desired, Report, Target};

/// The rules of one family, as they were last written.
#[derive(Debug, Default)]
pub struct Applied {
    /// The environment from which they were made; `None` if no rules were written.
    environment: Option<Environment>,
    /// The frontends and listeners that have rules.
    trees: Trees,
}

/// The steps from the applied to the desired rules.
#[derive(Debug, Default)]
pub struct Steps {
    pub ops: Vec<Op>,
    /// The frontends whose rules are added, changed or deleted.
    pub frontends: Vec<Frontend>,
}

/// The target of `frontend`; `None`, with an entry in the report, if it cannot be captured.
fn possible<'a>(
    frontend: &Frontend,
    target: Option<&'a Target>,
    environment: &Environment,
    report: &mut Report,
) -> Option<&'a Target> {
    let target = target?;
    let matches_sctp = environment.features.contains(Extension::Sctp);
    if frontend.protocol == Protocol::Sctp && !matches_sctp {
        let reason = "it cannot be refused without the sctp match".to_owned();
        report.failed.push((*frontend, reason));
        return None;
    }
    Some(target)
}

/// The steps that turn the chains `from` into the chains `to`.
fn steps(from: Vec<Chain>, to: Vec<Chain>, family: Family) -> Vec<Op> {
    let [from, to] = [from, to].map(|chains| OwnerRules {
        chains,
        ..OwnerRules::default()
    });
    between(&from, &to, family)
}

impl Applied {
    /// The rules for all `desired` frontends of the family. Frontends that cannot be captured are
    /// added to `report`.
    pub fn of(desired: &Desired, environment: Environment, report: &mut Report) -> Applied {
        let mut applied = Applied::default();
        let family = environment.family;
        for (frontend, target) in desired.iter().filter(|(f, _)| f.family == family) {
            if let Some(target) = possible(frontend, Some(target), &environment, report) {
                applied.trees.insert(frontend, target);
            }
        }
        applied.environment = Some(environment);
        applied
    }

    /// Returns the listener to which the rules of `frontend` redirect; `None` if it has none.
    pub fn listener(&self, frontend: &Frontend) -> Option<Listener> {
        let target = self.trees.target(frontend)?;
        Some(listener(frontend, target))
    }

    /// The address to which nat rules translate; `None` for REDIRECT.
    pub fn destination(&self) -> Option<IpAddr> {
        self.environment.as_ref()?.destination
    }

    /// The rules of `frontend`, in the form used while few frontends have rules.
    fn rules(&self, frontend: &Frontend) -> Vec<Rule> {
        match (&self.environment, self.trees.target(frontend)) {
            (Some(environment), Some(target)) => plan::nat(frontend, target, environment),
            _ => Vec::new(),
        }
    }

    /// The rules through which packets to `frontend` reach its listener, in the order in which
    /// packets pass them.
    pub fn way(&self, frontend: &Frontend) -> Vec<Entry> {
        let (Some(environment), Some(target)) = (&self.environment, self.trees.target(frontend))
        else {
            return Vec::new();
        };
        let mut changed = Changed::default();
        changed.add(frontend, None);
        let mut own = plan::nat(frontend, target, environment);
        own.push(plan::leading(Rule::new(), frontend, target, environment));
        let chains = self.trees.nat(environment, Some(&changed), None).chains;
        let names: BTreeSet<String> = chains.iter().map(|chain| chain.name.clone()).collect();
        let leads = |rule: &Rule| match rule.leads_to() {
            Some(to) => names.contains(to),
            None => own.contains(rule),
        };
        let first_to_last = chains.into_iter().rev();
        first_to_last
            .flat_map(|Chain { table, name, rules }| {
                let rules = rules.into_iter().filter(leads);
                rules.map(move |rule| {
                    let chain = name.clone();
                    Entry { table, chain, rule }
                })
            })
            .collect()
    }

    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        self.trees.frontends().copied()
    }

    /// The frontends whose rules differ from those in `before`.
    pub fn changed_since(&self, before: &Applied) -> BTreeSet<Frontend> {
        let both = self.frontends().chain(before.frontends());
        let alike = self.environment == before.environment;
        let changed = both.filter(|frontend| {
            let targets = [self, before].map(|one| one.trees.target(frontend));
            let same = alike && targets[0] == targets[1];
            !same && self.rules(frontend) != before.rules(frontend)
        });
        changed.collect()
    }

    /// The desired contents of the tables.
    pub fn rule_set(&self) -> RuleSet {
        let Some(environment) = &self.environment else {
            return RuleSet::default();
        };
        let mut chains = self.trees.nat(environment, None, None).chains;
        chains.extend(self.trees.filter(environment, None, None).chains);
        plan::rule_set(chains, environment)
    }

    /// Updates this to the desired rules for `changed`, and returns the difference. Only compares
    /// the chains through which packets reach these frontends and their listeners.
    pub fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        report: &mut Report,
    ) -> Steps {
        let Some(environment) = self.environment.clone() else {
            return Steps::default();
        };
        let family = environment.family;
        let frontends: BTreeSet<_> = changed.iter().filter(|f| f.family == family).collect();
        let mut changed = Changed::default();
        let mut new = BTreeMap::new();
        for frontend in frontends {
            let target = possible(frontend, desired.get(frontend), &environment, report);
            changed.add(frontend, self.trees.target(frontend));
            changed.add(frontend, target);
            new.insert(frontend, target);
        }
        let nat = self.trees.nat(&environment, Some(&changed), None);
        let filter = self.trees.filter(&environment, Some(&changed), None);

        let mut released = Vec::new();
        let mut difference = Steps::default();
        for (frontend, target) in new {
            let old = self.rules(frontend);
            let replaced = self.trees.remove(frontend);
            released.extend(replaced.map(|target| listener(frontend, &target)));
            if let Some(target) = target {
                self.trees.insert(frontend, target);
            }
            if old != self.rules(frontend) {
                difference.frontends.push(*frontend);
            }
        }
        let after = self.trees.nat(&environment, Some(&changed), Some(&nat));
        difference.ops = steps(nat.until(&after), after.chains, family);

        // Old and new listeners are guarded until nat only redirects to the new ones.
        let both = self
            .trees
            .filter(&environment, Some(&changed), Some(&filter));
        for listener in &released {
            self.trees.release(listener);
        }
        let after = self.trees.filter(&environment, Some(&changed), Some(&both));
        let last = steps(both.until(&after), after.chains, family);
        let first = steps(filter.until(&both), both.chains, family);
        difference.ops.extend(guarding(first, last));
        difference
    }
}

/// The steps that guard listeners: `first` to the chains that guard old and new ones, `last` to
/// those that guard the new ones, when nat only redirects to these.
fn guarding(mut first: Vec<Op>, last: Vec<Op>) -> Vec<Op> {
    let is_fill = |op: &&Op| matches!(op.action, Action::Fill(_));
    let filled = last.iter().filter(is_fill);
    let filled: BTreeSet<String> = filled.map(|op| op.chain.clone()).collect();
    // A chain that is needed again stays: it would be deleted when the last ones are filled.
    first.retain(|op| op.action != Action::Delete || !filled.contains(&op.chain));
    first.extend(last.into_iter().map(|op| match op.action {
        Action::Fill(rules) => Op {
            action: Action::FillLast(rules),
            ..op
        },
        _ => op,
    }));
    first
}
