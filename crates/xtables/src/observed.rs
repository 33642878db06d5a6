//! The rules in tables that concern one part of Tripod: read line by line from `iptables-save`. A
//! node may have a hundred thousand rules of others; none of them is kept.

use hashbrown::{HashMap, HashSet};

use super::{
    rule::{BASE_CHAINS, Table},
    words::{Digest, Line, Words, target},
};

/// How a chain is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// It is of others, and nothing of it is kept.
    Foreign,
    /// It is ours, and compared by the digest of its rules.
    Whole,
    /// It is ours, and compared rule by rule.
    ByRule,
    /// It is ours and another program's: compared rule by rule, never deleted.
    /// Nor is a jump to it, that the other program may have written.
    Joint,
}

impl Interest {
    /// Returns true for chains that are ours alone.
    pub fn is_ours(self) -> bool {
        matches!(self, Interest::Whole | Interest::ByRule)
    }
}

/// How chains are compared, by table and name.
pub type InterestIn = fn(Table, &str) -> Interest;

/// Our chains and rules in tables, as they were read.
#[derive(Clone, Debug)]
pub struct Observed {
    interest: InterestIn,
    pub(super) tables: HashMap<Table, ObservedTable>,
}

/// Our chains and rules in one table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedTable {
    /// Chains that are compared by digest.
    pub(super) digests: HashMap<String, Digest>,
    /// Chains that are compared rule by rule.
    pub(super) lists: HashMap<String, Vec<Words>>,
    /// The kernel's chains, with those of their rules that jump to our chains.
    pub(super) jumps: HashMap<String, Vec<Words>>,
}

impl ObservedTable {
    /// Records a line. A chain is declared before its rules.
    pub(super) fn record(&mut self, line: Line<'_>, interest: impl Fn(&str) -> Interest) {
        match line {
            Line::Chain(name) => match interest(name) {
                _ if BASE_CHAINS.contains(&name) => {
                    self.jumps.entry(name.to_owned()).or_default();
                }
                Interest::Foreign => {}
                Interest::Whole => {
                    self.digests.insert(name.to_owned(), Digest::default());
                }
                Interest::ByRule | Interest::Joint => {
                    self.lists.insert(name.to_owned(), Vec::new());
                }
            },
            Line::Rule { chain, words } => {
                if let Some(digest) = self.digests.get_mut(chain) {
                    digest.add(words);
                } else if let Some(rules) = self.lists.get_mut(chain) {
                    rules.push(Words::new(words));
                } else if let Some(jumps) = self.jumps.get_mut(chain) {
                    let leads = |target: &str| interest(target) != Interest::Foreign;
                    if target(words).is_some_and(leads) {
                        jumps.push(Words::new(words));
                    }
                }
            }
        }
    }
}

impl Observed {
    /// Returns tables of which nothing was read.
    pub fn new(interest: InterestIn) -> Observed {
        let tables = HashMap::new();
        Observed { interest, tables }
    }

    /// Records a line of `table`.
    pub fn line(&mut self, table: Table, line: &str) {
        if let Some(line) = Line::parse(line) {
            let observed = self.tables.entry(table).or_default();
            observed.record(line, |chain| (self.interest)(table, chain));
        }
    }

    /// Names of our chains, including those shared with other programs.
    pub fn chains(&self) -> Chains {
        let tables = self.tables.iter().map(|(table, observed)| {
            let names = observed.digests.keys().chain(observed.lists.keys());
            (*table, names.cloned().collect())
        });
        Chains(tables.collect())
    }

    /// The rules of a chain that is compared rule by rule; `None`: there is no such chain.
    pub fn rules(&self, table: Table, chain: &str) -> Option<&[Words]> {
        let of_table = self.tables.get(&table)?;
        of_table.lists.get(chain).map(Vec::as_slice)
    }

    /// Returns true if a table has this chain, which is ours alone and compared as a whole.
    pub fn has_whole(&self, table: Table, chain: &str) -> bool {
        let of_table = self.tables.get(&table);
        of_table.is_some_and(|of_table| of_table.digests.contains_key(chain))
    }

    /// Returns true if a table has this chain, which is ours, and it has no rules.
    pub fn is_empty(&self, table: Table, chain: &str) -> bool {
        self.tables.get(&table).is_some_and(|of_table| {
            let digest = of_table.digests.get(chain);
            let rules = of_table.lists.get(chain);
            digest.is_some_and(|digest| *digest == Digest::default())
                || rules.is_some_and(Vec::is_empty)
        })
    }

    pub(super) fn is_ours(&self, table: Table, chain: &str) -> bool {
        (self.interest)(table, chain).is_ours()
    }
}

/// Names of chains.
#[derive(Clone, Debug, Default)]
pub struct Chains(HashMap<Table, HashSet<String>>);

impl Chains {
    /// Returns true if a table has the chain `name`.
    pub fn contain(&self, table: Table, name: &str) -> bool {
        let of_table = self.0.get(&table);
        of_table.is_some_and(|names| names.contains(name))
    }
}

impl PartialEq for Observed {
    fn eq(&self, other: &Observed) -> bool {
        self.tables == other.tables
    }
}

impl Eq for Observed {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interest(_: Table, chain: &str) -> Interest {
        match chain {
            "OURS" => Interest::Whole,
            "SHARED" => Interest::ByRule,
            "JOINT" => Interest::Joint,
            _ => Interest::Foreign,
        }
    }

    fn observed(text: &str) -> Observed {
        let mut observed = Observed::new(interest);
        text.lines()
            .for_each(|line| observed.line(Table::Nat, line));
        observed
    }

    #[test]
    fn of_others_rules_nothing_is_kept() {
        let ours = ":OUTPUT ACCEPT [0:0]\n:OURS - [0:0]\n:SHARED - [0:0]\n:JOINT - [0:0]\n\
                    -A OUTPUT -m comment --comment \"to -j THEIRS\" -j OURS\n-A OUTPUT -g JOINT\n\
                    -A OURS -j RETURN\n-A SHARED -j OURS\n-A JOINT -j DROP\n";
        let mut all = ours.to_owned();
        for number in 0..10_000 {
            all += &format!(
                ":THEIRS-{number} - [0:0]\n-A THEIRS-{number} -j OURS\n\
                 -A OUTPUT -m comment --comment OURS -j THEIRS-{number}\n"
            );
        }
        let kept = observed(&all);
        assert_eq!(kept, observed(ours));
        let table = &kept.tables[&Table::Nat];
        assert_eq!(table.jumps["OUTPUT"].len(), 2);
        assert_eq!((table.digests.len(), table.lists.len()), (1, 2));
        assert_ne!(kept, observed(&format!("{ours}-A OURS -j DROP\n")));
    }

    const SAVED: &str =
        include_str!("../../../tests/vectors/09-lb-source-ranges/iptables/iptables-save.txt");

    proptest! {
        #[test]
        fn no_saved_line_makes_the_reader_panic(
            changes in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..200),
        ) {
            let mut bytes = SAVED.as_bytes().to_vec();
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            observed(&String::from_utf8_lossy(&bytes)).chains();
        }
    }
}
