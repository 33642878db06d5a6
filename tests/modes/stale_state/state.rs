//! Everything that a mode could change on a node.

use std::collections::BTreeSet;

use super::super::probe::kernel;
use super::{engines, program};
use crate::lab::Host;
use crate::lab::recorded::Ruleset;

/// The state of a node. The order of chains, of members of sets and of virtual servers is
/// ignored, but not that of rules.
pub struct State {
    rules: Vec<(String, Ruleset)>,
    /// Everything else, one line each.
    rest: BTreeSet<String>,
}

impl State {
    pub fn of(node: &Host) -> State {
        let mut rules = Vec::new();
        for engine in engines() {
            for of in ["iptables", "ip6tables"] {
                let program = program(of, engine, "save");
                let saved = node.show(&program);
                let saved: String = saved.lines().map(|l| neutral(l) + "\n").collect();
                rules.push((program, Ruleset::parse(&saved)));
            }
        }
        let mut rest = BTreeSet::new();
        let mut note = |command: &str, words: &dyn Fn(&str) -> String| {
            for line in node.show(command).lines() {
                let words = words(line);
                // Addresses that a link gives itself.
                if !words.contains("fe80::") {
                    rest.insert(format!("{command}: {words}"));
                }
            }
        };
        let whole = |line: &str| line.to_owned();
        // Without the number and the hardware address of a link.
        let first = |line: &str, from: usize, to: usize| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words
                .get(from..to.min(words.len()))
                .unwrap_or(&[])
                .join(" ")
        };
        note("ip -o link", &|line| first(line, 1, 3));
        note("ip -o addr", &|line| first(line, 1, 6));
        note("ip rule", &whole);
        note("ip -6 rule", &whole);
        note("ip route show table all", &whole);
        // A set's line without the size with which it was created.
        note("ipset save", &|line| {
            if line.starts_with("create") {
                first(line, 0, 5)
            } else {
                line.to_owned()
            }
        });
        match kernel().as_str() {
            "full" => {
                // A real server is listed after its virtual server.
                let mut server = String::new();
                for line in node.show("ipvsadm -Sn").lines() {
                    if line.starts_with("-A") {
                        server = line.to_owned();
                    }
                    rest.insert(format!("ipvs {server}: {line}"));
                }
            }
            _ => note("nft list tables", &whole),
        }
        State { rules, rest }
    }

    /// Lists the differences from `other`, one per line.
    pub fn differences(&self, other: &State) -> Vec<String> {
        let mut found = Vec::new();
        for ((program, ours), (_, theirs)) in self.rules.iter().zip(&other.rules) {
            let differences = ours.differences(theirs);
            found.extend(differences.iter().map(|line| format!("{program}: {line}")));
        }
        let missing = self.rest.difference(&other.rest);
        found.extend(missing.map(|line| format!("missing: {line}")));
        let more = other.rest.difference(&self.rest);
        found.extend(more.map(|line| format!("more: {line}")));
        found
    }

    /// # Panics
    /// If `other` differs.
    pub fn assert_same(&self, other: &State, when: &str) {
        let found = self.differences(other);
        assert!(found.is_empty(), "{when}:\n{}", found.join("\n"));
    }
}

/// A line of a rule in a form that is the same in each run: userspace mode listens on ports that
/// the kernel chooses, redirects there, and refuses direct calls to them.
fn neutral(line: &str) -> String {
    if !line.starts_with("-A TRIPOD-US") {
        return line.to_owned();
    }
    let mut words: Vec<&str> = line.split(' ').collect();
    let refuses = words.contains(&"REJECT");
    for at in 1..words.len() {
        match words[at - 1] {
            "--to-ports" => words[at] = "N",
            "--to-destination" => words[at] = words[at].rsplit_once(':').map_or("", |(ip, _)| ip),
            "--dport" if refuses => words[at] = "N",
            _ => {}
        }
    }
    words.join(" ")
}
