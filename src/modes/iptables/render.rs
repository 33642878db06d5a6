//! The whole plan as text that iptables-restore reads.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt::{self, Write},
};

use super::plan::{self, Chain, Fixed, Options, ServiceRules};
use crate::{
    kernel::xtables::rule::{Rule, Table},
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
    let Fixed {
        chains,
        jumps,
        tails,
        ..
    } = plan::fixed(options);
    text.chains(chains);
    for jump in jumps {
        text.rule(jump.table, jump.from, &jump.rule);
    }
    let mut reached = HashSet::new();
    for port in ports {
        let ServiceRules {
            chains,
            entries,
            steps,
        } = plan::service_port(port, options);
        text.chains(chains);
        for step in steps {
            text.tables.entry(step.table).or_default().declare(&step.to);
            if reached.insert((step.table, step.to)) {
                text.rule(step.table, &step.chain, &step.rule);
            }
        }
        for entry in entries {
            text.rule(entry.table, &entry.chain, &entry.rule);
        }
    }
    for tail in tails {
        text.rule(tail.table, &tail.chain, &tail.rule);
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
    fn chains(&mut self, chains: Vec<Chain>) {
        for chain in chains {
            self.tables
                .entry(chain.table)
                .or_default()
                .declare(&chain.name);
            for rule in &chain.rules {
                self.rule(chain.table, &chain.name, rule);
            }
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

impl Lines {
    fn declare(&mut self, chain: &str) {
        self.declared.insert(chain.to_owned());
    }
}
