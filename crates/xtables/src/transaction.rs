//! A change of rules as a value, which prints as input of `iptables-restore`.

use std::fmt::{self, Write};

use hashbrown::HashSet;
use net::Family;

use super::{
    desired::Entry,
    rule::{BASE_CHAINS, Rule, Table},
    words::Words,
};

/// One step of a change: an action on a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// The table that the chain is in.
    pub table: Table,
    /// The chain's name.
    pub chain: String,
    /// The change of the chain.
    pub action: Action,
}

/// A change of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The chain is made if it is not there, and then holds these rules only.
    Fill(Vec<Rule>),
    /// The same, but only after table nat has changed: the removed rules kept clients from the
    /// addresses that it translated to.
    FillLast(Vec<Rule>),
    /// The rule is added at the top.
    Insert(Rule),
    /// The rule, which is there this many times, is moved to the top, and is there once. Removing
    /// only the surplus ones would keep the last one, and so change the order.
    Raise(Rule, usize),
    /// The rule is added at the end.
    Append(Rule),
    /// The first rule of these words, as it was printed or would be, is removed.
    Remove(Words),
    /// It is deleted with its rules; no rule jumps to it any more.
    Delete,
}

/// When a step is due.
///
/// No client may get through that must not: rules that keep packets out are added to table filter
/// first, then nat begins or stops to translate packets to endpoints, and last the filter rules for
/// packets that nat no longer translates are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Filters and marks are added.
    Close,
    /// Table nat changes.
    Translate,
    /// Filters and marks are removed.
    Open,
}

impl Phase {
    /// All of them, in their order.
    pub const ALL: [Phase; 3] = [Phase::Close, Phase::Translate, Phase::Open];
}

/// Steps that take effect together in each phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<O> {
    /// Their owner; `None`: they have none.
    pub owner: Option<O>,
    /// The steps, in any order: a transaction puts them in a safe one.
    pub ops: Vec<Op>,
}

/// The least that a chain weighs, in rules.
pub const CHAIN: usize = 4;

impl<O> Group<O> {
    /// Returns a group without an owner.
    pub fn common(ops: Vec<Op>) -> Group<O> {
        Group { owner: None, ops }
    }

    /// Returns a group of `owner`'s.
    pub fn of(owner: O, ops: Vec<Op>) -> Group<O> {
        let owner = Some(owner);
        Group { owner, ops }
    }

    /// Returns how much work it is, in rules.
    pub fn weight(&self) -> usize {
        let of = |op: &Op| match &op.action {
            Action::Fill(rules) | Action::FillLast(rules) => CHAIN.max(rules.len()),
            Action::Delete => CHAIN,
            _ => 1,
        };
        self.ops.iter().map(of).sum()
    }
}

impl Op {
    /// Returns the step that does `action` to a chain.
    pub fn new(table: Table, chain: impl Into<String>, action: Action) -> Op {
        let chain = chain.into();
        Op {
            table,
            chain,
            action,
        }
    }

    /// The step for the rule of `entry` with this `action`.
    pub fn of(entry: &Entry, action: impl FnOnce(Rule) -> Action) -> Op {
        Op::new(entry.table, &entry.chain, action(entry.rule.clone()))
    }

    /// Returns true if the step replaces a rule of `family` that `goes` deletes: in the same chain,
    /// it matches the same packets, with another target.
    pub fn replaces(&self, goes: &Op, family: Family) -> bool {
        let (Action::Insert(rule), Action::Remove(words)) = (&self.action, &goes.action) else {
            return false;
        };
        let is_there = (self.table, &self.chain) == (goes.table, &goes.chain);
        is_there && Words::of(rule, family).matches_as(words)
    }

    /// Returns how many lines it takes, as input of the program.
    pub fn lines(&self) -> usize {
        match &self.action {
            Action::Fill(rules) | Action::FillLast(rules) => 1 + rules.len(),
            Action::Raise(_, times) => 1 + times,
            Action::Delete => 2,
            Action::Insert(_) | Action::Append(_) | Action::Remove(_) => 1,
        }
    }

    /// Returns when it is due.
    pub fn phase(&self) -> Phase {
        let takes = matches!(
            self.action,
            Action::FillLast(_) | Action::Remove(_) | Action::Delete
        );
        match self.table {
            Table::Nat => Phase::Translate,
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
    /// Returns the change that these steps make, which have no owner.
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

    /// Returns true if it deletes chains.
    pub fn deletes(&self) -> bool {
        let mut ops = self.groups.iter().flat_map(|group| &group.ops);
        ops.any(|op| op.action == Action::Delete)
    }

    /// Returns the same change except that chains which it deletes are left there, empty. Chains
    /// for which `is_empty` is true are skipped: a transaction that does nothing else has no
    /// effect, and the kernel does not count it.
    pub fn emptying(mut self, is_empty: impl Fn(Table, &str) -> bool) -> Transaction<O> {
        for group in &mut self.groups {
            let is_done = |op: &Op| op.action == Action::Delete && is_empty(op.table, &op.chain);
            group.ops.retain(|op| !is_done(op));
            for op in group.ops.iter_mut() {
                if op.action == Action::Delete {
                    op.action = Action::FillLast(Vec::new());
                }
            }
        }
        self
    }

    /// Returns the steps that are due in `phase`, as input of `iptables-restore`;
    /// empty if there are none.
    pub fn text(&self, phase: Phase) -> String {
        text(&self.groups, phase, self.family)
    }

    /// Names the objects that were not as they should have been: chains, and jumps from the
    /// kernel's chains that were missing or out of place.
    pub fn repaired(&self) -> Vec<String> {
        let mut repaired = Vec::new();
        for op in self.groups.iter().flat_map(|group| &group.ops) {
            let Op { table, chain, .. } = op;
            let what = match op.action {
                Action::Remove(_) | Action::Delete => continue,
                _ if BASE_CHAINS.contains(&chain.as_str()) => {
                    format!("jump from {chain} of {table}")
                }
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

/// Input for the program with the steps of `groups` that are due in `phase`: one kernel transaction
/// for each table; empty if there are none.
pub(super) fn text<O>(groups: &[Group<O>], phase: Phase, family: Family) -> String {
    let ops: Vec<&Op> = groups.iter().flat_map(|group| &group.ops).collect();
    text_of(&ops, phase, family)
}

/// As [`text`], of these steps.
pub(super) fn text_of(ops: &[&Op], phase: Phase, family: Family) -> String {
    let mut out = String::new();
    for table in Table::ALL {
        let due = || {
            let ops = ops.iter().copied();
            ops.filter(move |op| op.phase() == phase && op.table == table)
        };
        if due().next().is_some() {
            // Writing into a String does not fail.
            let _ = section(&mut out, table, due, family);
        }
    }
    out
}

/// Chains are declared, and so emptied, before rules jump to them; deletions come before additions,
/// as both may be the same rule in another place.
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
    for Op { chain, action, .. } in due() {
        if let Action::Fill(_) | Action::FillLast(_) | Action::Delete = action {
            writeln!(out, ":{chain} - [0:0]")?;
        }
        if *action == Action::Delete {
            emptied.insert(chain.as_str());
        }
    }
    for Op { chain, action, .. } in due() {
        if let Action::Fill(rules) | Action::FillLast(rules) = action {
            for rule in rules {
                writeln!(out, "-A {chain} {}", rule.words(family))?;
            }
        }
    }
    for Op { chain, action, .. } in due() {
        match action {
            // A rule that was removed with its chain's contents cannot be removed
            // again: the kernel would refuse the whole transaction.
            Action::Remove(words) if !emptied.contains(chain.as_str()) => {
                writeln!(out, "-D {chain} {words}")?;
            }
            Action::Raise(rule, times) => {
                for _ in 0..*times {
                    writeln!(out, "-D {chain} {}", rule.words(family))?;
                }
            }
            _ => {}
        }
    }
    for Op { chain, action, .. } in due() {
        if let Action::Insert(rule) | Action::Raise(rule, _) = action {
            writeln!(out, "-I {chain} {}", rule.words(family))?;
        }
    }
    for Op { chain, action, .. } in due() {
        if let Action::Append(rule) = action {
            writeln!(out, "-A {chain} {}", rule.words(family))?;
        }
    }
    for Op { chain, .. } in due().filter(|op| op.action == Action::Delete) {
        writeln!(out, "-X {chain}")?;
    }
    out.push_str("COMMIT\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A chain that is deleted is emptied first. To delete one of its rules as well
    /// makes the kernel refuse the transaction, and with it everything is compared.
    #[test]
    fn no_rule_goes_twice() {
        let op = |chain, action| Op::new(Table::Filter, chain, action);
        let rule = |chain| op(chain, Action::Remove(Words::new("-j DROP")));
        let gone = op("KUBE-SVC-IDX-A", Action::Delete);
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
