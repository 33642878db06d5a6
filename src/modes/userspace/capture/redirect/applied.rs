//! What is in force in one family, and the difference to what is wanted. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::{self, Delta, Environment, Features, Jumps, Listener};
use crate::{
    modes::userspace::capture::{Desired, Frontend, Report, Target},
    net::Family,
};

/// The rules of one family, as they were last written.
#[derive(Debug)]
pub struct Applied {
    family: Family,
    /// The nat rules of each frontend, word for word, and the listener they
    /// lead to. A rule can only be deleted in the words it was added in.
    frontends: BTreeMap<Frontend, (Vec<String>, Listener)>,
    /// How many frontends lead to a listener.
    listeners: BTreeMap<Listener, usize>,
}

impl Applied {
    /// Returns a record of nothing.
    pub fn new(family: Family) -> Applied {
        Applied {
            family,
            frontends: BTreeMap::new(),
            listeners: BTreeMap::new(),
        }
    }

    /// Returns the nat rules of `frontend` and its listener; none, and a word in the
    /// report, if it cannot be captured.
    fn rules(
        &self,
        frontend: &Frontend,
        target: &Target,
        environment: &Environment,
        report: &mut Report,
    ) -> Option<(Vec<String>, Listener)> {
        let reason = match frontend.address {
            Some(ip) if Family::of(&ip) != self.family => {
                format!("{ip} is no {} address", self.family)
            }
            _ if frontend.port == 0 || target.port == 0 => "port 0 cannot be called".to_owned(),
            _ => {
                let listener = (frontend.protocol, target.port);
                return Some((plan::nat(frontend, target, environment), listener));
            }
        };
        report.failed.push((*frontend, reason));
        None
    }

    fn users(&self, listener: &Listener) -> usize {
        self.listeners.get(listener).copied().unwrap_or(0)
    }

    /// Returns where the rules of `frontend` lead; `None` if it has none.
    pub fn listener(&self, frontend: &Frontend) -> Option<Listener> {
        self.frontends.get(frontend).map(|(_, listener)| *listener)
    }

    /// Becomes what is wanted. Answers with the frontends whose rules differ.
    pub fn replace(
        &mut self,
        desired: &Desired,
        environment: &Environment,
        report: &mut Report,
    ) -> BTreeSet<Frontend> {
        let before = std::mem::take(&mut self.frontends);
        self.listeners.clear();
        for (frontend, target) in desired.iter().filter(|(f, _)| f.family == self.family) {
            if let Some((rules, listener)) = self.rules(frontend, target, environment, report) {
                self.frontends.insert(*frontend, (rules, listener));
                *self.listeners.entry(listener).or_default() += 1;
            }
        }
        let (before, after) = (&before, &self.frontends);
        let both = before.keys().chain(after.keys());
        both.filter(|f| before.get(f) != after.get(f))
            .copied()
            .collect()
    }

    /// Batch text that makes our chains hold exactly this.
    pub fn batch(&self, features: &Features, jumps: &Jumps) -> String {
        let rules = |node_ports: bool| {
            self.frontends
                .iter()
                .filter(move |(frontend, _)| frontend.address.is_none() == node_ports)
                .flat_map(|(_, (rules, _))| rules)
        };
        plan::full(
            rules(false).chain(rules(true)),
            self.listeners.keys(),
            features,
            jumps,
        )
    }

    /// Becomes what is wanted of `changed`, and says what differs.
    pub fn update(
        &mut self,
        desired: &Desired,
        changed: &[Frontend],
        environment: &Environment,
        report: &mut Report,
    ) -> Delta {
        let mut delta = Delta::default();
        let mut touched = BTreeMap::new();
        let changed: BTreeSet<_> = changed.iter().filter(|f| f.family == self.family).collect();
        for frontend in changed {
            let target = desired.get(frontend);
            let after = target.and_then(|t| self.rules(frontend, t, environment, report));
            let before = self.frontends.remove(frontend);
            for (_, listener) in before.iter().chain(&after) {
                touched.entry(*listener).or_insert(self.users(listener));
            }
            if let Some((_, listener)) = &before
                && let Some(users) = self.listeners.get_mut(listener)
            {
                *users = users.saturating_sub(1);
            }
            if let Some((rules, listener)) = &after {
                *self.listeners.entry(*listener).or_default() += 1;
                self.frontends.insert(*frontend, (rules.clone(), *listener));
            }
            if before != after {
                delta.frontends.push(*frontend);
                let node_port = frontend.address.is_none();
                let add = after.into_iter().flat_map(|(rules, _)| rules);
                delta.add.extend(add.map(|rule| (node_port, rule)));
                let delete = before.into_iter().flat_map(|(rules, _)| rules);
                delta.delete.extend(delete);
            }
        }
        for (listener, before) in touched {
            match (before, self.users(&listener)) {
                (0, 1..) => delta.guard.push(listener),
                (before, 0) => {
                    self.listeners.remove(&listener);
                    if before > 0 {
                        delta.unguard.push(listener);
                    }
                }
                _ => {}
            }
        }
        delta
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, sync::Arc};

    use proptest::prelude::*;

    use super::*;
    use crate::{modes::userspace::capture::OtherPorts, net::Protocol};

    fn environment() -> Environment {
        Environment {
            features: Features {
                comment: true,
                addrtype: true,
                dnat: true,
                guard: true,
                reject: true,
            },
            destination: None,
            node: vec!["-m addrtype --dst-type LOCAL ".to_owned()],
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
        prop::option::of((40_000u16..40_003).prop_map(|port| Target {
            port,
            name: Arc::from("default/web:http"),
            other_ports: OtherPorts::Refuse,
        }))
    }

    /// The chains as `iptables-restore` would leave them.
    #[derive(Default)]
    struct Chains {
        nat: Vec<String>,
        filter: Vec<String>,
    }

    impl Chains {
        fn restore(&mut self, batch: &str) {
            let mut table = &mut self.nat;
            for line in batch.lines() {
                let declared = format!(":{} ", plan::CHAIN);
                let after = |command: &str| {
                    line.strip_prefix(&format!("{command} {}", plan::CHAIN))
                        .map(|rule| rule.trim_start_matches(" 1").trim().to_owned())
                };
                if line == "*nat" {
                    table = &mut self.nat;
                } else if line == "*filter" {
                    table = &mut self.filter;
                } else if line.starts_with(&declared) {
                    table.clear();
                } else if let Some(rule) = after("-A") {
                    table.push(rule);
                } else if let Some(rule) = after("-I") {
                    table.insert(0, rule);
                } else if let Some(rule) = after("-D") {
                    let at = table.iter().position(|r| *r == rule);
                    table.remove(at.expect("only what is there is deleted"));
                } else {
                    assert_eq!(line, "COMMIT");
                }
            }
        }
    }

    proptest! {
        /// Step by step or at once: the same rules, service addresses first.
        #[test]
        fn differences_add_up(
            steps in prop::collection::vec(prop::collection::vec((frontend(), target()), 1..6), 1..8),
        ) {
            let (environment, mut desired, mut report) = (environment(), Desired::new(), Report::default());
            let mut applied = Applied::new(Family::V4);
            let mut chains = Chains::default();
            chains.restore(&applied.batch(&environment.features, &Jumps::default()));
            for step in steps {
                let changed: Vec<_> = step.iter().map(|(frontend, _)| *frontend).collect();
                for (frontend, target) in step {
                    match target {
                        Some(target) => desired.insert(frontend, target),
                        None => desired.remove(&frontend),
                    };
                }
                let delta = applied.update(&desired, &changed, &environment, &mut report);
                chains.restore(&delta.batch(&environment.features));
                let mut whole = Applied::new(Family::V4);
                whole.replace(&desired, &environment, &mut report);
                let mut expected = Chains::default();
                expected.restore(&whole.batch(&environment.features, &Jumps::default()));
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
