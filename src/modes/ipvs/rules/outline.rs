//! Properties of rules that do not depend on a program's wording: how many each chain has, and
//! their targets.

use std::collections::{BTreeMap, HashMap};

use net::Family;
use xtables::{
    desired::RuleSet,
    rule::{BASE_CHAINS, Rule, Table},
    words::{Line, target},
};

/// How many rules have each target, and how many have none.
type Targets = BTreeMap<Option<String>, usize>;

/// The chains of a [`RuleSet`], and the rules found in them.
#[derive(Debug)]
pub struct Outline {
    desired: HashMap<Table, HashMap<String, Targets>>,
    /// Those that are there.
    found: HashMap<Table, HashMap<String, Targets>>,
}

impl Outline {
    /// Outlines `rules` of `family`, none of which were found yet.
    pub fn of(rules: &RuleSet, family: Family) -> Outline {
        let mut desired = HashMap::<_, HashMap<_, Targets>>::new();
        let mut add = |table: Table, chain: &str, rules: &[Rule]| {
            let of_table = desired.entry(table).or_default();
            let targets = of_table.entry(chain.to_owned()).or_default();
            for rule in rules {
                count(targets, &rule.words(family).to_string());
            }
        };
        for chain in &rules.chains {
            add(chain.table, &chain.name, chain.contents.rules());
        }
        for jump in &rules.jumps {
            add(jump.table, jump.from, std::slice::from_ref(&jump.rule));
        }
        Outline {
            desired,
            found: HashMap::new(),
        }
    }

    /// Records `line` of `table`.
    pub fn line(&mut self, table: Table, line: &str) {
        let (chain, words) = match Line::parse(line) {
            Some(Line::Chain(name)) => (name, None),
            Some(Line::Rule { chain, words }) => (chain, Some(words)),
            None => return,
        };
        let of_table = self.desired.get(&table);
        if of_table.is_some_and(|chains| chains.contains_key(chain)) {
            let found = self.found.entry(table).or_default();
            let targets = found.entry(chain.to_owned()).or_default();
            if let Some(words) = words {
                count(targets, words);
            }
        }
    }

    /// Returns true if every chain was found with the same number of rules, with the targets that
    /// they should have. In the kernel's chains, only rules that jump to ours count.
    pub fn is_found(&self) -> bool {
        let is_found = |table: &Table, chain: &String, needed: &Targets| {
            let found = self.found.get(table).and_then(|found| found.get(chain));
            found.is_some_and(|found| {
                if BASE_CHAINS.contains(&chain.as_str()) {
                    needed.iter().all(|(to, n)| found.get(to) == Some(n))
                } else {
                    found == needed
                }
            })
        };
        let mut desired = self.desired.iter();
        desired.all(|(table, chains)| {
            let mut chains = chains.iter();
            chains.all(|(chain, needed)| is_found(table, chain, needed))
        })
    }
}

fn count(targets: &mut Targets, words: &str) {
    *targets.entry(target(words).map(str::to_owned)).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use xtables::{
        desired::{FixedChain, Jump, Place},
        rule::Target,
    };

    use super::*;

    fn desired() -> Outline {
        let rules = vec![
            Rule::new().target(Target::Return),
            Rule::new().target(Target::Drop),
        ];
        let jump = Jump {
            table: Table::Filter,
            from: "FORWARD",
            rule: Rule::new().jump("OURS"),
            place: Place::InOrder,
        };
        let rules = RuleSet {
            chains: vec![
                FixedChain::exactly(Table::Filter, "OURS", rules),
                FixedChain::exactly(Table::Filter, "EMPTY", Vec::new()),
            ],
            jumps: vec![jump],
        };
        Outline::of(&rules, Family::V4)
    }

    #[test]
    fn other_words_are_the_same_outline_and_other_rules_are_not() {
        let chains = [":FORWARD ACCEPT [0:0]", ":OURS - [0:0]", ":EMPTY - [0:0]"];
        let jump = "-A FORWARD -m comment --comment x -j OURS";
        let (first, second) = ("-A OURS -p tcp -j RETURN", "-A OURS --new-option -j DROP");
        let others = "-A FORWARD -j ACCEPT";
        let cases: [(&str, &[&str], bool); 7] = [
            ("reworded", &[jump, others, first, second], true),
            ("flushed", &[jump], false),
            (
                "one more",
                &[jump, first, second, "-A OURS -j ACCEPT"],
                false,
            ),
            ("one less", &[jump, second], false),
            ("another", &[jump, first, "-A OURS -j ACCEPT"], false),
            ("no jump", &[others, first, second], false),
            ("two jumps", &[jump, jump, first, second], false),
        ];
        for (name, rules, is_found) in cases {
            let mut outline = desired();
            for line in chains.iter().chain(rules) {
                outline.line(Table::Filter, line);
            }
            assert_eq!(outline.is_found(), is_found, "{name}");
        }
        let mut without_chain = desired();
        for line in [chains[0], chains[1], jump, first, second] {
            without_chain.line(Table::Filter, line);
        }
        assert!(!without_chain.is_found());
    }
}
