//! Tables in memory, which take the input of `iptables-restore`: for tests.

use std::collections::BTreeMap;

use xtables::{
    observed::{InterestIn, Observed},
    rule::{BASE_CHAINS, Table},
    words::{Line, target},
};

/// Rules by chain, in the words of `iptables-save`.
pub type Chains = BTreeMap<String, Vec<String>>;

/// Targets of rules that are no chains.
const TARGETS: [&str; 8] = [
    "ACCEPT",
    "DNAT",
    "DROP",
    "MARK",
    "MASQUERADE",
    "REDIRECT",
    "REJECT",
    "RETURN",
];

/// Content of the tables of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(pub BTreeMap<Table, Chains>);

impl Tables {
    /// Returns tables that have the kernel's chains alone.
    pub fn bare() -> Tables {
        let chains = Chains::from(BASE_CHAINS.map(|chain| (chain.to_owned(), Vec::new())));
        Tables(Table::ALL.map(|table| (table, chains.clone())).into())
    }

    /// Runs input of `iptables-restore --noflush`, and shows the tables to `committed` after
    /// each transaction.
    pub fn run(&mut self, input: &str, mut committed: impl FnMut(&Tables)) {
        let mut table = None;
        for line in input.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = Table::named(name);
            } else if line == "COMMIT" {
                committed(self);
            } else {
                let chains = table.and_then(|table| self.0.get_mut(&table));
                command(chains.expect("a line after its table"), line);
            }
        }
    }

    /// Observes the tables, with this `interest`.
    pub fn observed(&self, interest: InterestIn) -> Observed {
        let mut observed = Observed::new(interest);
        for (table, chains) in &self.0 {
            for name in chains.keys() {
                observed.line(*table, &format!(":{name} - [0:0]"));
            }
            for (name, rules) in chains {
                for rule in rules {
                    observed.line(*table, &format!("-A {name} {rule}"));
                }
            }
        }
        observed
    }
}

fn command(chains: &mut Chains, line: &str) {
    if let Some(Line::Chain(name)) = Line::parse(line) {
        chains.insert(name.to_owned(), Vec::new());
        return;
    }
    let (command, rest) = line.split_once(' ').expect("a command");
    let (chain, words) = rest.split_once(' ').unwrap_or((rest, ""));
    if let Some(to) = target(words).filter(|to| command != "-D" && !TARGETS.contains(to)) {
        assert!(chains.contains_key(to), "no chain {to} for {line}");
    }
    let rules = chains.get_mut(chain);
    let rules = rules.unwrap_or_else(|| panic!("no chain for {line}"));
    match command {
        "-A" => rules.push(words.to_owned()),
        "-I" => rules.insert(0, words.to_owned()),
        "-D" => {
            let at = rules.iter().position(|rule| rule == words);
            rules.remove(at.unwrap_or_else(|| panic!("no rule to delete: {line}")));
        }
        "-X" => {
            assert!(rules.is_empty(), "deleted while not empty: {line}");
            chains.remove(chain);
            let mut left = chains.values().flatten();
            let is_used = left.any(|rule| target(rule) == Some(chain));
            assert!(!is_used, "deleted while in use: {line}");
        }
        _ => panic!("{line}"),
    }
}
