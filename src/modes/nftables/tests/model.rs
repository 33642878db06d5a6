//! What a transaction leaves, by its text: a table in memory that takes what the
//! kernel takes.

use std::collections::{BTreeMap, BTreeSet};

/// A table of nf_tables, as far as a transaction concerns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    /// Elements of each set: keys and what stands behind them.
    pub sets: BTreeMap<String, BTreeMap<String, String>>,
    /// Rules of each chain.
    pub chains: BTreeMap<String, Vec<String>>,
}

impl Model {
    /// Runs a transaction.
    pub fn run(&mut self, text: &str) {
        for line in text.lines() {
            self.line(line);
        }
        self.check();
    }

    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.splitn(6, ' ').collect();
        let rest = words.get(5).copied().unwrap_or_default();
        match (
            words[0],
            words[1],
            words.get(4).copied().unwrap_or_default(),
        ) {
            ("delete", "table", _) => *self = Model::default(),
            ("add", "table", _) => {}
            ("add", "set" | "map", name) => {
                let new = self.sets.insert(name.to_owned(), BTreeMap::new());
                assert!(new.is_none(), "{line}");
            }
            ("add", "chain", name) => {
                self.chains.entry(name.to_owned()).or_default();
            }
            ("add", "rule", name) => self.rules(name).push(rest.to_owned()),
            ("flush", "chain", name) => self.rules(name).clear(),
            ("delete", "chain", name) => {
                assert!(self.rules(name).is_empty(), "{line}");
                self.chains.remove(name);
            }
            ("add", "element", name) => {
                for (key, data) in elements(rest) {
                    let before = self.set(name).insert(key, data.clone());
                    assert!(before.is_none(), "{line}");
                }
            }
            ("delete", "element", name) => {
                for (key, _) in elements(rest) {
                    assert!(self.set(name).remove(&key).is_some(), "{line}");
                }
            }
            _ => panic!("{line}"),
        }
    }

    fn set(&mut self, name: &str) -> &mut BTreeMap<String, String> {
        self.sets
            .get_mut(name)
            .unwrap_or_else(|| panic!("no set {name}"))
    }

    fn rules(&mut self, name: &str) -> &mut Vec<String> {
        self.chains
            .get_mut(name)
            .unwrap_or_else(|| panic!("no chain {name}"))
    }

    /// Whatever leads to a chain leads to one that is there, and where a slot is
    /// chosen all of them hold an endpoint.
    fn check(&self) {
        let elements = self.sets.values().flatten();
        let rules = self.chains.values().flatten();
        for text in elements.map(|(_, data)| data).chain(rules) {
            for word in ["goto ", "jump "] {
                let chain = text
                    .split(word)
                    .nth(1)
                    .map(|rest| rest.split(' ').next().unwrap());
                assert!(
                    chain.is_none_or(|chain| self.chains.contains_key(chain)),
                    "{text}"
                );
            }
        }
        for (set, endpoints) in [
            ("services", "endpoints"),
            ("from-cluster", "endpoints"),
            ("from-outside", "endpoints"),
            ("node-ports", "node-port-endpoints"),
            ("node-ports-from-cluster", "node-port-endpoints"),
            ("node-ports-from-outside", "node-port-endpoints"),
        ] {
            for (key, data) in &self.sets[set] {
                let chain = data.split("goto ").nth(1).unwrap_or_default();
                let (name, count) = chain
                    .strip_prefix("node-port-")
                    .or(chain.strip_prefix("pick-"))
                    .map(|rest| {
                        rest.split_once('-')
                            .map_or((chain, rest), |(count, _)| (chain, count))
                    })
                    .unwrap_or_default();
                let Ok(count) = count.parse::<u32>() else {
                    continue;
                };
                let first = if name.contains("-local") && !name.contains("masquerade-not-local") {
                    65_536
                } else {
                    0
                };
                for slot in first..first + count {
                    let slot = format!("{key} . {slot}");
                    assert!(
                        self.sets[endpoints].contains_key(&slot),
                        "{slot} of {chain}"
                    );
                }
            }
        }
    }

    /// The same with slots in order: which endpoint has which one is chance.
    pub fn normalized(mut self) -> Model {
        for set in ["endpoints", "node-port-endpoints"] {
            let mut frontends: BTreeMap<(String, bool), (BTreeSet<u32>, Vec<String>)> =
                BTreeMap::new();
            for (key, data) in self.sets.remove(set).unwrap_or_default() {
                let (frontend, slot) = key.rsplit_once(" . ").unwrap();
                let slot: u32 = slot.parse().unwrap();
                let of = frontends
                    .entry((frontend.to_owned(), slot >= 65_536))
                    .or_default();
                of.0.insert(slot);
                of.1.push(data);
            }
            let slots = frontends
                .into_iter()
                .flat_map(|((frontend, _), (slots, mut data))| {
                    data.sort();
                    let keys = slots
                        .into_iter()
                        .map(move |slot| format!("{frontend} . {slot}"));
                    keys.zip(data).collect::<Vec<_>>()
                });
            self.sets.insert(set.to_owned(), slots.collect());
        }
        self
    }
}

/// Keys of elements, and what stands behind each.
fn elements(text: &str) -> Vec<(String, String)> {
    let inner = text
        .strip_prefix("{ ")
        .and_then(|text| text.strip_suffix(" }"));
    let each = inner.unwrap_or_else(|| panic!("{text}")).split(", ");
    each.map(|element| {
        let end = element.find(" comment ").or(element.find(" : "));
        let (key, rest) = element.split_at(end.unwrap_or(element.len()));
        (key.to_owned(), rest.to_owned())
    })
    .collect()
}
