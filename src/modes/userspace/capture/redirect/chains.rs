//! Our chains with their rules, either all or only those on the path to a change: one flat chain of
//! few rules, or search trees. Pure.

use std::collections::BTreeSet;

use net::Frontend;
use xtables::{
    desired::Chain,
    rule::{Rule, Table},
};

use super::{
    key::{Key, Prefix},
    plan::{self, CHAIN, Environment, Listener, Purpose},
    tree::{FEW, Step, Tree},
};
use crate::modes::userspace::capture::Target;

/// The frontends and listeners that have rules.
#[derive(Debug, Default)]
pub struct Trees {
    services: Tree<(Frontend, Target)>,
    node_ports: Tree<(Frontend, Target)>,
    /// Each with the number of frontends that redirect to it.
    listeners: Tree<(Listener, u32)>,
}

/// Keys of changed entries.
#[derive(Debug, Default)]
pub struct Changed {
    services: BTreeSet<Key>,
    node_ports: BTreeSet<Key>,
    listeners: BTreeSet<Key>,
}

/// The chains of a table on the path to changed entries, and new ones.
#[derive(Debug, Default)]
pub struct Affected {
    /// These chains, each before the chain that jumps to it.
    pub chains: Vec<Chain>,
    /// Chains to which they jump, with no changed entry in or below them.
    others: BTreeSet<(Purpose, Prefix)>,
}

fn key(frontend: &Frontend) -> Key {
    Key::new(frontend.address, frontend.protocol, frontend.port)
}

fn listener_key(listener: &Listener) -> Key {
    Key::new(None, listener.protocol, listener.port)
}

/// The listener to which the rules of a frontend redirect.
pub fn listener(frontend: &Frontend, target: &Target) -> Listener {
    Listener {
        protocol: frontend.protocol,
        port: target.port,
    }
}

impl Changed {
    /// Adds a frontend, and the listener to which it redirects before or after the change.
    pub fn add(&mut self, frontend: &Frontend, target: Option<&Target>) {
        match frontend.address {
            Some(_) => self.services.insert(key(frontend)),
            None => self.node_ports.insert(key(frontend)),
        };
        if let Some(target) = target {
            let listener = listener(frontend, target);
            self.listeners.insert(listener_key(&listener));
        }
    }
}

impl Affected {
    /// The chains before a change to `after`. Rules of chains that are deleted are left out.
    pub fn until(&self, after: &Affected) -> Vec<Chain> {
        let gone = self.others.difference(&after.others);
        let gone = gone.map(|(purpose, prefix)| Chain {
            table: purpose.table(),
            name: purpose.chain(*prefix),
            rules: Vec::new(),
        });
        gone.chain(self.chains.iter().cloned()).collect()
    }

    /// Adds the chains of a tree: all, or those on the path to `changed` keys and those that were
    /// not there `before`. Returns the step to its top chain.
    fn add<'a, V>(
        &mut self,
        tree: &'a Tree<V>,
        purpose: Purpose,
        changed: Option<&BTreeSet<Key>>,
        before: Option<&Affected>,
        rule: impl Fn(&Step<'a, V>) -> Rule,
    ) -> Option<Step<'a, V>> {
        let has = |keys: &BTreeSet<Key>, prefix: Prefix| keys.range(prefix.keys()).next().is_some();
        // Without a changed key in or below it, a chain was either off the path or not there.
        let is_new = |prefix| before.is_some_and(|b| !b.others.contains(&(purpose, prefix)));
        let chains =
            tree.chains(&|prefix| changed.is_none_or(|keys| has(keys, prefix) || is_new(prefix)));
        for (prefix, steps) in &chains.asked {
            self.chains.push(Chain {
                table: purpose.table(),
                name: purpose.chain(*prefix),
                rules: steps.iter().map(&rule).collect(),
            });
        }
        let others = chains.others.into_iter();
        self.others.extend(others.map(|prefix| (purpose, prefix)));
        chains.top
    }

    /// Adds the chain to which the kernel's chains jump.
    fn add_first(&mut self, table: Table, rules: Vec<Rule>) {
        self.chains.push(Chain {
            table,
            name: CHAIN.to_owned(),
            rules,
        });
    }
}

impl Trees {
    fn of(&self, frontend: &Frontend) -> &Tree<(Frontend, Target)> {
        match frontend.address {
            Some(_) => &self.services,
            None => &self.node_ports,
        }
    }

    fn of_mut(&mut self, frontend: &Frontend) -> &mut Tree<(Frontend, Target)> {
        match frontend.address {
            Some(_) => &mut self.services,
            None => &mut self.node_ports,
        }
    }

    /// The target to which `frontend` is redirected; `None` if it is not captured.
    pub fn target(&self, frontend: &Frontend) -> Option<&Target> {
        let (of, target) = self.of(frontend).entries.get(&key(frontend))?;
        (of == frontend).then_some(target)
    }

    /// The captured frontends.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        let trees = [&self.services, &self.node_ports].into_iter();
        let all = trees.flat_map(|tree| tree.entries.values());
        all.map(|(frontend, _)| frontend)
    }

    /// Captures `frontend`, and counts another user of its listener's guard.
    pub fn insert(&mut self, frontend: &Frontend, target: &Target) {
        let entry = (*frontend, target.clone());
        self.of_mut(frontend).entries.insert(key(frontend), entry);
        let listener = listener(frontend, target);
        let guarded = self.listeners.entries.entry(listener_key(&listener));
        guarded.or_insert((listener, 0)).1 += 1;
    }

    /// Stops capturing `frontend`. Its listener stays guarded until it is
    /// [released](Trees::release).
    pub fn remove(&mut self, frontend: &Frontend) -> Option<Target> {
        let removed = self.of_mut(frontend).entries.remove(&key(frontend))?;
        Some(removed.1)
    }

    /// Counts one user less of the guard of a listener whose frontend was removed.
    pub fn release(&mut self, listener: &Listener) {
        let key = listener_key(listener);
        match self.listeners.entries.get_mut(&key) {
            Some((_, users)) if *users > 1 => *users -= 1,
            _ => drop(self.listeners.entries.remove(&key)),
        }
    }

    /// Our chains of table nat: all, or those on the path to `changed` entries and those that were
    /// not there `before` the change.
    pub fn nat(
        &self,
        environment: &Environment,
        changed: Option<&Changed>,
        before: Option<&Affected>,
    ) -> Affected {
        let mut affected = Affected::default();
        if self.services.entries.len() + self.node_ports.entries.len() <= FEW {
            affected.add_first(Table::Nat, self.flat(environment));
            return affected;
        }
        let rule = |purpose| move |step: &Step<_>| led(purpose, Rule::new(), step, environment);
        let of = changed.map(|changed| &changed.services);
        let purpose = Purpose::Services;
        let services = affected.add(&self.services, purpose, of, before, rule(purpose));
        let of = changed.map(|changed| &changed.node_ports);
        let purpose = Purpose::NodePorts;
        let node_ports = affected.add(&self.node_ports, purpose, of, before, rule(purpose));
        // Service addresses first: the node may own one of them.
        let mut rules: Vec<Rule> = services.iter().map(rule(Purpose::Services)).collect();
        for beginning in &environment.node {
            let led = |step| led(purpose, beginning.clone(), step, environment);
            rules.extend(node_ports.as_ref().map(led));
        }
        affected.add_first(Table::Nat, rules);
        affected
    }

    /// All rules in one flat chain, service addresses first.
    fn flat(&self, environment: &Environment) -> Vec<Rule> {
        let mut rules = Vec::new();
        for tree in [&self.services, &self.node_ports] {
            let mut all: Vec<&(Frontend, Target)> = tree.entries.values().collect();
            all.sort_unstable_by_key(|(frontend, _)| *frontend);
            let nat = |(frontend, target): &(_, _)| plan::nat(frontend, target, environment);
            rules.extend(all.into_iter().flat_map(nat));
        }
        rules
    }

    /// Our chains of table filter, if there are any: all, or those on the path to `changed` entries
    /// and those that were not there `before` the change.
    pub fn filter(
        &self,
        environment: &Environment,
        changed: Option<&Changed>,
        before: Option<&Affected>,
    ) -> Affected {
        let mut affected = Affected::default();
        if !environment.tables().contains(&Table::Filter) {
            return affected;
        }
        let mut rules = vec![plan::translated(environment)];
        if self.listeners.entries.len() <= FEW {
            let guard = |(listener, _): &(_, _)| plan::guard(*listener, &environment.features);
            rules.extend(self.listeners.entries.values().map(guard));
        } else {
            let of = changed.map(|changed| &changed.listeners);
            let rule = |step: &Step<_>| guarded(step, environment);
            let top = affected.add(&self.listeners, Purpose::Guards, of, before, rule);
            rules.extend(top.iter().map(rule));
        }
        affected.add_first(Table::Filter, rules);
        affected
    }
}

/// Restricts `rule` to packets for the frontends of `step`.
fn led(
    purpose: Purpose,
    rule: Rule,
    step: &Step<(Frontend, Target)>,
    environment: &Environment,
) -> Rule {
    match step {
        Step::Entry((frontend, target)) => plan::leading(rule, frontend, target, environment),
        Step::Jump { within, to } => purpose.jump(rule, environment.family, *within, *to),
    }
}

/// The rule for packets to the listeners of `step`.
fn guarded(step: &Step<(Listener, u32)>, environment: &Environment) -> Rule {
    let family = environment.family;
    match step {
        Step::Entry((listener, _)) => plan::guard(*listener, &environment.features),
        Step::Jump { within, to } => Purpose::Guards.jump(Rule::new(), family, *within, *to),
    }
}
