//! Lists of the objects in the kernel.

use netlink::{Message, Request};
use nix::{errno::Errno, libc};
use tokio::time::Instant;

use super::{Chain, Element, HEADER, Ruleset, Set, TABLE, Table, answer, kind};
use crate::message::list;

// Types of attributes, which differ from one kind of message to another.
const CHAIN_HANDLE: u16 = 2;
const CHAIN_POLICY: u16 = 5;
const CHAIN_USE: u16 = 6;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const SET_HANDLE: u16 = 16;
/// `NFTA_SET_ELEM_LIST_TABLE`, `_SET` and `_ELEMENTS`
const ELEMENTS_SET: u16 = 2;
const ELEMENTS: u16 = 3;
/// `NFTA_LIST_ELEM` of `linux/netfilter/nf_tables.h`.
const ELEMENT: u16 = 1;
/// `NFTA_SET_ELEM_EXPIRATION` of `linux/netfilter/nf_tables.h`.
const EXPIRATION: u16 = 5;

/// The most elements in one message.
const MOST: usize = 100;

impl Ruleset {
    /// Answers a list; if `interrupted`, with half of it and the flag that it changed meanwhile.
    pub(crate) fn dump(&self, of: &Message<'_>, interrupted: bool) -> Result<Vec<Vec<u8>>, Errno> {
        let family = of.body.first().copied().unwrap_or_default();
        Ok(list(of, self.listed(of, family)?, interrupted))
    }

    fn listed(&self, of: &Message<'_>, family: u8) -> Result<Vec<Request>, Errno> {
        let text = |kind: u16| {
            let mut all = of.attributes(HEADER).flatten();
            all.find(|attribute| attribute.kind == kind)
                .and_then(|attribute| attribute.text().ok())
        };
        let tables = self
            .tables
            .iter()
            .filter(|((number, name), _)| {
                *number == family && text(TABLE).is_none_or(|asked| asked == name)
            })
            .map(|((_, name), table)| (&**name, &**table));
        Ok(match i32::from(of.kind & 0xff) {
            libc::NFT_MSG_GETTABLE => tables
                .map(|(_, table)| {
                    table
                        .attributes
                        .write(answer(kind(libc::NFT_MSG_NEWTABLE), family))
                })
                .collect(),
            libc::NFT_MSG_GETCHAIN => tables
                .flat_map(|(_, table)| {
                    let chains = table.chains.iter();
                    chains.map(move |(name, chain)| listed_chain(table, name, chain, family))
                })
                .collect(),
            libc::NFT_MSG_GETRULE => tables
                .flat_map(|(_, table)| &table.chains)
                .filter(|(name, _)| text(RULE_CHAIN).is_none_or(|asked| asked == *name))
                .flat_map(|(_, chain)| &chain.rules)
                .map(|rule| {
                    let message = answer(kind(libc::NFT_MSG_NEWRULE), family);
                    rule.attributes
                        .write(message.be64(RULE_HANDLE, rule.handle))
                })
                .collect(),
            libc::NFT_MSG_GETSET => tables
                .flat_map(|(_, table)| table.sets.values())
                .map(|set| {
                    let message = answer(kind(libc::NFT_MSG_NEWSET), family);
                    set.attributes.write(message.be64(SET_HANDLE, set.handle))
                })
                .collect(),
            libc::NFT_MSG_GETSETELEM => {
                let name = text(ELEMENTS_SET).ok_or(Errno::EINVAL)?;
                let table = text(TABLE).ok_or(Errno::EINVAL)?;
                let key = (family, table.to_owned());
                let there = self.tables.get(&key).ok_or(Errno::ENOENT)?;
                let set = there.sets.get(name).ok_or(Errno::ENOENT)?;
                listed_elements(set, table, name, family)
            }
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}

fn listed_chain(table: &Table, name: &str, chain: &Chain, family: u8) -> Request {
    let uses = chain.rules.len() + table.references(name);
    let message = answer(kind(libc::NFT_MSG_NEWCHAIN), family);
    let message = chain
        .attributes
        .write(numbered(message, chain.handle, uses));
    match chain.base {
        Some(_) => message.be32(CHAIN_POLICY, u32::from(!chain.drops)),
        None => message,
    }
}

/// Appends the number of a chain, and how many uses it has.
pub(super) fn numbered(message: Request, number: u64, uses: usize) -> Request {
    message
        .be64(CHAIN_HANDLE, number)
        .be32(CHAIN_USE, uses as u32)
}

fn listed_elements(set: &Set, table: &str, name: &str, family: u8) -> Vec<Request> {
    let now = Instant::now();
    let there: Vec<&Element> = set.elements.values().filter(|one| one.is_there()).collect();
    let messages = there.chunks(MOST).map(|some| {
        let message = answer(kind(libc::NFT_MSG_NEWSETELEM), family)
            .text(TABLE, table)
            .text(ELEMENTS_SET, name);
        message.nested(ELEMENTS, |message| {
            some.iter().fold(message, |message, element| {
                message.nested(ELEMENT, |message| {
                    let message = element.attributes.write(message);
                    match element.expires {
                        Some(at) => {
                            let left = at.saturating_duration_since(now).as_millis();
                            message.be64(EXPIRATION, left as u64)
                        }
                        None => message,
                    }
                })
            })
        })
    });
    messages.collect()
}
