//! The whole plan as text that iptables-restore reads.

use std::{
    collections::HashSet,
    fmt::{self, Write},
};

use super::plan::{self, Options};
use crate::{
    kernel::xtables::{
        desired::{Chain, Contents, Entry, OwnerRules, RuleSet},
        rule::{Rule, Table},
        transaction::{Op, Transaction},
    },
    services::ServiceMap,
};

/// Writes the rules for the ServicePorts of the options' family, all tables.
/// Chains of the kernel's own are not declared: with `--noflush` the input
/// leaves alone what is in them, and only adds its jumps.
///
/// # Errors
/// Only those of `out`.
pub fn render(map: &ServiceMap, options: &Options, out: &mut impl Write) -> fmt::Result {
    let family = options.family;
    let ports = map.iter().filter(|port| port.name.family == family);
    let mut ports: Vec<_> = ports.collect();
    ports.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = Text::default();
    let RuleSet { chains, jumps } = plan::fixed(options).rules;
    for chain in &chains {
        text.declare(chain.table, &chain.name);
        if !matches!(chain.contents, Contents::Shared { .. }) {
            text.rules(chain.table, &chain.name, chain.contents.rules().to_vec());
        }
    }
    for jump in jumps {
        text.rule(jump.table, jump.from, jump.rule);
    }
    let mut reached = HashSet::new();
    for port in ports {
        let OwnerRules {
            chains,
            entries,
            steps,
        } = plan::service_port(port, options);
        for Chain { table, name, rules } in chains {
            text.declare(table, &name);
            text.rules(table, &name, rules);
        }
        for step in steps {
            if reached.insert((step.table, step.to.clone())) {
                text.declare(step.table, &step.to);
                text.rule(step.table, &step.chain, step.rule);
            }
        }
        for entry in entries {
            text.rule(entry.table, &entry.chain, entry.rule);
        }
    }
    for chain in &chains {
        if let Contents::Shared { closing } = &chain.contents {
            text.rules(chain.table, &chain.name, closing.clone());
        }
    }
    text.0.sort_by(|a, b| a.chain().cmp(b.chain()));
    write!(out, "{}", Transaction::common(family, text.0))
}

/// What is to be written: chains without their rules, so that these come after all
/// chains.
#[derive(Default)]
struct Text(Vec<Op>);

impl Text {
    fn declare(&mut self, table: Table, chain: &str) {
        self.0.push(Op::Fill(Chain {
            table,
            name: chain.to_owned(),
            rules: Vec::new(),
        }));
    }

    fn rules(&mut self, table: Table, chain: &str, rules: Vec<Rule>) {
        for rule in rules {
            self.rule(table, chain, rule);
        }
    }

    fn rule(&mut self, table: Table, chain: &str, rule: Rule) {
        let chain = chain.to_owned();
        self.0.push(Op::Append(Entry { table, chain, rule }));
    }
}
