//! iptables and ip6tables: tables with chains of rules, which its programs change. Both engines of
//! the kernel are there; they differ in what they refuse at which line, and in how changes are
//! noticed.

mod packet;
mod restore;
mod rule;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    net::IpAddr,
    sync::Arc,
};

use net::Family;
use netlink::Request;
use nix::errno::Errno;
use tokio::time::Instant;
use xtables::{Engine, info::Size};

use self::rule::Rule;
pub(super) use self::{
    packet::{Around, Scheduling},
    restore::Batch,
};
use crate::{nftables::Ruleset, packet::Update};

/// The tables, each with its chains of the kernel, in the order of iptables-save.
const TABLES: [(&str, &[&str]); 3] = [
    (
        "mangle",
        &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
    ),
    ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
    ("nat", &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"]),
];

/// The rules of iptables of a network namespace.
#[derive(Clone)]
pub struct Xtables {
    /// The engine that holds them.
    pub engine: Engine,
    tables: BTreeMap<(Family, &'static str), Arc<Table>>,
    /// Sources that rules remembered, by the name of the list.
    recent: BTreeMap<Arc<str>, BTreeMap<IpAddr, Instant>>,
    /// Rules with this text are refused.
    refused: Option<String>,
    /// The number of the last chain.
    handles: u64,
    /// The notifications of nf_tables for the last changes.
    changes: Vec<Request>,
}

#[derive(Clone, Default)]
struct Table {
    chains: BTreeMap<String, Chain>,
}

#[derive(Clone)]
struct Chain {
    is_base: bool,
    handle: u64,
    rules: Vec<Arc<Rule>>,
}

impl Default for Xtables {
    fn default() -> Xtables {
        Xtables {
            engine: Engine::Legacy,
            tables: BTreeMap::new(),
            recent: BTreeMap::new(),
            refused: None,
            handles: 0,
            changes: Vec::new(),
        }
    }
}

impl Table {
    /// Returns how many rules jump to a chain.
    fn references(&self, chain: &str) -> usize {
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        rules.filter(|rule| rule.leads_to() == Some(chain)).count()
    }

    /// The notifications of nf_tables for the change to the table `now`.
    fn changes(&self, now: &Table, family: Family, name: &str) -> Vec<Request> {
        let mut changes = Vec::new();
        let names: BTreeSet<&String> = self.chains.keys().chain(now.chains.keys()).collect();
        for chain in names {
            let both = [self, now].map(|table| table.chains.get(chain));
            let [before, after] = both.map(|chain| chain.map(|chain| chain.handle));
            if before != after {
                changes.push(Ruleset::notification(family, name, chain, None));
            }
            let [before, after] = both.map(|chain| chain.map_or(&[][..], |chain| &chain.rules));
            if before != after {
                let same = before.iter().zip(after).take_while(|(a, b)| a == b).count();
                let rules = before[same..].iter().chain(&after[same..]);
                changes.extend(
                    rules.map(|rule| {
                        Ruleset::notification(family, name, chain, Some(rule.leads_to()))
                    }),
                );
            }
        }
        changes
    }

    /// Returns the chains to which rules jump from one of them, itself among them.
    fn reached<'a>(&'a self, from: &'a str) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut next = vec![from];
        while let Some(name) = next.pop() {
            if let Some(chain) = self.chains.get(name)
                && found.insert(name)
            {
                next.extend(chain.rules.iter().filter_map(|rule| rule.leads_to()));
            }
        }
        found
    }
}

/// Finds the table of that name, with the kernel's chains in it.
fn known(name: &str) -> Option<(&'static str, &'static [&'static str])> {
    TABLES.into_iter().find(|(table, _)| *table == name)
}

impl Xtables {
    /// Refuses rules that have this text from now on; `None`: takes all.
    pub fn refuse(&mut self, text: Option<String>) {
        self.refused = text;
    }

    /// Adds a source to a list, as the kernel does where a rule says so.
    pub fn remember(&mut self, update: &Update) {
        let ip = match <[u8; 4]>::try_from(&*update.key) {
            Ok(octets) => IpAddr::from(octets),
            Err(_) => match <[u8; 16]>::try_from(&*update.key) {
                Ok(octets) => IpAddr::from(octets),
                Err(_) => return,
            },
        };
        let list = self.recent.entry(Arc::clone(&update.set)).or_default();
        list.insert(ip, Instant::now());
    }

    /// Returns a table, which is made when it is first asked for.
    fn table_mut(&mut self, family: Family, name: &str) -> Option<&mut Table> {
        let (name, base) = known(name)?;
        let handles = &mut self.handles;
        let table = self.tables.entry((family, name)).or_insert_with(|| {
            let chains = base.iter().map(|name| {
                *handles += 1;
                let chain = Chain {
                    is_base: true,
                    handle: *handles,
                    rules: Vec::new(),
                };
                ((*name).to_owned(), chain)
            });
            Arc::new(Table {
                chains: chains.collect(),
            })
        });
        Some(Arc::make_mut(table))
    }

    /// Changes a table as another process would, if it is there. Returns whether it is
    /// different now.
    pub(super) fn edit(&mut self, family: Family, name: &str, edit: Edit) -> bool {
        let Some((name, _)) = known(name) else {
            return false;
        };
        let Some(table) = self.tables.get_mut(&(family, name)) else {
            return false;
        };
        let before = Arc::clone(table);
        let changed = edit.make(Arc::make_mut(table), &mut self.handles);
        if changed {
            let now = Arc::clone(table);
            self.changes.extend(before.changes(&now, family, name));
            self.changed();
        }
        changed
    }

    /// The name of a chain for which `is_meant` is true, from any table.
    pub fn find_chain(&self, is_meant: fn(&str) -> bool) -> Option<&str> {
        let mut chains = self.tables.values().flat_map(|table| table.chains.keys());
        chains.find(|name| is_meant(name)).map(String::as_str)
    }

    /// Takes the notifications of nf_tables for the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<Request> {
        std::mem::take(&mut self.changes)
    }

    /// Returns how many rules match against each set.
    pub(super) fn references_to_sets(&self) -> BTreeMap<String, u32> {
        let chains = self.tables.values().flat_map(|table| table.chains.values());
        let rules = chains.flat_map(|chain| &chain.rules);
        let mut references = BTreeMap::new();
        for name in rules.flat_map(|rule| rule.sets()) {
            *references.entry(name.to_owned()).or_default() += 1;
        }
        references
    }

    /// Records that something is different now.
    fn changed(&mut self) {
        // A list is removed with the last rule that uses it.
        let used: BTreeSet<&str> = self
            .tables
            .values()
            .flat_map(|table| table.chains.values())
            .flat_map(|chain| &chain.rules)
            .flat_map(|rule| rule.lists())
            .collect();
        self.recent.retain(|list, _| used.contains(&**list));
    }

    /// Returns whether there is a rule of this text in a chain.
    pub fn has_rule(&self, family: Family, table: &str, chain: &str, text: &str) -> bool {
        let mut tables = self.tables.iter();
        let table = tables.find(|((of, name), _)| *of == family && *name == table);
        let chain = table.and_then(|(_, table)| table.chains.get(chain));
        chain.is_some_and(|chain| chain.rules.iter().any(|rule| rule.text == text))
    }

    /// Prints a table as iptables-save does, or all of them.
    pub(super) fn saved(&mut self, family: Family, table: Option<&str>) -> String {
        // The program of the legacy engine makes the table that it reads.
        if let (Engine::Legacy, Some(name)) = (self.engine, table) {
            self.table_mut(family, name);
        }
        let mut saved = String::new();
        for (name, base) in TABLES {
            let Some(table) = self
                .tables
                .get(&(family, name))
                .filter(|_| table.is_none_or(|asked| asked == name))
            else {
                continue;
            };
            // Writing into a String does not fail.
            let _ = writeln!(saved, "*{name}");
            let own = table.chains.iter().filter(|(_, chain)| !chain.is_base);
            let own = own.map(|(name, chain)| (name.as_str(), "-", chain));
            let base = base.iter();
            let base = base.map(|name| (*name, "ACCEPT", &table.chains[*name]));
            let chains: Vec<_> = base.chain(own).collect();
            for (name, policy, _) in &chains {
                let _ = writeln!(saved, ":{name} {policy} [0:0]");
            }
            for (name, _, chain) in &chains {
                for rule in &chain.rules {
                    let space = if rule.text.is_empty() { "" } else { " " };
                    let _ = writeln!(saved, "-A {name}{space}{}", rule.text);
                }
            }
            saved += "COMMIT\n";
        }
        saved
    }

    /// Size of a table of the legacy engine, which is created if it was not there.
    pub(super) fn size(&mut self, family: Family, name: &str) -> Result<Size, Errno> {
        let table = self.table_mut(family, name).ok_or(Errno::ENOENT)?;
        let chains = table.chains.values();
        let of_chains = chains.map(|chain| chain.rules.len() as u32 + 2);
        let rules = table.chains.values().flat_map(|chain| &chain.rules);
        // The size of rules, except those that a few octets of padding make alike.
        let of_rules = rules.map(|rule| 152 + 40 * rule.asks.len() as u32);
        Ok(Size {
            entries: of_chains.sum(),
            bytes: of_rules.sum(),
        })
    }

    /// Lists the chains of a family: table, name, number, and how many rules are in them or jump to
    /// them.
    pub(super) fn chains(
        &self,
        family: Family,
    ) -> impl Iterator<Item = (&'static str, &str, u64, usize)> {
        let tables = self.tables.iter();
        let tables = tables.filter(move |((of, _), _)| *of == family);
        tables.flat_map(|((_, of), table)| {
            table.chains.iter().map(move |(name, chain)| {
                let uses = chain.rules.len() + table.references(name);
                (*of, name.as_str(), chain.handle, uses)
            })
        })
    }
}

/// Returns whether a chain is meant.
pub type Names = fn(&str) -> bool;

/// Changes that another process makes to a table. Numbers are modulo how many there are.
#[derive(Clone, Copy, Debug)]
pub enum Edit {
    /// Takes the rules away of all chains.
    Flush,
    /// Takes the rules away of the chain with this number, of those of these names.
    FlushChain(Names, usize),
    /// Takes the rule with this number away, of those in or to chains of these names.
    DeleteRule(Names, usize),
    /// Deletes chains to which no rule jumps, of these names.
    DeleteChains(Names),
    /// Adds a chain of its own, and at the top of a chain of the kernel a rule that jumps to it.
    Enter {
        /// The chain of its own.
        chain: &'static str,
        /// The chain of the kernel whose rule jumps there.
        from: &'static str,
    },
    /// Puts a rule that jumps to a chain of its own at the end of the chain with this number, of
    /// those of these names.
    Append(Names, usize),
}

impl Edit {
    /// Makes the change. Returns whether anything is different.
    fn make(self, table: &mut Table, handles: &mut u64) -> bool {
        match self {
            Edit::Flush => {
                let chains = table.chains.values_mut();
                let mut chains = chains.filter(|chain| !chain.rules.is_empty());
                let changed = chains.by_ref().map(|chain| chain.rules.clear()).count();
                changed > 0
            }
            Edit::FlushChain(is_ours, at) => {
                let chains = table.chains.iter_mut();
                let chains =
                    chains.filter(|(name, chain)| is_ours(name) && !chain.rules.is_empty());
                let mut chains: Vec<_> = chains.collect();
                let count = chains.len().max(1);
                let chain = chains.get_mut(at % count);
                chain.map(|(_, chain)| chain.rules.clear()).is_some()
            }
            Edit::DeleteRule(is_ours, at) => {
                let mut found = Vec::new();
                for (name, chain) in &table.chains {
                    for (at, rule) in chain.rules.iter().enumerate() {
                        if is_ours(name) || rule.leads_to().is_some_and(is_ours) {
                            found.push((name.clone(), at));
                        }
                    }
                }
                let Some((name, at)) = found.get(at % found.len().max(1)) else {
                    return false;
                };
                let chain = table.chains.get_mut(name);
                chain.map(|chain| chain.rules.remove(*at)).is_some()
            }
            Edit::DeleteChains(is_ours) => {
                let before = table.chains.len();
                let unused = table.chains.keys();
                let unused = unused.filter(|name| is_ours(name) && table.references(name) == 0);
                let unused: Vec<String> = unused.cloned().collect();
                table.chains.retain(|name, _| !unused.contains(name));
                table.chains.len() != before
            }
            Edit::Enter { chain, from } => {
                if table.chains.contains_key(chain) {
                    return false;
                }
                *handles += 1;
                let made = Chain {
                    is_base: false,
                    handle: *handles,
                    rules: Vec::new(),
                };
                table.chains.insert(chain.to_owned(), made);
                let from = table.chains.get_mut(from);
                from.map(|from| from.rules.insert(0, jump(chain))).is_some()
            }
            Edit::Append(is_ours, at) => {
                let chains = table.chains.iter_mut();
                let mut ours: Vec<_> = chains.filter(|(name, _)| is_ours(name)).collect();
                let count = ours.len().max(1);
                let chain = ours.get_mut(at % count);
                let rule = Rule::parse(&rule::words("-j RETURN"), Family::V4, |_| false);
                let (Some((_, chain)), Ok(rule)) = (chain, rule) else {
                    return false;
                };
                chain.rules.push(Arc::new(rule));
                true
            }
        }
    }
}

/// Returns a rule that jumps to a chain.
fn jump(chain: &str) -> Arc<Rule> {
    Arc::new(Rule {
        text: format!("-j {chain}"),
        asks: Vec::new(),
        target: rule::Target::Jump(chain.to_owned()),
    })
}
