//! The objects of ipvs mode in the kernel apart from rules, compared as `tests/vectors/README.md`
//! describes.

use std::collections::BTreeSet;

use crate::lab::recorded::{Case, Ruleset};

/// The state of a node.
#[derive(Clone, Debug)]
pub struct State {
    /// Lines of `ipvsadm -Sn`.
    pub servers: BTreeSet<String>,
    /// Lines of `ipset save`.
    pub sets: BTreeSet<String>,
    /// Addresses of the dummy link.
    pub addresses: BTreeSet<String>,
    /// The rules of both families.
    pub rules: [Ruleset; 2],
}

impl State {
    /// Reads the state that kube-proxy left in the kernel.
    pub fn recorded(case: &Case) -> State {
        State {
            servers: servers(&case.read("ipvs/ipvsadm-save.txt")),
            sets: sets(&case.read("ipvs/ipset-save.txt")),
            addresses: addresses(&case.read("ipvs/kube-ipvs0-addrs.txt")),
            rules: ["iptables-save.txt", "ip6tables-save.txt"]
                .map(|file| Ruleset::parse(&case.read(&format!("ipvs/{file}")))),
        }
    }

    /// Lists the differences in `other`, one line each.
    pub fn differences(&self, other: &State) -> Vec<String> {
        let mut found = Vec::new();
        for (what, expected, given) in [
            ("servers", &self.servers, &other.servers),
            ("sets", &self.sets, &other.sets),
            ("addresses", &self.addresses, &other.addresses),
        ] {
            let missing = expected.difference(given);
            found.extend(missing.map(|line| format!("{what}: missing: {line}")));
            let more = given.difference(expected);
            found.extend(more.map(|line| format!("{what}: more: {line}")));
        }
        for (expected, given) in self.rules.iter().zip(&other.rules) {
            found.extend(expected.differences(given));
        }
        found
    }
}

/// Parses the output of `ipvsadm -Sn` into lines.
pub fn servers(text: &str) -> BTreeSet<String> {
    lines(text).collect()
}

/// Parses the output of `ipset save` into lines, without storage options of sets.
pub fn sets(text: &str) -> BTreeSet<String> {
    let one = |line: String| {
        let mut kept = Vec::new();
        let mut words = line.split(' ');
        while let Some(word) = words.next() {
            match word {
                "hashsize" | "maxelem" | "bucketsize" | "initval" => drop(words.next()),
                word => kept.push(word),
            }
        }
        kept.join(" ")
    };
    lines(text).map(one).collect()
}

/// Returns lines such as `inet 10.0.0.1/32`.
pub fn addresses(text: &str) -> BTreeSet<String> {
    lines(text).collect()
}

fn lines(text: &str) -> impl Iterator<Item = String> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
}
