//! The work of a sync, in numbers.

use std::ops::{AddAssign, SubAssign};

use xtables::{
    desired::{OwnerRules, RuleSet},
    rule::Table,
    sync_watch::Synced,
    transaction::{Action, Op},
};

/// Work of a sync: ServicePorts processed and rules written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Number of ServicePorts that were planned.
    pub examined: usize,
    /// Number of rules of Tripod after the sync.
    pub total: RuleCount,
    /// Number of rules that the sync wrote.
    pub written: RuleCount,
    /// Transactions of the kernel's that this took.
    pub transactions: u32,
    /// The kernel was read, and so is known to be right.
    pub observed: bool,
}

impl From<&Done> for Synced {
    fn from(done: &Done) -> Synced {
        Synced {
            transactions: done.transactions,
            observed: done.observed,
        }
    }
}

/// A number of rules in each table that kube-proxy counts them in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Number of rules in table filter.
    pub filter: usize,
    /// Number of rules in table nat.
    pub nat: usize,
}

impl RuleCount {
    /// Returns how many rules a ServicePort has; steps, which it shares, are left out.
    pub fn of(rules: &OwnerRules) -> RuleCount {
        let chains = rules.chains.iter();
        let chains = chains.map(|chain| (chain.table, chain.rules.len()));
        let entries = rules.entries.iter().map(|entry| (entry.table, 1));
        RuleCount::sum(chains.chain(entries))
    }

    /// Returns how many of our chains' rules do not depend on Services.
    pub fn of_fixed(rules: &RuleSet) -> RuleCount {
        let chains = rules.chains.iter();
        RuleCount::sum(chains.map(|chain| (chain.table, chain.contents.rules().len())))
    }

    /// Returns how many rules `ops` write.
    pub fn written<'a>(ops: impl IntoIterator<Item = &'a Op>) -> RuleCount {
        let of = |op: &Op| match &op.action {
            Action::Fill(rules) | Action::FillLast(rules) => rules.len(),
            Action::Insert(_) | Action::Raise(..) | Action::Append(_) => 1,
            Action::Remove(_) | Action::Delete => 0,
        };
        RuleCount::sum(ops.into_iter().map(|op| (op.table, of(op))))
    }

    fn sum(counts: impl Iterator<Item = (Table, usize)>) -> RuleCount {
        let mut sum = RuleCount::default();
        for (table, count) in counts {
            match table {
                Table::Filter => sum.filter += count,
                Table::Nat => sum.nat += count,
                Table::Mangle => {}
            }
        }
        sum
    }
}

impl AddAssign for RuleCount {
    fn add_assign(&mut self, other: RuleCount) {
        self.filter += other.filter;
        self.nat += other.nat;
    }
}

/// Subtracts; the result is not below 0.
impl SubAssign for RuleCount {
    fn sub_assign(&mut self, other: RuleCount) {
        self.filter = self.filter.saturating_sub(other.filter);
        self.nat = self.nat.saturating_sub(other.nat);
    }
}
