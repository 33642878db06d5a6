//! Cutting a batch into smaller ones, for kernels that take no transaction of
//! its size: without CAP_NET_ADMIN in the initial user namespace a netlink
//! socket's buffer cannot be raised above `net.core.wmem_max` (`socket(7)`,
//! SO_SNDBUFFORCE), and iptables-nft sends a table as one message.

use std::collections::{HashMap, HashSet};

use super::words::{Line, target};

/// Returns `batch` as batches of at most `lines` rules each, which run in order do the same, though
/// not in one step. A chain is declared, and so emptied, together with its new rules, so that it is
/// never without rules (except one with more than `lines` of them); a chain that is deleted, when
/// no rule jumps to it any more; any other, before all rules of its table.
pub fn parts(batch: &str, lines: usize) -> Vec<String> {
    let mut parts = Vec::new();
    for table in batch.split_inclusive("COMMIT\n") {
        let (name, commands) = table.split_once('\n').unwrap_or((table, ""));
        let mut part = Part::new(name, lines);
        for unit in units(commands) {
            let rules = unit.iter().filter(|line| line.starts_with('-')).count();
            if part.rules > 0 && part.rules + rules > lines {
                parts.extend(part.take());
            }
            for line in unit {
                if part.rules == lines {
                    parts.extend(part.take());
                }
                part.add(line);
            }
        }
        parts.extend(part.take());
    }
    parts
}

/// A batch that is being made.
struct Part<'a> {
    table: &'a str,
    text: String,
    rules: usize,
}

impl Part<'_> {
    fn new(table: &str, lines: usize) -> Part<'_> {
        Part {
            table,
            text: String::with_capacity(lines * 100),
            rules: 0,
        }
    }

    fn add(&mut self, line: &str) {
        self.rules += usize::from(line.starts_with('-'));
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Returns the batch, and begins another one; `None`: there is nothing in it.
    fn take(&mut self) -> Option<String> {
        self.rules = 0;
        let text = std::mem::take(&mut self.text);
        (!text.is_empty()).then(|| format!("{}\n{text}COMMIT\n", self.table))
    }
}

/// Splits the lines of a table into groups that must stay together.
fn units(commands: &str) -> Vec<Vec<&str>> {
    let commands = || commands.lines().filter(|line| *line != "COMMIT");
    let mut declared: HashMap<&str, &str> = HashMap::new();
    let (mut filled, mut leaving) = (HashSet::new(), HashSet::new());
    for line in commands() {
        match Line::parse(line) {
            Some(Line::Chain(name)) => drop(declared.insert(name, line)),
            Some(Line::Rule { chain, .. }) => drop(filled.insert(chain)),
            None => leaving.extend(line.strip_prefix("-X ")),
        }
    }
    let is_later = |name: &&str| filled.contains(name) || leaving.contains(name);
    let mut units: Vec<Vec<&str>> = vec![Vec::new()];
    for line in commands() {
        if let Some(Line::Chain(name)) = Line::parse(line)
            && !is_later(&name)
        {
            units[0].push(line);
        }
    }
    declared.retain(|name, _| is_later(name));
    let mut last = None;
    for line in commands() {
        let mut unit = Vec::new();
        match Line::parse(line) {
            Some(Line::Chain(_)) => continue,
            Some(Line::Rule { chain, words }) => {
                unit.extend(declared.remove(chain));
                // The chain that it jumps to has to be there.
                unit.extend(target(words).and_then(|to| declared.remove(to)));
                if last == Some(chain)
                    && let Some(of_chain) = units.last_mut()
                {
                    of_chain.append(&mut unit);
                    of_chain.push(line);
                    continue;
                }
                last = Some(chain);
            }
            None => {
                last = None;
                if line.starts_with("-X ") {
                    unit.extend(std::mem::take(&mut declared).into_values());
                    unit.sort_unstable();
                }
            }
        }
        unit.push(line);
        units.push(unit);
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_is_emptied_with_its_new_rules() {
        let batch = "*filter\n:A - [0:0]\n-A A 1\nCOMMIT\n\
                     *nat\n:B - [0:0]\n:C - [0:0]\n:E - [0:0]\n-A B 1\n-A C 3\n-A C 4\n-I D 4\n\
                     COMMIT\n";
        assert_eq!(
            parts(batch, 2),
            [
                "*filter\n:A - [0:0]\n-A A 1\nCOMMIT\n",
                "*nat\n:E - [0:0]\n:B - [0:0]\n-A B 1\nCOMMIT\n",
                "*nat\n:C - [0:0]\n-A C 3\n-A C 4\nCOMMIT\n",
                "*nat\n-I D 4\nCOMMIT\n",
            ]
        );
        let whole = "*nat\n:A - [0:0]\n-A A 1\n-D B 2\nCOMMIT\n";
        assert_eq!(parts(whole, 100), [whole]);
        assert_eq!(parts("*nat\nCOMMIT\n", 100), [""; 0]);
    }

    #[test]
    fn a_chain_with_too_many_rules_is_cut() {
        let batch = "*nat\n:A - [0:0]\n-A A 1\n-A A 2\n-A A 3\nCOMMIT\n";
        let cut = [
            "*nat\n:A - [0:0]\n-A A 1\n-A A 2\nCOMMIT\n",
            "*nat\n-A A 3\nCOMMIT\n",
        ];
        assert_eq!(parts(batch, 2), cut);
    }

    #[test]
    fn chains_go_when_nothing_leads_to_them() {
        let batch = "*nat\n:LEAF - [0:0]\n:NEW - [0:0]\n:ROOT - [0:0]\n\
                     -A NEW -j DROP\n-A ROOT -p tcp -j NEW\n-A ROOT -j LATER\n-D OUTPUT -j LEAF\n\
                     -X LEAF\nCOMMIT\n";
        assert_eq!(
            parts(batch, 2),
            [
                "*nat\n:NEW - [0:0]\n-A NEW -j DROP\nCOMMIT\n",
                "*nat\n:ROOT - [0:0]\n-A ROOT -p tcp -j NEW\n-A ROOT -j LATER\nCOMMIT\n",
                "*nat\n-D OUTPUT -j LEAF\n:LEAF - [0:0]\n-X LEAF\nCOMMIT\n",
            ]
        );
    }

    #[test]
    fn a_chain_is_there_before_a_rule_leads_to_it() {
        let batch = "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A B -j DROP\nCOMMIT\n";
        assert_eq!(
            parts(batch, 1),
            [
                "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\nCOMMIT\n",
                "*nat\n-A B -j DROP\nCOMMIT\n",
            ]
        );
    }
}
