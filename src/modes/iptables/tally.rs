//! Counting rules by table, for the metrics.

use super::counters::{COUNTED, Rules};
use crate::kernel::xtables::{
    desired::{OwnerRules, RuleSet},
    rule::Table,
    transaction::Op,
};

fn place(table: Table) -> Option<usize> {
    COUNTED.iter().position(|counted| *counted == table)
}

/// What a sync did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// ServicePorts that were planned.
    pub examined: usize,
    /// Rules that there are.
    pub total: Rules,
    /// Rules that were written.
    pub written: Rules,
    /// Transactions that this took.
    pub transactions: u32,
    /// The kernel was read, and so is known to be right.
    pub read: bool,
}

/// Those of a ServicePort.
pub fn count(rules: &OwnerRules) -> Rules {
    let chains = rules
        .chains
        .iter()
        .map(|chain| (chain.table, chain.rules.len()));
    let entries = rules.entries.iter().map(|entry| (entry.table, 1));
    sum(chains.chain(entries))
}

/// Those that do not depend on Services.
pub fn fixed_rules(fixed: &RuleSet) -> Rules {
    let chains = fixed.chains.iter();
    sum(chains.map(|chain| (chain.table, chain.contents.rules().len())))
}

/// Those that the steps write.
pub fn written<'a>(ops: impl IntoIterator<Item = &'a Op>) -> Rules {
    sum(ops.into_iter().map(|op| match op {
        Op::Fill(chain) => (chain.table, chain.rules.len()),
        Op::Insert(entry) | Op::Raise(entry) | Op::Append(entry) => (entry.table, 1),
        Op::Remove { table, .. } | Op::Delete { table, .. } => (*table, 0),
    }))
}

fn sum(counts: impl Iterator<Item = (Table, usize)>) -> Rules {
    let mut rules = Rules::default();
    for (table, count) in counts {
        if let Some(sum) = place(table).and_then(|at| rules.get_mut(at)) {
            *sum += count;
        }
    }
    rules
}

/// Adds `rules` to what was counted, `sign` times.
pub fn add(to: &mut Rules, rules: Rules, sign: isize) {
    for (to, rules) in to.iter_mut().zip(rules) {
        *to = to.saturating_add_signed(sign * rules as isize);
    }
}
