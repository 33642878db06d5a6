//! The rules of a family beside those that its tables have.

use std::fmt::{self, Write};

use hashbrown::{HashMap, HashSet};

use crate::{
    kernel::xtables::{
        rule::{BASE_CHAINS, Table},
        words::{self, Digest},
    },
    modes::ipvs::plan::{Chain, Jump, OWN_CHAINS, Rules},
    net::Family,
};

/// Rules of a chain that are kept as words: many more than a chain of ours has.
/// Iptables mode has a rule for each port of a Service in a chain of the same
/// name.
const KEPT: usize = 100;

/// What `iptables-save` printed of one table, as far as it concerns us: the
/// rules of chains of ours, and those of the kernel's chains that lead there.
/// Lines are kept as words, because programs differ in quotes. A node may have a
/// hundred thousand rules of others, none of which is kept.
#[derive(Debug)]
pub struct Saved {
    table: Table,
    chains: HashMap<String, SavedChain>,
    leads_to_services: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct SavedChain {
    rules: Vec<Vec<String>>,
    /// Those beyond [`KEPT`].
    rest: Digest,
}

impl Saved {
    /// What is read of `table` before its first line.
    pub fn new(table: Table) -> Saved {
        Saved {
            table,
            chains: HashMap::new(),
            leads_to_services: false,
        }
    }

    /// Takes one line in.
    pub fn line(&mut self, line: &str) {
        if let Some(chain) = line.strip_prefix(':').and_then(|l| l.split(' ').next()) {
            if self.is_ours(chain) || BASE_CHAINS.contains(&chain) {
                self.chains.entry(chain.to_owned()).or_default();
            }
            return;
        }
        let rule = line.strip_prefix("-A ");
        let Some((name, rule)) = rule.and_then(|rule| rule.split_once(' ')) else {
            return;
        };
        let target = words::target(rule);
        if !self.is_ours(name) && !target.is_some_and(|target| self.is_ours(target)) {
            return;
        }
        let leads = target.is_some_and(|target| target.starts_with("KUBE-SVC-"));
        self.leads_to_services |= leads && name == "KUBE-SERVICES";
        if let Some(chain) = self.chains.get_mut(name) {
            match chain.rules.len() {
                ..KEPT => chain.rules.push(words(rule)),
                _ => chain.rest.add(rule),
            }
        }
    }

    fn is_ours(&self, chain: &str) -> bool {
        OWN_CHAINS.contains(&(self.table, chain))
    }

    #[cfg(test)]
    fn has(&self, chain: &str) -> bool {
        self.chains.contains_key(chain)
    }

    /// Returns true if the chain of Services leads to chains of iptables mode.
    pub fn leads_to_services(&self) -> bool {
        self.leads_to_services
    }

    /// Everything in `chain` goes through `target`, whatever the comment.
    pub fn has_jump(&self, chain: &str, target: &str) -> bool {
        let chain = self.chains.get(chain);
        chain.is_some_and(|chain| chain.rules.iter().any(|rule| is_jump(rule, target)))
    }

    /// Rules of the kernel's chains that lead to chains of ours in another way
    /// than `jumps`, or once more, each after its chain: iptables mode has some of
    /// our chains, too, and calls them otherwise.
    fn strays(&self, jumps: &[Jump]) -> Vec<String> {
        let table = self.table;
        let mut found = Vec::new();
        for (chain, SavedChain { rules, .. }) in &self.chains {
            if !BASE_CHAINS.contains(&chain.as_str()) {
                continue;
            }
            let mut met = HashSet::new();
            for rule in rules {
                let mut pairs = rule.windows(2);
                let target = pairs.find(|pair| matches!(pair[0].as_str(), "-j" | "-g"));
                let to = |to: &str| target.is_some_and(|pair| pair[1] == to);
                let ours = OWN_CHAINS.iter().any(|(of, name)| *of == table && to(name));
                let wanted = |jump: &Jump| {
                    jump.table == table && jump.from == chain && is_jump(rule, jump.to)
                };
                let mut first = || {
                    jumps
                        .iter()
                        .position(wanted)
                        .is_some_and(|at| met.insert(at))
                };
                if ours && !first() {
                    found.push(format!("{chain} {}", line(rule)));
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// What it has of ours is the same in `other`.
    pub fn is_same(&self, other: &Saved) -> bool {
        OWN_CHAINS
            .iter()
            .all(|(_, chain)| self.chains.get(*chain) == other.chains.get(*chain))
    }
}

/// Everything that comes to the rule goes through `target`, whatever the
/// comment.
fn is_jump(rule: &[String], target: &str) -> bool {
    match rule {
        [m, comment, option, _, rest @ ..]
            if m == "-m" && comment == "comment" && option == "--comment" =>
        {
            rest == ["-j", target]
        }
        rest => rest == ["-j", target],
    }
}

/// A batch for `iptables-restore --noflush`, and what it repairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The input; empty if nothing is to be done.
    pub text: String,
    /// Chains and jumps that were not as they should be.
    pub repaired: Vec<String>,
}

/// What makes the tables of `saved` hold `rules`. A chain is written anew if
/// any of its rules differs; each table takes effect at once.
pub fn difference(rules: &Rules, saved: &HashMap<Table, Saved>, family: Family) -> Batch {
    let mut batch = Batch::default();
    for table in Table::ALL {
        let nothing = Saved::new(table);
        let saved = saved.get(&table).unwrap_or(&nothing);
        let wrong: Vec<&Chain> = rules
            .chains
            .iter()
            .filter(|chain| chain.table == table && !is_same(chain, saved, family))
            .collect();
        let missing: Vec<&Jump> = rules
            .jumps
            .iter()
            .filter(|jump| jump.table == table && !saved.has_jump(jump.from, jump.to))
            .collect();
        batch.repaired.extend(
            wrong
                .iter()
                .map(|chain| format!("chain {} of {table}", chain.name)),
        );
        batch.repaired.extend(
            missing
                .iter()
                .map(|jump| format!("jump from {} of {table}", jump.from)),
        );
        // Writing cannot fail: it goes to memory.
        let strays = saved.strays(&rules.jumps);
        let _ = write_table(&mut batch.text, table, &wrong, (&missing, &strays), family);
    }
    batch
}

fn is_same(chain: &Chain, saved: &Saved, family: Family) -> bool {
    saved.chains.get(chain.name).is_some_and(|there| {
        there.rules.len() == chain.rules.len()
            && chain
                .rules
                .iter()
                .zip(&there.rules)
                .all(|(rule, words)| words_of(rule, family) == *words)
    })
}

fn words_of(rule: &crate::kernel::xtables::rule::Rule, family: Family) -> Vec<String> {
    words(&rule.words(family).to_string())
}

fn write_table(
    out: &mut String,
    table: Table,
    chains: &[&Chain],
    (jumps, strays): (&[&Jump], &[String]),
    family: Family,
) -> fmt::Result {
    if chains.is_empty() && jumps.is_empty() && strays.is_empty() {
        return Ok(());
    }
    writeln!(out, "*{table}")?;
    for chain in chains {
        writeln!(out, ":{} - [0:0]", chain.name)?;
    }
    for chain in chains {
        for rule in &chain.rules {
            writeln!(out, "-A {} {}", chain.name, rule.words(family))?;
        }
    }
    for stray in strays {
        writeln!(out, "-D {stray}")?;
    }
    // Each goes to the top, so the last is the first there.
    for jump in jumps.iter().rev() {
        writeln!(out, "-I {} {}", jump.from, jump.rule.words(family))?;
    }
    writeln!(out, "COMMIT")
}

/// All of `rules`, for tables that hold nothing of ours.
pub fn whole(rules: &Rules, family: Family) -> String {
    difference(rules, &HashMap::new(), family).text
}

/// Words of a line, quotes and backslashes resolved.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.get_or_insert_default().extend(chars.next()),
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            ' ' if !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Words as a line that reads back as them.
fn line(words: &[String]) -> String {
    let mut text = String::new();
    for word in words {
        if !text.is_empty() {
            text.push(' ');
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,!+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            text.push_str(word);
            continue;
        }
        text.push('"');
        for c in word.chars() {
            if matches!(c, '"' | '\\') {
                text.push('\\');
            }
            text.push(c);
        }
        text.push('"');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::xtables::features::Features,
        modes::ipvs::plan::{self, FilledSets, NodeContext, Set},
        net::Family,
    };

    fn all() -> Rules {
        let filled: FilledSets = Set::ALL.into_iter().collect();
        let node = NodeContext {
            masquerade_mark: 0x4000,
            ..NodeContext::default()
        };
        plan::rules(Family::V4, &node, &Features::ALL, filled)
    }

    /// The tables after a batch that only inserts.
    fn after(batch: &str) -> HashMap<Table, Saved> {
        let mut tables: HashMap<Table, Saved> = HashMap::new();
        for table in Table::ALL {
            let start = format!("*{table}\n");
            let Some((_, rest)) = batch.split_once(&start) else {
                continue;
            };
            let part = rest.split("COMMIT").next().unwrap_or_default();
            tables.insert(table, parse(table, &part.replace("-I ", "-A ")));
        }
        tables
    }

    /// Of a batch, jumps come to chains that it does not declare.
    fn parse(table: Table, text: &str) -> Saved {
        let mut saved = Saved::new(table);
        for chain in BASE_CHAINS {
            saved.line(&format!(":{chain} ACCEPT [0:0]"));
        }
        text.lines().for_each(|line| saved.line(line));
        saved
    }

    fn rules_of<'a>(saved: &'a mut Saved, chain: &str) -> &'a mut Vec<Vec<String>> {
        &mut saved.chains.get_mut(chain).expect("it is there").rules
    }

    #[test]
    fn only_what_differs_is_written() {
        let rules = all();
        let whole = whole(&rules, Family::V4);
        let mut tables = after(&whole);
        assert_eq!(difference(&rules, &tables, Family::V4), Batch::default());
        let filter = tables.get_mut(&Table::Filter).unwrap();
        rules_of(filter, "KUBE-IPVS-FILTER").pop();
        rules_of(filter, "OUTPUT").clear();
        filter.line("-A INPUT -j ACCEPT");
        let batch = difference(&rules, &tables, Family::V4);
        assert_eq!(
            batch.repaired,
            [
                "chain KUBE-IPVS-FILTER of filter",
                "jump from OUTPUT of filter"
            ]
        );
        assert!(!batch.text.contains("*nat"), "{}", batch.text);
        let tables = after(&batch.text);
        assert!(tables[&Table::Filter].has("KUBE-IPVS-FILTER"));
        assert!(!tables[&Table::Filter].has("KUBE-FORWARD"));
    }

    #[test]
    fn jumps_in_other_words_and_second_ones_go() {
        let rules = all();
        let whole = whole(&rules, Family::V4);
        let mut tables = after(&whole);
        let nat = tables.get_mut(&Table::Nat).unwrap();
        for rule in [
            "-m conntrack --ctstate NEW -j KUBE-SERVICES",
            "-j KUBE-SERVICES",
            "-m set --match-set a src -j MINE",
        ] {
            nat.line(&format!("-A OUTPUT {rule}"));
        }
        let batch = difference(&rules, &tables, Family::V4);
        assert_eq!(
            batch.text,
            "*nat\n-D OUTPUT -j KUBE-SERVICES\n\
             -D OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES\nCOMMIT\n"
        );
        assert!(batch.repaired.is_empty());
    }

    #[test]
    fn of_others_rules_nothing_is_kept() {
        let rules = all();
        let whole = whole(&rules, Family::V4);
        let mut tables = after(&whole);
        let kept = |tables: &HashMap<Table, Saved>| {
            let of_table = |saved: &Saved| {
                let rules = saved.chains.values().map(|chain| chain.rules.len());
                saved.chains.len() + rules.sum::<usize>()
            };
            tables.values().map(of_table).sum::<usize>()
        };
        let before = kept(&tables);
        let filter = tables.get_mut(&Table::Filter).unwrap();
        for number in 0..10_000 {
            filter.line(&format!(":THEIRS-{number} - [0:0]"));
            filter.line(&format!(
                "-A THEIRS-{number} -s 192.0.2.1/32 -j KUBE-MARK-DROP"
            ));
            filter.line(&format!(
                "-A INPUT -m comment --comment KUBE-FORWARD -j THEIRS-{number}"
            ));
        }
        assert_eq!(kept(&tables), before);
        assert_eq!(difference(&rules, &tables, Family::V4), Batch::default());

        // As iptables mode has them.
        let nat = tables.get_mut(&Table::Nat).unwrap();
        assert!(!nat.leads_to_services());
        let rule = |number| format!("-A KUBE-SERVICES -d 10.0.0.1/32 -j KUBE-SVC-{number}");
        (0..10_000).for_each(|number| nat.line(&rule(number)));
        assert!(nat.leads_to_services());
        assert!(kept(&tables) < before + KEPT);
        let batch = difference(&rules, &tables, Family::V4);
        assert_eq!(batch.repaired, ["chain KUBE-SERVICES of nat"]);
        let read = |last: &str| {
            let mut saved = parse(Table::Nat, ":KUBE-SERVICES - [0:0]");
            (0..200).for_each(|number| saved.line(&rule(number)));
            saved.line(&format!("-A KUBE-SERVICES -j {last}"));
            saved
        };
        assert!(read("A").is_same(&read("A")));
        assert!(!read("A").is_same(&read("B")), "the last differs");
    }

    #[test]
    fn jumps_end_up_in_their_order() {
        let whole = whole(&all(), Family::V4);
        let inserted: Vec<&str> = whole
            .lines()
            .filter(|line| line.starts_with("-I INPUT"))
            .filter_map(|line| line.rsplit(' ').next())
            .collect();
        assert_eq!(
            inserted,
            ["KUBE-NODE-PORT", "KUBE-PROXY-FIREWALL", "KUBE-IPVS-FILTER"]
        );
    }
}
