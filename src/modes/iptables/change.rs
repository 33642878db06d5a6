//! The difference between rules, as steps and as input of `iptables-restore`.
//!
//! What one ServicePort needs changes as a [`Group`], in three phases, so that
//! nobody gets through who must not: table filter first learns what to keep
//! out, then nat leads packets to endpoints or stops doing so, then filter
//! forgets what nat no longer leads anywhere.

use std::fmt::Write;

use hashbrown::{HashMap, HashSet};

use super::plan::{Chain, Entry, ServiceRules};
use crate::{kernel::xtables::rule::Table, net::Family, services::ServicePortName};

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
        /// Its chain.
        chain: String,
        /// The rule as `iptables-save` prints it, without `-A CHAIN`.
        words: String,
    },
    /// The chain goes with its rules; nothing leads to it any more.
    Delete {
        /// Its table.
        table: Table,
        /// Its name.
        chain: String,
    },
}

/// When a step is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Filters and marks come.
    Close,
    /// nat changes.
    Carry,
    /// Filters go.
    Open,
}

impl Phase {
    /// In their order.
    pub const ALL: [Phase; 3] = [Phase::Close, Phase::Carry, Phase::Open];
}

/// Steps that take effect together in each phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Whose they are; `None`: everybody's.
    pub owner: Option<ServicePortName>,
    /// The steps.
    pub ops: Vec<Op>,
}

/// What a chain weighs, in rules.
pub const CHAIN: usize = 4;

impl Group {
    /// How much work it is, in rules.
    pub fn weight(&self) -> usize {
        let of = |op: &Op| match op {
            Op::Fill(_) | Op::Delete { .. } => CHAIN,
            _ => 1,
        };
        self.ops.iter().map(of).sum()
    }
}

impl Op {
    fn table(&self) -> Table {
        match self {
            Op::Fill(chain) => chain.table,
            Op::Insert(entry) | Op::Raise(entry) | Op::Append(entry) => entry.table,
            Op::Remove { table, .. } | Op::Delete { table, .. } => *table,
        }
    }

    /// When it is due.
    pub fn phase(&self) -> Phase {
        let takes = matches!(self, Op::Remove { .. } | Op::Delete { .. });
        match self.table() {
            Table::Nat => Phase::Carry,
            _ if takes => Phase::Open,
            _ => Phase::Close,
        }
    }
}

/// The steps from the rules that a ServicePort had to those it needs; index
/// steps are left out, as they are shared.
pub fn between(old: &ServiceRules, new: &ServiceRules, family: Family) -> Vec<Op> {
    let mut ops = Vec::new();
    let had: HashMap<_, _> = chains(old).collect();
    for chain in &new.chains {
        if had.get(&(chain.table, chain.name.as_str())) != Some(&chain) {
            ops.push(Op::Fill(chain.clone()));
        }
    }
    let needed: HashMap<_, _> = chains(new).collect();
    for chain in &old.chains {
        if !needed.contains_key(&(chain.table, chain.name.as_str())) {
            ops.push(Op::Delete {
                table: chain.table,
                chain: chain.name.clone(),
            });
        }
    }
    let (had, needed) = (by_chain(old), by_chain(new));
    for (at, entries) in &had {
        let kept = needed.get(at).map_or(&[][..], Vec::as_slice);
        // In nat, where the order of a ServicePort's rules matters, all of them
        // are exchanged. Those in filter stand in any order, and one that stays
        // must not be gone for a moment.
        let exchanged = at.0 == Table::Nat && kept != entries;
        for entry in entries.iter().filter(|e| exchanged || !kept.contains(e)) {
            ops.push(remove(entry, family));
        }
    }
    for (at, entries) in &needed {
        let present = had.get(at).map_or(&[][..], Vec::as_slice);
        let exchanged = at.0 == Table::Nat && present != entries;
        // Each goes to the top: the last first.
        for entry in entries.iter().rev() {
            if exchanged || !present.contains(entry) {
                ops.push(Op::Insert((*entry).clone()));
            }
        }
    }
    ops
}

/// The step that takes a rule of ours away.
pub fn remove(entry: &Entry, family: Family) -> Op {
    Op::Remove {
        table: entry.table,
        chain: entry.chain.clone(),
        words: entry.rule.words(family).to_string(),
    }
}

fn chains(rules: &ServiceRules) -> impl Iterator<Item = ((Table, &str), &Chain)> {
    let all = rules.chains.iter();
    all.map(|chain| ((chain.table, chain.name.as_str()), chain))
}

fn by_chain(rules: &ServiceRules) -> HashMap<(Table, &str), Vec<&Entry>> {
    let mut found = HashMap::<_, Vec<_>>::new();
    for entry in &rules.entries {
        let at = (entry.table, entry.chain.as_str());
        found.entry(at).or_default().push(entry);
    }
    found
}

/// The steps of `groups` that are due in `phase`, as one transaction a table;
/// empty if there are none.
pub fn text(groups: &[Group], phase: Phase, family: Family) -> String {
    let mut out = String::new();
    for table in Table::ALL {
        let due = || {
            let ops = groups.iter().flat_map(|group| &group.ops);
            ops.filter(move |op| op.phase() == phase && op.table() == table)
        };
        if due().next().is_some() {
            section(&mut out, table, due, family);
        }
    }
    out
}

/// Chains are declared, and so emptied, before rules lead to them; what goes
/// makes room before what comes, as both may be the same rule in another place.
fn section<'a, I>(out: &mut String, table: Table, due: impl Fn() -> I, family: Family)
where
    I: Iterator<Item = &'a Op>,
{
    // Writing into a String does not fail.
    let mut write = |line: std::fmt::Arguments<'_>| {
        let _ = out.write_fmt(line);
    };
    write(format_args!("*{table}\n"));
    for op in due() {
        if let Op::Fill(Chain { name, .. }) | Op::Delete { chain: name, .. } = op {
            write(format_args!(":{name} - [0:0]\n"));
        }
    }
    for op in due() {
        if let Op::Fill(chain) = op {
            for rule in &chain.rules {
                write(format_args!("-A {} {}\n", chain.name, rule.words(family)));
            }
        }
    }
    let emptied: HashSet<&str> = due()
        .filter_map(|op| match op {
            Op::Delete { chain, .. } => Some(chain.as_str()),
            _ => None,
        })
        .collect();
    for op in due() {
        match op {
            // A rule that went with its chain's contents cannot go again: the
            // kernel would refuse the whole transaction.
            Op::Remove { chain, words, .. } if !emptied.contains(chain.as_str()) => {
                write(format_args!("-D {chain} {words}\n"));
            }
            Op::Raise(entry) => {
                let Entry { chain, rule, .. } = entry;
                write(format_args!("-D {chain} {}\n", rule.words(family)));
            }
            _ => {}
        }
    }
    for op in due() {
        if let Op::Insert(entry) | Op::Raise(entry) = op {
            write(format_args!(
                "-I {} {}\n",
                entry.chain,
                entry.rule.words(family)
            ));
        }
    }
    for op in due() {
        if let Op::Append(entry) = op {
            write(format_args!(
                "-A {} {}\n",
                entry.chain,
                entry.rule.words(family)
            ));
        }
    }
    for op in due() {
        if let Op::Delete { chain, .. } = op {
            write(format_args!("-X {chain}\n"));
        }
    }
    write(format_args!("COMMIT\n"));
}
