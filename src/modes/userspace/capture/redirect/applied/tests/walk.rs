//! The path of a packet through tables, and our chains in them.

use std::{collections::HashSet, net::IpAddr};

use ipnet::IpNet;
use net::Protocol;
use simulated::model::{Chains, Tables};
use xtables::{
    rule::{BASE_CHAINS, Table, word},
    words::target,
};

/// A packet that begins a flow.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub address: IpAddr,
    pub protocol: Protocol,
    pub port: u16,
    /// Whether the address belongs to the node.
    pub is_local: bool,
}

/// The path of a packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Way {
    /// The target of the last rule and the text after it; `None` if no rule ended the path.
    pub end: Option<String>,
    /// Number of rules with which the packet was compared.
    pub rules: usize,
    /// Number of chains that the packet reached.
    pub chains: usize,
}

/// Queries about tables.
pub trait Walk {
    /// The rules of our chains.
    fn ours(&self, table: Table) -> impl Iterator<Item = (&String, &Vec<String>)>;

    /// Our chains to which no rule jumps.
    fn unused(&self) -> Vec<&String>;

    /// The path of a packet that enters `chain`.
    fn way(&self, table: Table, chain: &str, packet: Packet) -> Way;
}

impl Walk for Tables {
    fn ours(&self, table: Table) -> impl Iterator<Item = (&String, &Vec<String>)> {
        let chains = self.0.get(&table).into_iter().flatten();
        chains.filter(|(name, _)| !BASE_CHAINS.contains(&name.as_str()))
    }

    fn unused(&self) -> Vec<&String> {
        let used: HashSet<&str> = self
            .0
            .values()
            .flat_map(Chains::values)
            .flatten()
            .filter_map(|rule| target(rule))
            .collect();
        let ours = self.0.keys().flat_map(|table| self.ours(*table));
        let names = ours.map(|(name, _)| name);
        names.filter(|name| !used.contains(name.as_str())).collect()
    }

    fn way(&self, table: Table, chain: &str, packet: Packet) -> Way {
        let mut way = Way {
            end: None,
            rules: 0,
            chains: 0,
        };
        if let Some(chains) = self.0.get(&table) {
            walk(chains, chain, packet, &mut way);
        }
        way
    }
}

fn walk(chains: &Chains, chain: &str, packet: Packet, way: &mut Way) {
    way.chains += 1;
    for rule in &chains[chain] {
        way.rules += 1;
        let Some(target) = packet.led_by(rule) else {
            continue;
        };
        if chains.contains_key(target) {
            walk(chains, target, packet, way);
        } else {
            way.end = Some(target.to_owned());
        }
        if way.end.is_some() {
            return;
        }
    }
}

impl Packet {
    /// The target of `rule`, if it matches the packet.
    fn led_by(self, rule: &str) -> Option<&str> {
        let (matches, target) = rule.split_once("-j ")?;
        // Quoted text is a comment.
        let bare: String = matches.split('"').step_by(2).collect();
        let mut words = bare.split(' ').filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            if word == "--comment" {
                continue;
            }
            let value = words.next()?;
            let is_match = match word {
                "-d" => value.parse::<IpNet>().ok()?.contains(&self.address),
                "-p" => value == self::word(self.protocol),
                "--dport" => {
                    let (first, last) = value.split_once(':').unwrap_or((value, value));
                    (first.parse().ok()?..=last.parse().ok()?).contains(&self.port)
                }
                "--dst-type" => self.is_local,
                // The packet was not translated.
                "--ctstate" => value.contains("NEW"),
                "-m" => true,
                _ => panic!("{rule}"),
            };
            if !is_match {
                return None;
            }
        }
        Some(target)
    }
}
