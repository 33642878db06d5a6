//! nf_tables: tables with chains, rules, sets and their elements, changed by transactions.

mod dump;
mod packet;
mod rule;
#[cfg(test)]
mod tests;
mod transact;

use std::{collections::BTreeMap, sync::Arc};

use net::Family;
use netlink::{Message, Request};
use nftables::{Base, Datum, Expression, ListedSet, Verdict};
use nix::{errno::Errno, libc};
use tokio::time::Instant;

use super::{
    message::{Stored, answer, datagram},
    packet::Update,
};

/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;

/// The type of a message that asks how often tables were changed.
pub(super) const GET_GENERATION: u16 = kind(libc::NFT_MSG_GETGEN);

const fn kind(message: libc::c_int) -> u16 {
    netlink::netfilter_kind(libc::NFNL_SUBSYS_NFTABLES, message)
}

const NEW_GENERATION: u16 = kind(libc::NFT_MSG_NEWGEN);
const NEW_TABLE: u16 = kind(libc::NFT_MSG_NEWTABLE);
/// `NFTA_GEN_ID` of `linux/netfilter/nf_tables.h`.
const GENERATION_ID: u16 = 1;
/// `NFTA_TABLE_NAME`, which is 1 in all messages.
const TABLE: u16 = 1;
/// `NFTA_CHAIN_NAME` of `linux/netfilter/nf_tables.h`.
const CHAIN_NAME: u16 = 3;
/// `NFTA_RULE_CHAIN` and `NFTA_RULE_EXPRESSIONS`
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_LIST_ELEM` of `linux/netfilter/nf_tables.h`.
const LIST_ELEMENT: u16 = 1;
/// `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFTA_IMMEDIATE_DREG` and `NFTA_IMMEDIATE_DATA`
const IMMEDIATE_REGISTER: u16 = 1;
const IMMEDIATE_DATA: u16 = 2;
/// `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE` and `NFTA_VERDICT_CHAIN`
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// The rules of nf_tables of a network namespace.
#[derive(Clone, Default)]
pub struct Ruleset {
    tables: BTreeMap<(u8, String), Arc<Table>>,
    generation: u32,
    handles: u64,
    /// Tables that a transaction changed.
    changed: Vec<(u8, String)>,
    /// Notifications of changes that others made, for the listeners to receive next.
    notifications: Vec<Vec<u8>>,
    /// Elements whose keys begin with these octets are refused.
    refused: Option<(Errno, Box<[u8]>)>,
}

#[derive(Clone, Default)]
struct Table {
    attributes: Stored,
    chains: BTreeMap<String, Arc<Chain>>,
    sets: BTreeMap<String, Arc<Set>>,
}

#[derive(Clone)]
struct Chain {
    attributes: Stored,
    base: Option<Base>,
    /// Drops packets that reach its end.
    drops: bool,
    handle: u64,
    rules: Vec<Arc<Rule>>,
}

struct Rule {
    attributes: Stored,
    expressions: Vec<Expression>,
    handle: u64,
}

#[derive(Clone)]
struct Set {
    attributes: Stored,
    elements: BTreeMap<Key, Element>,
    /// The declaration, to compare with another one of the same name.
    declared: ListedSet,
    /// Its elements may be ranges.
    interval: bool,
    /// Octets of its keys.
    key: usize,
    /// Octets of the parts of a key, if it holds ranges of concatenations.
    parts: Vec<usize>,
    handle: u64,
}

/// Key of an element: its own key, the end of a range of concatenations, and whether it is the end
/// of a range of single values.
type Key = (Box<[u8]>, Option<Box<[u8]>>, bool);

#[derive(Clone)]
struct Element {
    attributes: Stored,
    data: Option<Datum>,
    expires: Option<Instant>,
}

impl Element {
    fn is_there(&self) -> bool {
        self.expires.is_none_or(|at| Instant::now() < at)
    }
}

impl Ruleset {
    /// Number of the last change.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Names of the tables of `family`.
    pub fn tables(&self, family: Family) -> impl Iterator<Item = &str> {
        let of = family.number();
        let all = self.tables.keys().filter(move |(number, _)| *number == of);
        all.map(|(_, name)| &**name)
    }

    /// Refuses elements whose keys begin with these octets from now on; `None`: takes all.
    pub fn refuse(&mut self, elements: Option<(Errno, Box<[u8]>)>) {
        self.refused = elements;
    }

    /// Deletes a table as another process would; false if there is none.
    pub fn delete_table(&mut self, family: Family, name: &str) -> bool {
        let key = (family.number(), name.to_owned());
        let was_there = self.tables.remove(&key).is_some();
        self.changed_by_other(was_there.then_some(key));
        was_there
    }

    /// Deletes the rules of the chain with this number, modulo how many there are.
    pub fn flush_chain(&mut self, family: Family, name: &str, at: usize) {
        self.edit(family, name, |table| {
            let count = table.chains.len().max(1);
            if let Some(chain) = table.chains.values_mut().nth(at % count) {
                Arc::make_mut(chain).rules.clear();
            }
        });
    }

    /// Deletes one element of the set with the number `set`, each number modulo how many
    /// there are.
    pub fn delete_element(&mut self, family: Family, name: &str, set: usize, at: usize) {
        self.edit(family, name, |table| {
            let filled = table.sets.values_mut();
            let filled = filled.filter(|set| !set.elements.is_empty());
            let mut filled: Vec<&mut Arc<Set>> = filled.collect();
            let count = filled.len().max(1);
            if let Some(set) = filled.get_mut(set % count) {
                let key = set.elements.keys().nth(at % set.elements.len()).cloned();
                if let Some(key) = key {
                    Arc::make_mut(set).elements.remove(&key);
                }
            }
        });
    }

    /// Adds an empty chain that is not ours.
    pub fn add_chain(&mut self, family: Family, name: &str, chain: &str) {
        self.handles += 1;
        let handle = self.handles;
        let attributes = transact::named_chain(name, chain);
        self.edit(family, name, |table| {
            table.chains.entry(chain.to_owned()).or_insert_with(|| {
                Arc::new(Chain {
                    attributes,
                    base: None,
                    drops: false,
                    handle,
                    rules: Vec::new(),
                })
            });
        });
    }

    /// Makes a table that is not ours, with a chain.
    pub fn add_table(&mut self, family: Family, name: &str) {
        let key = (family.number(), name.to_owned());
        let request = Request::new(NEW_TABLE, 0, "", "").nfgenmsg(key.0);
        let bytes = datagram(&request.text(TABLE, name), 0, 0);
        let mut messages = netlink::Messages::new(&bytes).flatten();
        if let Some(message) = messages.next() {
            let table = Table {
                attributes: Stored::of(message.attributes(HEADER), &[]),
                ..Table::default()
            };
            self.tables.entry(key.clone()).or_insert(Arc::new(table));
        }
        self.changed_by_other(Some(key));
        self.add_chain(family, name, "foreign");
    }

    /// Adds the element that the kernel adds by itself when a rule has it update a map.
    pub fn remember(&mut self, family: Family, table: &str, update: &Update) {
        let key = (family.number(), table.to_owned());
        let Some(table) = self.tables.get_mut(&key).map(Arc::make_mut) else {
            return;
        };
        let Some(set) = table.sets.get_mut(&*update.set).map(Arc::make_mut) else {
            return;
        };
        let key = (update.key.clone(), None, false);
        let expires = update.timeout.map(|timeout| Instant::now() + timeout);
        if let Some(there) = set.elements.get_mut(&key).filter(|there| there.is_there()) {
            there.expires = expires;
            return;
        }
        let element = Element {
            attributes: transact::of_element(&update.key, update.data.as_deref(), update.timeout),
            data: update.data.clone().map(Datum::Value),
            expires,
        };
        set.elements.insert(key, element);
    }

    fn edit(&mut self, family: Family, name: &str, change: impl FnOnce(&mut Table)) {
        let key = (family.number(), name.to_owned());
        if let Some(table) = self.tables.get_mut(&key) {
            change(Arc::make_mut(table));
            self.changed_by_other(Some(key));
        }
    }

    fn changed_by_other(&mut self, table: Option<(u8, String)>) {
        if let Some((family, name)) = table {
            self.count([answer(NEW_TABLE, family).text(TABLE, &name)]);
        }
    }

    /// Counts a change, of which there are these notifications.
    pub(super) fn count(&mut self, changes: impl IntoIterator<Item = Request>) {
        self.generation = self.generation.wrapping_add(1);
        let generation = answer(NEW_GENERATION, 0).be32(GENERATION_ID, self.generation);
        let all = changes.into_iter().chain([generation]);
        let all = all.map(|message| datagram(&message, 0, 0));
        self.notifications.extend(all);
    }

    /// Returns a chain of such a table, as it is listed.
    pub(super) fn listed_chain(
        family: Family,
        (table, name, number, uses): (&str, &str, u64, usize),
    ) -> Request {
        let message = answer(kind(libc::NFT_MSG_NEWCHAIN), family.number());
        dump::numbered(message, number, uses)
            .text(TABLE, table)
            .text(CHAIN_NAME, name)
    }

    /// The notification of a change of such a table: of a chain, or of a rule in it and the chain
    /// that it jumps to.
    pub(super) fn notification(
        family: Family,
        table: &str,
        chain: &str,
        rule: Option<Option<&str>>,
    ) -> Request {
        let Some(leads_to) = rule else {
            let message = answer(kind(libc::NFT_MSG_NEWCHAIN), family.number());
            return message.text(TABLE, table).text(CHAIN_NAME, chain);
        };
        let message = answer(kind(libc::NFT_MSG_NEWRULE), family.number());
        let message = message.text(TABLE, table).text(RULE_CHAIN, chain);
        message.nested(RULE_EXPRESSIONS, |list| match leads_to {
            Some(chain) => list.nested(LIST_ELEMENT, |one| {
                let verdict = |data: Request| {
                    data.nested(DATA_VERDICT, |verdict| {
                        let verdict = verdict.be32(VERDICT_CODE, libc::NFT_JUMP as u32);
                        verdict.text(VERDICT_CHAIN, chain)
                    })
                };
                one.text(EXPRESSION_NAME, "immediate")
                    .nested(EXPRESSION_DATA, |data| {
                        data.be32(IMMEDIATE_REGISTER, libc::NFT_REG_VERDICT as u32)
                            .nested(IMMEDIATE_DATA, verdict)
                    })
            }),
            None => list,
        })
    }

    /// Returns the notifications for listeners of changes since the last call.
    pub(super) fn take_notifications(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.notifications)
    }

    /// Answers a request for one thing.
    pub(super) fn get(&self, message: &Message<'_>) -> Result<Vec<u8>, Errno> {
        if message.kind != GET_GENERATION {
            return Err(Errno::EOPNOTSUPP);
        }
        let generation = answer(NEW_GENERATION, 0).be32(GENERATION_ID, self.generation);
        Ok(datagram(&generation, 0, message.sequence))
    }
}

/// Returns the chain to which a verdict jumps.
fn leads_to(verdict: &Verdict) -> Option<&str> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
        _ => None,
    }
}

impl Table {
    /// Returns how many rules and elements jump to a chain.
    fn references(&self, name: &str) -> usize {
        let of_rules = self.chains.values().flat_map(|chain| &chain.rules);
        let of_rules = of_rules.flat_map(|rule| &rule.expressions);
        let of_rules = of_rules.filter_map(|one| one.verdict());
        let of_rules = of_rules.filter(|verdict| leads_to(verdict) == Some(name));
        let elements = self.sets.values().flat_map(|set| set.elements.values());
        let elements = elements.filter(|element| match &element.data {
            Some(Datum::Verdict(verdict)) => leads_to(verdict) == Some(name),
            _ => false,
        });
        of_rules.count() + elements.count()
    }
}
