//! The whole plan as text that iptables-restore reads.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::{self, Write},
};

use super::plan::{self, Options};
use crate::{
    kernel::xtables::{
        desired::{Chain, Contents, OwnerRules, RuleSet},
        rule::{Rule, Table},
    },
    net::Family,
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
    let mut text = Text {
        family,
        tables: Default::default(),
    };
    let RuleSet { chains, jumps } = plan::fixed(options).rules;
    for chain in &chains {
        text.declare(chain.table, &chain.name);
        if !matches!(chain.contents, Contents::Shared { .. }) {
            text.rules(chain.table, &chain.name, chain.contents.rules());
        }
    }
    for jump in jumps {
        text.rule(jump.table, jump.from, &jump.rule);
    }
    let mut reached = HashSet::new();
    for port in ports {
        let OwnerRules {
            chains,
            entries,
            steps,
        } = plan::service_port(port, options);
        for Chain { table, name, rules } in &chains {
            text.declare(*table, name);
            text.rules(*table, name, rules);
        }
        for step in steps {
            text.declare(step.table, &step.to);
            if reached.insert((step.table, step.to)) {
                text.rule(step.table, &step.chain, &step.rule);
            }
        }
        for entry in entries {
            text.rule(entry.table, &entry.chain, &entry.rule);
        }
    }
    for chain in &chains {
        if let Contents::Shared { closing } = &chain.contents {
            text.rules(chain.table, &chain.name, closing);
        }
    }
    text.write(out)
}

/// Lines by table and chain.
struct Text {
    family: Family,
    tables: BTreeMap<Table, Lines>,
}

#[derive(Default)]
struct Lines {
    declared: BTreeSet<String>,
    rules: BTreeMap<String, Vec<String>>,
}

impl Text {
    fn declare(&mut self, table: Table, chain: &str) {
        let lines = self.tables.entry(table).or_default();
        lines.declared.insert(chain.to_owned());
    }

    fn rules(&mut self, table: Table, chain: &str, rules: &[Rule]) {
        for rule in rules {
            self.rule(table, chain, rule);
        }
    }

    fn rule(&mut self, table: Table, chain: &str, rule: &Rule) {
        let line = format!("-A {chain} {}", rule.words(self.family));
        let rules = &mut self.tables.entry(table).or_default().rules;
        rules.entry(chain.to_owned()).or_default().push(line);
    }

    fn write(&self, out: &mut impl Write) -> fmt::Result {
        for (table, lines) in &self.tables {
            writeln!(out, "*{table}")?;
            for chain in &lines.declared {
                writeln!(out, ":{chain} - [0:0]")?;
            }
            for line in lines.rules.values().flatten() {
                writeln!(out, "{line}")?;
            }
            writeln!(out, "COMMIT")?;
        }
        Ok(())
    }
}
