//! What is in force in one family, and the difference to what is desired. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::plan::{self, CHAIN, Environment, Listener};
use crate::{
    kernel::{
        extension::Extension,
        xtables::{
            desired::{Entry, RuleSet},
            rule::{Rule, Table},
            transaction::{Action, Op},
        },
    },
    modes::{
        references::References,
        userspace::capture::{Desired, Frontend, Report, Target},
    },
    net::Family,
};

/// The rules of one family, as they were last written.
#[derive(Debug, Default)]
pub struct Applied {
    /// What they were made of; `None`: nothing was written.
    environment: Option<Environment>,
    /// Where the rules of each frontend lead.
    targets: BTreeMap<Frontend, Target>,
    /// How many frontends lead to a listener.
    listeners: References<Listener>,
}

/// The steps from what is in force to what is desired.
#[derive(Debug, Default)]
pub struct Difference {
    /// The steps that lead from one to the other.
    pub ops: Vec<Op>,
    /// The frontends whose rules are to be added or deleted.
    pub frontends: Vec<Frontend>,
}

fn listener(frontend: &Frontend, target: &Target) -> Listener {
    Listener {
        protocol: frontend.protocol,
        port: target.port,
    }
}

/// Returns what `frontend` is captured for; none, and an entry in the report, if it
/// cannot be.
fn possible<'a>(
    frontend: &Frontend,
    target: Option<&'a Target>,
    family: Family,
    report: &mut Report,
) -> Option<&'a Target> {
    let target = target?;
    let reason = match frontend.address {
        Some(ip) if Family::of(&ip) != family => format!("{ip} is no {family} address"),
        _ if frontend.port == 0 || target.port == 0 => "port 0 cannot be called".to_owned(),
        _ => return Some(target),
    };
    report.failed.push((*frontend, reason));
    None
}

fn entry(table: Table, rule: Rule) -> Entry {
    Entry {
        table,
        chain: CHAIN.to_owned(),
        rule,
    }
}

impl Applied {
    /// Returns what is to be in force for all that is desired. What cannot be is in
    /// the `report`.
    pub fn of(desired: &Desired, environment: Environment, report: &mut Report) -> Applied {
        let mut applied = Applied::default();
        let family = environment.family;
        for (frontend, target) in desired.iter().filter(|(f, _)| f.family == family) {
            if let Some(target) = possible(frontend, Some(target), family, report) {
                applied.listeners.add(listener(frontend, target));
                applied.targets.insert(*frontend, target.clone());
            }
        }
        applied.environment = Some(environment);
        applied
    }

    /// Returns where the rules of `frontend` lead; `None` if it has none.
    pub fn listener(&self, frontend: &Frontend) -> Option<Listener> {
        let target = self.targets.get(frontend)?;
        Some(listener(frontend, target))
    }

    /// Returns the address that nat rules lead to; `None`: REDIRECT.
    pub fn destination(&self) -> Option<IpAddr> {
        self.environment.as_ref()?.destination
    }

    /// Returns the rules of `frontend`.
    pub fn rules(&self, frontend: &Frontend) -> Vec<Rule> {
        match (&self.environment, self.targets.get(frontend)) {
            (Some(environment), Some(target)) => plan::nat(frontend, target, environment),
            _ => Vec::new(),
        }
    }

    /// Returns the frontends that have rules.
    pub fn frontends(&self) -> impl Iterator<Item = Frontend> {
        self.targets.keys().copied()
    }

    /// Returns the frontends that have other rules than `before`.
    pub fn changed_since(&self, before: &Applied) -> BTreeSet<Frontend> {
        let both = self.targets.keys().chain(before.targets.keys());
        let alike = self.environment == before.environment;
        let changed = both.filter(|frontend| {
            let targets = [self, before].map(|one| one.targets.get(*frontend));
            let same = alike && targets[0] == targets[1];
            !same && self.rules(frontend) != before.rules(frontend)
        });
        changed.copied().collect()
    }

    /// Returns all that is to be in the tables: service addresses first.
    pub fn rule_set(&self) -> RuleSet {
        let Some(environment) = &self.environment else {
            return RuleSet::default();
        };
        let (node_ports, services): (Vec<_>, Vec<_>) = self
            .targets
            .iter()
            .partition(|(frontend, _)| frontend.address.is_none());
        let all = services.into_iter().chain(node_ports);
        let nat = all.flat_map(|(frontend, target)| plan::nat(frontend, target, environment));
        let listeners: BTreeSet<_> = self.listeners.iter().copied().collect();
        let guards = listeners.into_iter();
        let guards = guards.map(|listener| plan::guard(listener, &environment.features));
        plan::rule_set(nat.collect(), guards.collect(), environment)
    }

    /// Becomes what is desired of `changed`, and returns the difference.
    pub fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        report: &mut Report,
    ) -> Difference {
        let mut difference = Difference::default();
        let Some(environment) = self.environment.clone() else {
            return difference;
        };
        // Whether each listener was in use before.
        let mut before = BTreeMap::new();
        let family = environment.family;
        let changed: BTreeSet<_> = changed.iter().filter(|f| f.family == family).collect();
        for frontend in changed {
            let old = self.rules(frontend);
            let replaced = self.targets.remove(frontend);
            if let Some(target) = &replaced {
                let listener = listener(frontend, target);
                before.entry(listener).or_insert(true);
                self.listeners.release(&listener);
            }
            if let Some(target) = possible(frontend, desired.get(frontend), family, report) {
                let listener = listener(frontend, target);
                let in_use = self.listeners.contains(&listener);
                before.entry(listener).or_insert(in_use);
                self.listeners.add(listener);
                self.targets.insert(*frontend, target.clone());
            }
            let new = self.rules(frontend);
            if old != new {
                difference.frontends.push(*frontend);
                let old = old.into_iter().map(|rule| entry(Table::Nat, rule));
                let removed = old.map(|entry| Op::remove(&entry, family));
                difference.ops.extend(removed);
                let add = match frontend.address {
                    Some(_) => Action::Insert,
                    None => Action::Append,
                };
                let new = new.into_iter().map(|rule| entry(Table::Nat, rule));
                difference.ops.extend(new.map(|entry| Op::of(&entry, add)));
            }
        }
        if environment.features.contains(Extension::Conntrack) {
            for (listener, was_in_use) in before {
                let guard = plan::guard(listener, &environment.features);
                let guard = entry(Table::Filter, guard);
                match (was_in_use, self.listeners.contains(&listener)) {
                    (false, true) => difference.ops.push(Op::of(&guard, Action::Append)),
                    (true, false) => difference.ops.push(Op::remove(&guard, family)),
                    _ => {}
                }
            }
        }
        difference
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        kernel::xtables::{
            difference::Comparison,
            features::Features,
            observed::Observed,
            rule::{Match, Negatable, Side},
            transaction::Transaction,
        },
        net::Protocol,
    };

    fn environment() -> Environment {
        let local = Match::LocalAddress(Negatable::Is(Side::Destination));
        Environment {
            family: Family::V4,
            features: Features::ALL,
            destination: None,
            node: vec![Rule::new().with(local)],
        }
    }

    fn frontend() -> impl Strategy<Value = Frontend> {
        (any::<bool>(), prop::option::of(1u8..4), 1u16..4).prop_map(|(tcp, address, port)| {
            Frontend {
                protocol: if tcp { Protocol::Tcp } else { Protocol::Udp },
                family: Family::V4,
                address: address.map(|last| IpAddr::from([10, 96, 0, last])),
                port,
            }
        })
    }

    fn target() -> impl Strategy<Value = Option<Target>> {
        prop::option::of((40_000u16..40_003).prop_map(Target::at))
    }

    /// The chains as `iptables-restore` would leave them.
    #[derive(Default)]
    struct Chains {
        nat: Vec<String>,
        filter: Vec<String>,
    }

    impl Chains {
        fn run(&mut self, ops: Vec<Op>) {
            let transaction = Transaction::common(Family::V4, ops);
            let mut table = &mut self.nat;
            for line in transaction.to_string().lines() {
                let after = |command: &str| {
                    line.strip_prefix(&format!("{command} {CHAIN} "))
                        .map(str::to_owned)
                };
                if line == "*nat" {
                    table = &mut self.nat;
                } else if line == "*filter" {
                    table = &mut self.filter;
                } else if line.starts_with(&format!(":{CHAIN} ")) {
                    table.clear();
                } else if let Some(rule) = after("-A") {
                    table.push(rule);
                } else if let Some(rule) = after("-I") {
                    table.insert(0, rule);
                } else if let Some(rule) = after("-D") {
                    let at = table.iter().position(|r| *r == rule);
                    table.remove(at.expect("only what is there is deleted"));
                } else {
                    assert!(line == "COMMIT" || line.starts_with("-I "), "{line}");
                }
            }
        }
    }

    /// The steps that make empty tables hold what is desired.
    fn whole(applied: &Applied) -> Vec<Op> {
        let nothing = Observed::new(plan::interest);
        Comparison::begin(nothing, &applied.rule_set(), Family::V4).1
    }

    proptest! {
        /// Step by step or at once: the same rules, service addresses first.
        #[test]
        fn differences_add_up(
            steps in prop::collection::vec(prop::collection::vec((frontend(), target()), 1..6), 1..8),
        ) {
            let (mut desired, mut report) = (Desired::new(), Report::default());
            let mut applied = Applied::of(&desired, environment(), &mut report);
            let mut chains = Chains::default();
            chains.run(whole(&applied));
            for step in steps {
                let changed: Vec<_> = step.iter().map(|(frontend, _)| *frontend).collect();
                for (frontend, target) in step {
                    match target {
                        Some(target) => desired.insert(frontend, target),
                        None => desired.remove(&frontend),
                    };
                }
                let difference = applied.update(&desired, &changed, &mut report);
                chains.run(difference.ops);
                let at_once = Applied::of(&desired, environment(), &mut report);
                prop_assert!(applied.changed_since(&at_once).is_empty());
                let mut expected = Chains::default();
                expected.run(whole(&at_once));
                let node_port = |rule: &String| rule.contains("addrtype");
                prop_assert!(chains.nat.is_sorted_by_key(node_port), "{:#?}", chains.nat);
                prop_assert!(chains.filter[0].contains("--ctstate DNAT"));
                for (mut one, mut other) in
                    [(chains.nat.clone(), expected.nat), (chains.filter.clone(), expected.filter)]
                {
                    one.sort();
                    other.sort();
                    prop_assert_eq!(one, other);
                }
            }
            prop_assert_eq!(report.failed, vec![]);
        }
    }
}
