//! A change of rules as a value, which prints as input of `iptables-restore`.

use std::fmt::{self, Write};

use hashbrown::HashSet;

use super::{
    desired::{Chain, Entry},
    rule::{BASE_CHAINS, Table},
    words::Words,
};
use crate::net::Family;

/// What can be done to a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// The chain is there and holds these rules only.
    Fill(Chain),
    /// The rule comes to the top of its chain.
    Insert(Entry),
    /// The rule, which is there, comes to the top of its chain.
    Raise(Entry),
    /// The rule comes to the end of its chain.
    Append(Entry),
    /// The first rule of these words goes.
    Remove {
        /// Table of the chain.
        table: Table,
        /// The chain that has it.
        chain: String,
        /// The rule, as it was printed or would be.
        words: Words,
    },
    /// The chain goes with its rules; nothing leads to it any more.
    Delete {
        /// The table that the chain is in.
        table: Table,
        /// The chain's name.
        chain: String,
    },
}

/// When a step is due.
///
/// No client may get through that must not: rules that keep something out come
/// to table filter first, then nat leads packets to endpoints or stops doing so,
/// and last go the filter rules for what nat no longer leads anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Filters and marks come.
    Close,
    /// Table nat changes.
    Carry,
    /// Filters and marks go.
    Open,
}

impl Phase {
    /// In their order.
    pub const ALL: [Phase; 3] = [Phase::Close, Phase::Carry, Phase::Open];
}

/// Steps that take effect together in each phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<O> {
    /// Whose they are; `None`: everybody's.
    pub owner: Option<O>,
    /// The steps, in any order: a transaction puts them in a safe one.
    pub ops: Vec<Op>,
}

/// What a chain weighs, in rules.
pub(super) const CHAIN: usize = 4;

impl<O> Group<O> {
    /// A group that is everybody's.
    pub fn common(ops: Vec<Op>) -> Group<O> {
        Group { owner: None, ops }
    }

    /// A group of `owner`'s.
    pub fn of(owner: O, ops: Vec<Op>) -> Group<O> {
        let owner = Some(owner);
        Group { owner, ops }
    }

    /// Returns how much work it is, in rules.
    pub fn weight(&self) -> usize {
        let of = |op: &Op| match op {
            Op::Fill(_) | Op::Delete { .. } => CHAIN,
            _ => 1,
        };
        self.ops.iter().map(of).sum()
    }
}

impl Op {
    /// Returns the step that takes a rule of `family` away.
    pub fn remove(entry: &Entry, family: Family) -> Op {
        Op::Remove {
            table: entry.table,
            chain: entry.chain.clone(),
            words: Words::of(&entry.rule, family),
        }
    }

    /// Returns the table that it changes.
    pub fn table(&self) -> Table {
        match self {
            Op::Fill(chain) => chain.table,
            Op::Insert(entry) | Op::Raise(entry) | Op::Append(entry) => entry.table,
            Op::Remove { table, .. } | Op::Delete { table, .. } => *table,
        }
    }

    /// Returns the chain that it changes.
    pub fn chain(&self) -> &str {
        match self {
            Op::Fill(chain) => &chain.name,
            Op::Insert(entry) | Op::Raise(entry) | Op::Append(entry) => &entry.chain,
            Op::Remove { chain, .. } | Op::Delete { chain, .. } => chain,
        }
    }

    /// Returns when it is due.
    pub fn phase(&self) -> Phase {
        let takes = matches!(self, Op::Remove { .. } | Op::Delete { .. });
        match self.table() {
            Table::Nat => Phase::Carry,
            _ if takes => Phase::Open,
            _ => Phase::Close,
        }
    }
}

/// A change of one family's rules. Displays as input of `iptables-restore
/// --noflush` that makes it in one run, phase by phase and table by table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction<O> {
    /// The family of all rules in it.
    pub family: Family,
    /// The steps, by owner.
    pub groups: Vec<Group<O>>,
}

impl Transaction<()> {
    /// Returns the change that these steps make, which are everybody's.
    pub fn common(family: Family, ops: Vec<Op>) -> Transaction<()> {
        let groups = vec![Group::common(ops)];
        Transaction { family, groups }
    }
}

impl<O> Transaction<O> {
    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(|group| group.ops.is_empty())
    }

    /// Returns the steps that are due in `phase`, as input of `iptables-restore`;
    /// empty if there are none.
    pub fn text(&self, phase: Phase) -> String {
        text(&self.groups, phase, self.family)
    }

    /// Returns what had not been as it was to be: chains, and jumps from the
    /// kernel's chains that were not there or not in their place.
    pub fn repaired(&self) -> Vec<String> {
        let mut repaired = Vec::new();
        for op in self.groups.iter().flat_map(|group| &group.ops) {
            let (table, chain) = (op.table(), op.chain());
            let what = match op {
                Op::Remove { .. } | Op::Delete { .. } => continue,
                _ if BASE_CHAINS.contains(&chain) => format!("jump from {chain} of {table}"),
                _ => format!("chain {chain} of {table}"),
            };
            if !repaired.contains(&what) {
                repaired.push(what);
            }
        }
        repaired
    }
}

impl<O> fmt::Display for Transaction<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut phases = Phase::ALL.into_iter();
        phases.try_for_each(|phase| f.write_str(&self.text(phase)))
    }
}

/// Returns the steps of `groups` that are due in `phase`, as one transaction of
/// the kernel's for each table; empty if there are none.
pub(super) fn text<O>(groups: &[Group<O>], phase: Phase, family: Family) -> String {
    let mut out = String::new();
    for table in Table::ALL {
        let due = || {
            let ops = groups.iter().flat_map(|group| &group.ops);
            ops.filter(move |op| op.phase() == phase && op.table() == table)
        };
        if due().next().is_some() {
            // Writing into a String does not fail.
            let _ = section(&mut out, table, due, family);
        }
    }
    out
}

/// Chains are declared, and so emptied, before rules lead to them; what goes
/// makes room before what comes, as both may be the same rule in another place.
fn section<'a, I>(
    out: &mut String,
    table: Table,
    due: impl Fn() -> I,
    family: Family,
) -> fmt::Result
where
    I: Iterator<Item = &'a Op>,
{
    writeln!(out, "*{table}")?;
    let mut emptied = HashSet::new();
    for op in due() {
        if let Op::Fill(Chain { name, .. }) | Op::Delete { chain: name, .. } = op {
            writeln!(out, ":{name} - [0:0]")?;
            if matches!(op, Op::Delete { .. }) {
                emptied.insert(name.as_str());
            }
        }
    }
    for op in due() {
        if let Op::Fill(Chain { name, rules, .. }) = op {
            for rule in rules {
                writeln!(out, "-A {name} {}", rule.words(family))?;
            }
        }
    }
    for op in due() {
        match op {
            // A rule that went with its chain's contents cannot go again: the
            // kernel would refuse the whole transaction.
            Op::Remove { chain, words, .. } if !emptied.contains(chain.as_str()) => {
                writeln!(out, "-D {chain} {words}")?;
            }
            Op::Raise(Entry { chain, rule, .. }) => {
                writeln!(out, "-D {chain} {}", rule.words(family))?;
            }
            _ => {}
        }
    }
    for op in due() {
        if let Op::Insert(Entry { chain, rule, .. }) | Op::Raise(Entry { chain, rule, .. }) = op {
            writeln!(out, "-I {chain} {}", rule.words(family))?;
        }
    }
    for op in due() {
        if let Op::Append(Entry { chain, rule, .. }) = op {
            writeln!(out, "-A {chain} {}", rule.words(family))?;
        }
    }
    for op in due() {
        if let Op::Delete { chain, .. } = op {
            writeln!(out, "-X {chain}")?;
        }
    }
    out.push_str("COMMIT\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain that goes is emptied first. To delete one of its rules as well makes
    /// the kernel refuse the transaction, and with it everything is compared.
    #[test]
    fn no_rule_goes_twice() {
        let rule = |chain: &str| Op::Remove {
            table: Table::Filter,
            chain: chain.to_owned(),
            words: Words::new("-j DROP"),
        };
        let gone = Op::Delete {
            table: Table::Filter,
            chain: "KUBE-SVC-IDX-A".to_owned(),
        };
        let transaction: Transaction<()> = Transaction {
            family: Family::V4,
            groups: vec![
                Group::common(vec![rule("KUBE-SVC-IDX-A")]),
                Group::common(vec![rule("KUBE-SERVICES"), gone]),
            ],
        };
        let text = "*filter\n:KUBE-SVC-IDX-A - [0:0]\n-D KUBE-SERVICES -j DROP\n\
                    -X KUBE-SVC-IDX-A\nCOMMIT\n";
        assert_eq!(transaction.text(Phase::Open), text);
        assert_eq!(transaction.to_string(), text);
        assert_eq!(transaction.repaired(), [""; 0]);
    }
}
