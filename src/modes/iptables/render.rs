//! The whole plan as text that iptables-restore reads.

use std::{
    collections::HashSet,
    fmt::{self, Write},
};

use net::Family;
use xtables::{
    desired::{Chain, Contents, Entry, FixedChain, RuleSet},
    transaction::{Action, Op, Transaction},
};

use super::{
    applied::Size,
    plan::{self, Options},
};
use crate::{modes::render::choices::Choices, services::ServiceMap};

/// Writes one input for each family's program, each after a line that names the program, and lines
/// for the objects that must exist before.
///
/// # Errors
/// Only those of `out`.
pub fn render(map: &ServiceMap, choices: &Choices<'_>, out: &mut impl Write) -> fmt::Result {
    for family in Family::ALL {
        let options = Options::new(
            choices.configuration,
            choices.effective,
            family,
            map.this_node(),
            choices.served,
            choices.kernel.features(family),
        );
        let options = options.of_size(Size::of(map, family), choices.dispatch, None);
        let program = xtables::program_prefix(family);
        writeln!(out, "# {program}-restore --noflush")?;
        for account in plan::accounts(&options) {
            writeln!(out, "# needs: nfacct add {account}")?;
        }
        write_rules(map, &options, out)?;
    }
    Ok(())
}

/// Writes the rules for the ServicePorts of the options' family, all tables. Chains of the kernel's
/// own are not declared: with `--noflush` the input leaves alone the rules in them, and only adds
/// its jumps.
pub(super) fn write_rules(
    map: &ServiceMap,
    options: &Options,
    out: &mut impl Write,
) -> fmt::Result {
    let family = options.family;
    let ports = map.sorted().into_iter();
    let ports = ports.filter(|port| port.name.family == family);
    // Chains are declared without their rules, so that these come after all chains.
    let declared = |table, chain: &str| Op::new(table, chain, Action::Fill(Vec::new()));
    let append = |entry: &Entry| Op::of(entry, Action::Append);
    let mut ops = Vec::new();
    let mut closing = Vec::new();
    let RuleSet { chains, jumps } = plan::fixed(options);
    for FixedChain {
        table,
        name,
        contents,
    } in &chains
    {
        ops.push(declared(*table, name));
        let rules = contents.rules().iter().cloned();
        let rules = rules.map(|rule| Op::new(*table, &**name, Action::Append(rule)));
        match contents {
            Contents::Shared { .. } => closing.extend(rules),
            _ => ops.extend(rules),
        }
    }
    let jumps = jumps.into_iter();
    ops.extend(jumps.map(|jump| Op::new(jump.table, jump.from, Action::Append(jump.rule))));
    let mut reached = HashSet::new();
    for port in ports {
        let rules = plan::plan(port, options);
        for Chain { table, name, rules } in rules.chains {
            ops.push(declared(table, &name));
            let rules = rules.into_iter();
            ops.extend(rules.map(|rule| Op::new(table, &name, Action::Append(rule))));
        }
        for step in &rules.steps {
            let to = step.rule.leads_to().unwrap_or_default().to_owned();
            if reached.insert((step.table, to.clone())) {
                ops.extend([declared(step.table, &to), append(step)]);
            }
        }
        ops.extend(rules.entries.iter().map(append));
    }
    ops.extend(closing);
    ops.sort_by(|a, b| a.chain.cmp(&b.chain));
    write!(out, "{}", Transaction::common(family, ops))
}
