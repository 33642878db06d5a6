//! The chains of ours in a table, and the steps that remove them.

use std::{collections::HashSet, iter};

use net::Family;

use crate::{
    Engine, Error, Xtables,
    observed::{Interest, ObservedTable},
    rule::{BASE_CHAINS, Table},
    transaction::{Action, Op, Transaction},
    words::{Digest, Line, target},
};

/// The most chains that iptables-nft-restore is given to remove at once. The time that
/// it takes grows with the square of their number.
const AT_ONCE: usize = 1_000;

/// The chains of ours in a table, and the rules that jump to them. Of a table with a
/// hundred thousand rules, no more than that is in memory.
#[derive(Debug)]
pub struct OwnedChains<F> {
    family: Family,
    table: Table,
    ours: F,
    there: ObservedTable,
    /// Those that a rule of another program's chain jumps to.
    in_use: HashSet<String>,
}

impl<F: Fn(&str) -> bool> OwnedChains<F> {
    /// The chains of `table`, none read yet; `ours` is true for the names of chains to remove.
    pub fn new(family: Family, table: Table, ours: F) -> OwnedChains<F> {
        OwnedChains {
            family,
            table,
            ours,
            there: ObservedTable::default(),
            in_use: HashSet::new(),
        }
    }

    /// Reads the chains from `xtables`.
    ///
    /// # Errors
    /// With the message of the program.
    pub async fn read(mut self, xtables: &Xtables) -> Result<OwnedChains<F>, Error> {
        let table = self.table.name();
        xtables.read(Some(table), |line| self.line(line)).await?;
        Ok(self)
    }

    /// Records a line of `iptables-save`.
    pub fn line(&mut self, line: &str) {
        let Some(line) = Line::parse(line) else {
            return;
        };
        self.there.record(line, |chain| {
            if (self.ours)(chain) {
                Interest::Whole
            } else {
                Interest::Foreign
            }
        });
        // Rules of the kernel's chains that jump to our chains are ours.
        if let Line::Rule { chain, words } = line
            && !BASE_CHAINS.contains(&chain)
            && !(self.ours)(chain)
        {
            let target = target(words).filter(|target| (self.ours)(target));
            self.in_use.extend(target.map(str::to_owned));
        }
    }

    /// Leaves the chain of this name, and the rules that jump to it.
    pub fn leave(&mut self, name: &str) {
        self.there.digests.remove(name);
        for jumps in self.there.jumps.values_mut() {
            jumps.retain(|rule| rule.target() != Some(name));
        }
    }

    /// Names of the chains, sorted.
    pub fn names(&self) -> Vec<&String> {
        let mut names: Vec<&String> = self.there.digests.keys().collect();
        names.sort_unstable();
        names
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.there.digests.is_empty()
    }

    /// Returns the change that removes the rules that jump to the chains, but not the chains.
    pub fn unlinking(&self) -> Transaction<()> {
        self.transaction(self.unlinked())
    }

    /// Returns the change that removes the chains and the rules that jump to them. A chain that a
    /// rule of another program's chain jumps to is only emptied, for that rule is not ours to
    /// remove; once it is empty nothing is done to it any more, for every full sync may look for
    /// it.
    pub fn removal(&self) -> Transaction<()> {
        let chains = self.due().into_iter().map(|chain| {
            if self.in_use.contains(chain) {
                self.emptied(chain)
            } else {
                self.deleted(chain)
            }
        });
        let unlinked = self.unlinked().into_iter();
        self.transaction(unlinked.chain(chains).collect())
    }

    /// Returns the [`removal`](Self::removal) where `engine` can do it at once; else
    /// changes, one after the other, of which the first removes the rules that jump to the
    /// chains. There is always a first.
    pub fn steps(&self, engine: Engine) -> Vec<Transaction<()>> {
        if engine == Engine::Legacy || self.there.digests.len() <= AT_ONCE {
            return vec![self.removal()];
        }
        let due = self.due();
        let emptied: Vec<Op> = due.iter().map(|chain| self.emptied(chain)).collect();
        let free = due.iter().filter(|chain| !self.in_use.contains(**chain));
        let deleted: Vec<Op> = free.map(|chain| self.deleted(chain)).collect();
        let later = emptied.chunks(AT_ONCE).chain(deleted.chunks(AT_ONCE));
        let later = later.map(|ops| self.transaction(ops.to_vec()));
        iter::once(self.unlinking()).chain(later).collect()
    }

    fn transaction(&self, ops: Vec<Op>) -> Transaction<()> {
        Transaction::common(self.family, ops)
    }

    fn emptied(&self, chain: &str) -> Op {
        Op::new(self.table, chain, Action::FillLast(Vec::new()))
    }

    fn deleted(&self, chain: &str) -> Op {
        Op::new(self.table, chain, Action::Delete)
    }

    fn unlinked(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        for from in BASE_CHAINS {
            let jumps = self.there.jumps.get(from).into_iter().flatten();
            ops.extend(jumps.map(|rule| Op::new(self.table, from, Action::Remove(rule.clone()))));
        }
        ops
    }

    /// Returns the chains that can be deleted, or have rules.
    fn due(&self) -> Vec<&String> {
        let has_rules = |chain| self.there.digests[chain] != Digest::default();
        let mut due = self.names();
        due.retain(|chain| !self.in_use.contains(*chain) || has_rules(*chain));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_rules_and_what_they_lead_to_stay() {
        let ours = |chain: &str| chain.starts_with("KUBE-");
        let mut chains = OwnedChains::new(Family::V4, Table::Nat, ours);
        assert!(chains.is_empty());
        assert!(chains.removal().is_empty() && chains.unlinking().is_empty());
        for line in [
            ":OUTPUT ACCEPT [0:0]",
            ":MINE - [0:0]",
            ":KUBE-A - [0:0]",
            ":KUBE-B - [0:0]",
            ":KUBE-C - [0:0]",
            "-A OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A",
            "-A OUTPUT -m comment --comment \"not -j KUBE-A\" -j MINE",
            "-A OUTPUT -g MINE",
            "-A MINE -j KUBE-B",
            "-A MINE -g KUBE-C",
            "-A KUBE-A -j KUBE-B",
            "-A KUBE-B -j RETURN",
        ] {
            chains.line(line);
        }
        assert_eq!(
            chains.unlinking().to_string(),
            "*nat\n-D OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A\nCOMMIT\n"
        );
        assert_eq!(
            chains.removal().to_string(),
            "*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n\
             -D OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A\n-X KUBE-A\nCOMMIT\n"
        );
    }

    #[test]
    fn nothing_is_written_for_an_empty_chain_that_others_use() {
        let mut chains = OwnedChains::new(Family::V4, Table::Nat, |chain: &str| {
            chain == "KUBE-MARK-MASQ"
        });
        for line in [
            ":CNI - [0:0]",
            ":KUBE-MARK-MASQ - [0:0]",
            "-A CNI -j KUBE-MARK-MASQ",
        ] {
            chains.line(line);
        }
        assert_eq!(chains.removal().to_string(), "");
        chains.line("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000");
        assert_eq!(
            chains.removal().to_string(),
            "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n"
        );
    }

    #[test]
    fn a_chain_that_is_left_keeps_what_leads_to_it() {
        let mut chains =
            OwnedChains::new(Family::V4, Table::Filter, |chain: &str| chain.len() == 1);
        for line in [
            ":INPUT ACCEPT [0:0]",
            ":A - [0:0]",
            ":B - [0:0]",
            "-A INPUT -j A",
            "-A INPUT -j B",
        ] {
            chains.line(line);
        }
        chains.leave("A");
        assert_eq!(
            chains.removal().to_string(),
            "*filter\n:B - [0:0]\n-D INPUT -j B\n-X B\nCOMMIT\n"
        );
        chains.leave("B");
        assert_eq!(chains.removal().to_string(), "");
    }

    #[test]
    fn many_chains_go_in_steps_once_nothing_leads_to_them() {
        let mut chains =
            OwnedChains::new(Family::V4, Table::Nat, |chain: &str| chain.starts_with('K'));
        for line in [
            ":OUTPUT ACCEPT [0:0]",
            ":FOREIGN - [0:0]",
            "-A OUTPUT -j K0",
            "-A FOREIGN -j K1",
        ] {
            chains.line(line);
        }
        for i in 0..AT_ONCE {
            chains.line(&format!(":K{i} - [0:0]"));
        }
        chains.line("-A K1 -j K2");
        let whole = chains.steps(Engine::NfTables);
        assert_eq!(whole, [chains.removal()]);
        chains.line(":KLAST - [0:0]");
        assert_eq!(chains.steps(Engine::Legacy), [chains.removal()]);
        let steps = chains.steps(Engine::NfTables);
        let (first, later) = steps.split_first().unwrap();
        assert_eq!(*first, chains.unlinking());
        let sizes: Vec<usize> = later.iter().map(|step| step.groups[0].ops.len()).collect();
        assert_eq!(sizes, [AT_ONCE, 1, AT_ONCE]);
        // Steps that delete declare the chains again.
        let lines = |steps: &[Transaction<()>]| {
            let text: String = steps.iter().map(ToString::to_string).collect();
            let lines = text.lines().map(str::to_owned);
            let (mut declared, mut others): (Vec<_>, Vec<_>) =
                lines.partition(|line| line.starts_with(':'));
            declared.sort();
            declared.dedup();
            others.retain(|line| !["*nat", "COMMIT"].contains(&line.as_str()));
            others.sort();
            (declared, others)
        };
        assert_eq!(lines(&steps), lines(&[chains.removal()]));
    }
}
