//! The chains of ours in a table, and the input that removes them.

use std::collections::HashSet;

use crate::kernel::xtables::{
    Engine, Error, Xtables,
    rule::{BASE_CHAINS, Table},
    words::{Line, Words, target},
};

/// The most chains that iptables-nft-restore is given to remove at once. The time that
/// it takes grows with the square of their number.
const AT_ONCE: usize = 1_000;

/// The chains of ours in a table, and the rules that jump to them. Of a table with a
/// hundred thousand rules, no more than that is in memory.
#[derive(Debug)]
pub struct OwnedChains<F> {
    table: Table,
    ours: F,
    chains: Vec<String>,
    /// Rules of the kernel's chains that jump to them.
    jumps: Vec<Jump>,
    /// Those that a rule of another program's chain jumps to.
    in_use: HashSet<String>,
    /// Those that have rules.
    filled: HashSet<String>,
}

/// A rule of one of the kernel's chains.
#[derive(Debug)]
struct Jump {
    from: String,
    rule: Words,
}

impl<F: Fn(&str) -> bool> OwnedChains<F> {
    /// Returns the chains of `table`, none read yet; `ours` is true for the names of
    /// chains that are to go.
    pub fn new(table: Table, ours: F) -> OwnedChains<F> {
        OwnedChains {
            table,
            ours,
            chains: Vec::new(),
            jumps: Vec::new(),
            in_use: HashSet::new(),
            filled: HashSet::new(),
        }
    }

    /// Reads the chains from `xtables`.
    ///
    /// # Errors
    /// What the program wrote as its error.
    pub async fn read(mut self, xtables: &Xtables) -> Result<OwnedChains<F>, Error> {
        let table = self.table.name();
        xtables.read(Some(table), |line| self.line(line)).await?;
        Ok(self)
    }

    /// Records a line of `iptables-save`.
    pub fn line(&mut self, line: &str) {
        match Line::parse(line) {
            Some(Line::Chain(name)) if (self.ours)(name) => self.chains.push(name.to_owned()),
            Some(Line::Rule { chain, .. }) if (self.ours)(chain) => self.has_rule(chain),
            Some(Line::Rule { chain, words }) => {
                let Some(target) = target(words).filter(|target| (self.ours)(target)) else {
                    return;
                };
                // Rules of the kernel's chains that jump to our chains are ours.
                if BASE_CHAINS.contains(&chain) {
                    self.jumps.push(Jump {
                        from: chain.to_owned(),
                        rule: Words::new(words),
                    });
                } else {
                    self.in_use.insert(target.to_owned());
                }
            }
            _ => {}
        }
    }

    /// Records that a chain has a rule. It may have thousands: its name is copied once.
    fn has_rule(&mut self, chain: &str) {
        if !self.filled.contains(chain) {
            self.filled.insert(chain.to_owned());
        }
    }

    /// Leaves the chain of this name, and the rules that jump to it.
    pub fn leave(&mut self, name: &str) {
        self.chains.retain(|chain| chain != name);
        self.jumps.retain(|jump| jump.rule.target() != Some(name));
    }

    /// Returns the names of the chains.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.chains.iter().map(String::as_str)
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.chains.is_empty()
    }

    /// Returns input of `iptables-restore` that removes the rules that jump to the
    /// chains, but not the chains; empty if there are no such rules.
    pub fn unlinking(&self) -> String {
        if self.jumps.is_empty() {
            return String::new();
        }
        self.input(&self.unlinked())
    }

    /// Returns input of `iptables-restore` that removes the chains and the rules that jump to them;
    /// empty if there is nothing to remove. A chain that a rule of another program's chain jumps to
    /// is only emptied, for that rule is not ours to remove; once it is empty nothing is written
    /// for it any more, for every full sync may look for it.
    pub fn removal(&self) -> String {
        let due = self.due();
        if due.is_empty() && self.jumps.is_empty() {
            return String::new();
        }
        let rules = self.unlinked();
        let (emptied, deleted) = (emptied(&due), deleted(self.free()));
        self.input(&format!("{emptied}{rules}{deleted}"))
    }

    /// Returns the [`removal`](Self::removal) where `engine` can do it at once; else
    /// steps, one after the other, of which the first removes the rules that jump to the
    /// chains. There is always a first.
    pub fn steps(&self, engine: Engine) -> Vec<String> {
        if engine == Engine::Legacy || self.chains.len() <= AT_ONCE {
            return vec![self.removal()];
        }
        let (due, free) = (self.due(), self.free().collect::<Vec<_>>());
        let emptying = due.chunks(AT_ONCE).map(emptied);
        let deleting = free
            .chunks(AT_ONCE)
            .map(|free| deleted(free.iter().copied()));
        let lines = emptying.chain(deleting);
        let later = lines.map(|lines| self.input(&lines));
        std::iter::once(self.unlinking()).chain(later).collect()
    }

    fn input(&self, lines: &str) -> String {
        format!("*{}\n{lines}COMMIT\n", self.table)
    }

    fn unlinked(&self) -> String {
        let deletion = |Jump { from, rule }: &Jump| format!("-D {from} {rule}\n");
        self.jumps.iter().map(deletion).collect()
    }

    /// Returns the chains that can be deleted, or have rules.
    fn due(&self) -> Vec<&String> {
        let is_due =
            |chain: &&String| !self.in_use.contains(*chain) || self.filled.contains(*chain);
        self.chains.iter().filter(is_due).collect()
    }

    fn free(&self) -> impl Iterator<Item = &String> {
        self.chains
            .iter()
            .filter(|chain| !self.in_use.contains(*chain))
    }
}

fn emptied(chains: &[&String]) -> String {
    chains
        .iter()
        .map(|chain| format!(":{chain} - [0:0]\n"))
        .collect()
}

fn deleted<'a>(chains: impl Iterator<Item = &'a String>) -> String {
    chains.map(|chain| format!("-X {chain}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_rules_and_what_they_lead_to_stay() {
        let ours = |chain: &str| chain.starts_with("KUBE-");
        let mut chains = OwnedChains::new(Table::Nat, ours);
        assert!(chains.is_empty());
        assert_eq!((chains.removal(), chains.unlinking()), Default::default());
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
            chains.unlinking(),
            "*nat\n-D OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A\nCOMMIT\n"
        );
        assert_eq!(
            chains.removal(),
            "*nat\n:KUBE-A - [0:0]\n:KUBE-B - [0:0]\n\
             -D OUTPUT -m comment --comment \"to -j MINE\" -j KUBE-A\n-X KUBE-A\nCOMMIT\n"
        );
    }

    #[test]
    fn nothing_is_written_for_an_empty_chain_that_others_use() {
        let mut chains = OwnedChains::new(Table::Nat, |chain: &str| chain == "KUBE-MARK-MASQ");
        for line in [
            ":CNI - [0:0]",
            ":KUBE-MARK-MASQ - [0:0]",
            "-A CNI -j KUBE-MARK-MASQ",
        ] {
            chains.line(line);
        }
        assert_eq!(chains.removal(), "");
        chains.line("-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000");
        assert_eq!(chains.removal(), "*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n");
    }

    #[test]
    fn a_chain_that_is_left_keeps_what_leads_to_it() {
        let mut chains = OwnedChains::new(Table::Filter, |chain: &str| chain.len() == 1);
        for line in [":A - [0:0]", ":B - [0:0]", "-A INPUT -j A", "-A INPUT -j B"] {
            chains.line(line);
        }
        chains.leave("A");
        assert_eq!(
            chains.removal(),
            "*filter\n:B - [0:0]\n-D INPUT -j B\n-X B\nCOMMIT\n"
        );
        chains.leave("B");
        assert_eq!(chains.removal(), "");
    }

    #[test]
    fn many_chains_go_in_steps_once_nothing_leads_to_them() {
        let mut chains = OwnedChains::new(Table::Nat, |chain: &str| chain.starts_with('K'));
        for line in [
            ":FOREIGN - [0:0]",
            "-A OUTPUT -j K0",
            "-A FOREIGN -j K1",
            "-A K1 -j K2",
        ] {
            chains.line(line);
        }
        for i in 0..AT_ONCE {
            chains.line(&format!(":K{i} - [0:0]"));
        }
        let whole = chains.steps(Engine::NfTables);
        assert_eq!(whole, [chains.removal()]);
        chains.line(":KLAST - [0:0]");
        assert_eq!(chains.steps(Engine::Legacy), [chains.removal()]);
        let steps = chains.steps(Engine::NfTables);
        let (first, later) = steps.split_first().unwrap();
        assert_eq!(*first, chains.unlinking());
        let sizes: Vec<usize> = later.iter().map(|step| step.lines().count() - 2).collect();
        assert_eq!(sizes, [AT_ONCE, 1, AT_ONCE]);
        let lines = |step: &String| step.lines().map(str::to_owned).collect::<Vec<_>>();
        let mut in_steps: Vec<String> = steps.iter().flat_map(lines).collect();
        let mut at_once = lines(&chains.removal());
        in_steps.retain(|line| !["*nat", "COMMIT"].contains(&line.as_str()));
        at_once.retain(|line| !["*nat", "COMMIT"].contains(&line.as_str()));
        in_steps.sort();
        at_once.sort();
        assert_eq!(in_steps, at_once);
    }
}
