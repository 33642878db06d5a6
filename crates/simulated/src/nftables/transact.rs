//! Transactions: carried out whole or not at all (`nfnetlink_rcv_batch` of
//! `net/netfilter/nfnetlink.c`, `net/netfilter/nf_tables_api.c`).

use std::{sync::Arc, time::Duration};

use netlink::{Attribute, Malformed, Message, Messages, Request};
use nftables::{Datum, ListedChain, ListedRule, ListedSet, Policy};
use nix::{errno::Errno, libc};
use tokio::time::Instant;

use super::{
    super::message::{Stored, acknowledgement, datagram},
    Chain, Element, GENERATION_ID, HEADER, Key, Rule, Ruleset, Set, TABLE, Table, leads_to,
};

/// `NFTA_CHAIN_NAME`, `NFTA_CHAIN_HOOK` and `NFTA_CHAIN_POLICY`
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
/// `NFTA_RULE_CHAIN` of `linux/netfilter/nf_tables.h`.
const RULE_CHAIN: u16 = 2;
/// `NFTA_SET_NAME` and `NFTA_SET_ELEM_LIST_SET`
const SET_NAME: u16 = 2;
/// `NFTA_SET_FLAGS`, and `NFT_SET_INTERVAL` among them.
const SET_FLAGS: u16 = 3;
const INTERVAL: u32 = 4;
/// `NFTA_SET_KEY_LEN` of `linux/netfilter/nf_tables.h`.
const SET_KEY_LENGTH: u16 = 5;
/// `NFTA_SET_DESC` and `NFTA_SET_DESC_CONCAT`
const SET_DESCRIPTION: u16 = 9;
const PARTS: u16 = 2;
/// `NFTA_SET_ID`, a number within the transaction.
const SET_ID: u16 = 10;
/// `NFTA_SET_ELEM_LIST_ELEMENTS` of `linux/netfilter/nf_tables.h`.
const ELEMENTS: u16 = 3;
// enum nft_set_elem_attributes
const KEY: u16 = 1;
const DATA: u16 = 2;
const FLAGS: u16 = 3;
const TIMEOUT: u16 = 4;
const EXPIRATION: u16 = 5;
const KEY_END: u16 = 10;
/// `NFTA_DATA_VALUE` of `linux/netfilter/nf_tables.h`.
const VALUE: u16 = 1;
/// `NFT_SET_ELEM_INTERVAL_END` of `linux/netfilter/nf_tables.h`.
const F_END: u32 = 1;

impl Ruleset {
    /// Carries a transaction out and returns the answers. `refusal`: one of the changes
    /// is refused, by its number among them modulo how many there are.
    pub(crate) fn transact(
        &mut self,
        messages: &[Message<'_>],
        refusal: Option<(Errno, usize)>,
    ) -> Vec<Vec<u8>> {
        let [begin, changes @ .., _end] = messages else {
            return Vec::new();
        };
        if let Some(asked) = number(begin, GENERATION_ID)
            && asked != self.generation
        {
            return vec![acknowledgement(begin, Err(Errno::ERESTART))];
        }
        let mut next = self.clone();
        next.changed.clear();
        let refused = refusal.map(|(errno, at)| (errno, by_content(changes, at)));
        let (mut answers, mut failed) = (Vec::new(), false);
        for (at, message) in changes.iter().enumerate() {
            let outcome = match refused {
                Some((errno, refused)) if refused == at => Err(errno),
                _ => next.carry_out(message),
            };
            failed |= outcome.is_err();
            if outcome.is_err() || message.flags & libc::NLM_F_ACK as u16 != 0 {
                answers.push(acknowledgement(message, outcome));
            }
        }
        if !failed && !next.changed.is_empty() {
            next.generation = next.generation.wrapping_add(1);
            *self = next;
        }
        answers
    }

    fn carry_out(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        let family = message.body.first().copied().ok_or(Errno::EINVAL)?;
        let key = (family, text(message, TABLE)?.to_owned());
        match i32::from(message.kind & 0xff) {
            libc::NFT_MSG_NEWTABLE => {
                if self.tables.contains_key(&key) {
                    return Ok(());
                }
                let table = Table {
                    attributes: Stored::of(message.attributes(HEADER), &[]),
                    ..Table::default()
                };
                self.tables.insert(key.clone(), Arc::new(table));
            }
            libc::NFT_MSG_DELTABLE => {
                self.tables.remove(&key).ok_or(Errno::ENOENT)?;
            }
            kind => {
                if kind == libc::NFT_MSG_NEWSETELEM
                    && let Some((errno, octets)) = &self.refused
                    && elements(message)?
                        .iter()
                        .any(|((key, ..), _)| key.starts_with(octets))
                {
                    return Err(*errno);
                }
                self.handles += 1;
                let handle = self.handles;
                let table = self.tables.get_mut(&key).ok_or(Errno::ENOENT)?;
                if !Arc::make_mut(table).carry_out(message, handle)? {
                    return Ok(());
                }
            }
        }
        self.changed.push(key);
        Ok(())
    }
}

/// Index of one of several messages, chosen by `at` and their content: the result depends neither
/// on the order of messages nor on that of elements in one, which may differ between runs with the
/// same seed.
fn by_content(messages: &[Message<'_>], at: usize) -> usize {
    let content = |index: &usize| {
        let message = &messages[*index];
        let sum: u64 = message.body.iter().map(|octet| u64::from(*octet)).sum();
        (message.kind, message.body.len(), sum)
    };
    let mut all: Vec<usize> = (0..messages.len()).collect();
    all.sort_by_key(content);
    all.get(at % messages.len().max(1)).copied().unwrap_or(0)
}

impl Table {
    /// Makes a change within the table; false if it makes no difference.
    fn carry_out(&mut self, message: &Message<'_>, handle: u64) -> Result<bool, Errno> {
        match i32::from(message.kind & 0xff) {
            libc::NFT_MSG_NEWCHAIN => self.new_chain(message, handle),
            libc::NFT_MSG_DELCHAIN => self.delete_chain(text(message, CHAIN_NAME)?),
            libc::NFT_MSG_NEWRULE => self.new_rule(message, handle),
            libc::NFT_MSG_DELRULE => {
                let chain = self.chain(text(message, RULE_CHAIN)?)?;
                let had = !chain.rules.is_empty();
                chain.rules.clear();
                Ok(had)
            }
            libc::NFT_MSG_NEWSET => self.new_set(message, handle),
            libc::NFT_MSG_DELSET => self.delete_set(text(message, SET_NAME)?),
            libc::NFT_MSG_NEWSETELEM => self.new_elements(message),
            libc::NFT_MSG_DELSETELEM => self.delete_elements(message),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn chain(&mut self, name: &str) -> Result<&mut Chain, Errno> {
        let chain = self.chains.get_mut(name).map(Arc::make_mut);
        chain.ok_or(Errno::ENOENT)
    }

    fn new_chain(&mut self, message: &Message<'_>, handle: u64) -> Result<bool, Errno> {
        let listed = ListedChain::read(*message).map_err(|_| Errno::EINVAL)?;
        let name = text(message, CHAIN_NAME)?;
        let policy = number(message, CHAIN_POLICY);
        if let Ok(there) = self.chain(name) {
            let base = listed
                .chain
                .base
                .map(|base| (base.kind, base.hook, base.priority));
            let was = there.base.map(|base| (base.kind, base.hook, base.priority));
            if base.is_some() && base != was {
                return Err(Errno::EEXIST);
            }
            if policy.is_some() && was.is_none() {
                return Err(Errno::EOPNOTSUPP);
            }
            there.drops = policy.map_or(there.drops, |policy| policy == 0);
            return Ok(true);
        }
        let is_base = attribute(message, CHAIN_HOOK).is_some();
        if policy.is_some() && !is_base {
            return Err(Errno::EOPNOTSUPP);
        }
        let chain = Chain {
            attributes: Stored::of(message.attributes(HEADER), &[CHAIN_POLICY]),
            base: listed.chain.base,
            drops: listed.chain.base.is_some_and(|b| b.policy == Policy::Drop),
            handle,
            rules: Vec::new(),
        };
        self.chains.insert(name.to_owned(), Arc::new(chain));
        Ok(true)
    }

    fn delete_chain(&mut self, name: &str) -> Result<bool, Errno> {
        self.chain(name)?;
        let own = |rule: &Arc<Rule>| {
            let mut all = rule.expressions.iter();
            all.any(|one| one.verdict().and_then(leads_to) == Some(name))
        };
        let by_itself = self
            .chain(name)?
            .rules
            .iter()
            .filter(|rule| own(rule))
            .count();
        if self.references(name) > by_itself {
            return Err(Errno::EBUSY);
        }
        self.chains.remove(name);
        Ok(true)
    }

    fn new_rule(&mut self, message: &Message<'_>, handle: u64) -> Result<bool, Errno> {
        let listed = ListedRule::read(*message).map_err(|_| Errno::EINVAL)?;
        self.chain(text(message, RULE_CHAIN)?)?;
        for one in &listed.expressions {
            if let Some(verdict) = one.verdict() {
                self.may_lead(verdict)?;
            }
            if let Some(set) = one.set() {
                self.sets.get(set).ok_or(Errno::ENOENT)?;
            }
        }
        let rule = Rule {
            attributes: Stored::of(message.attributes(HEADER), &[]),
            expressions: listed.expressions,
            handle,
        };
        let chain = self.chain(text(message, RULE_CHAIN)?)?;
        chain.rules.push(Arc::new(rule));
        Ok(true)
    }

    /// # Errors
    /// When there is no such chain, or the kernel calls it by itself.
    fn may_lead(&self, verdict: &nftables::Verdict) -> Result<(), Errno> {
        match leads_to(verdict).map(|chain| self.chains.get(chain)) {
            Some(None) => Err(Errno::ENOENT),
            Some(Some(chain)) if chain.base.is_some() => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    fn new_set(&mut self, message: &Message<'_>, handle: u64) -> Result<bool, Errno> {
        let declared = ListedSet::read(*message).map_err(|_| Errno::EINVAL)?;
        let name = text(message, SET_NAME)?;
        if let Some(there) = self.sets.get(name) {
            let same = there.declared == declared;
            // Its time-outs may be different ones now.
            return if same { Ok(true) } else { Err(Errno::EEXIST) };
        }
        let set = Set {
            attributes: Stored::of(message.attributes(HEADER), &[SET_ID]),
            elements: Default::default(),
            declared,
            interval: number(message, SET_FLAGS).is_some_and(|flags| flags & INTERVAL != 0),
            key: number(message, SET_KEY_LENGTH).unwrap_or(0) as usize,
            parts: parts(message).map_err(|_| Errno::EINVAL)?,
            handle,
        };
        self.sets.insert(name.to_owned(), Arc::new(set));
        Ok(true)
    }

    fn delete_set(&mut self, name: &str) -> Result<bool, Errno> {
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        let mut expressions = rules.flat_map(|rule| &rule.expressions);
        if expressions.any(|one| one.set() == Some(name)) {
            return Err(Errno::EBUSY);
        }
        self.sets.remove(name).map(|_| true).ok_or(Errno::ENOENT)
    }

    fn new_elements(&mut self, message: &Message<'_>) -> Result<bool, Errno> {
        let name = text(message, SET_NAME)?;
        let mut differs = false;
        for (key, element) in elements(message)? {
            if let Some(Datum::Verdict(verdict)) = &element.data {
                self.may_lead(verdict)?;
            }
            let set = self.sets.get_mut(name).map(Arc::make_mut);
            let set = set.ok_or(Errno::ENOENT)?;
            match set.elements.get(&key).filter(|there| there.is_there()) {
                Some(there) if there.data != element.data => return Err(Errno::EEXIST),
                Some(_) => {}
                None => {
                    set.elements.insert(key, element);
                    differs = true;
                }
            }
        }
        self.sets.get(name).map(|_| differs).ok_or(Errno::ENOENT)
    }

    fn delete_elements(&mut self, message: &Message<'_>) -> Result<bool, Errno> {
        let set = self.sets.get_mut(text(message, SET_NAME)?);
        let set = Arc::make_mut(set.ok_or(Errno::ENOENT)?);
        for (key, _) in elements(message)? {
            let was = set.elements.remove(&key);
            was.filter(Element::is_there).ok_or(Errno::ENOENT)?;
        }
        Ok(true)
    }
}

/// Returns the elements in a message.
fn elements(message: &Message<'_>) -> Result<Vec<(Key, Element)>, Errno> {
    let list = attribute(message, ELEMENTS);
    let list = list.into_iter().flat_map(|list| list.nested().flatten());
    list.map(|one| read_element(one).ok_or(Errno::EINVAL))
        .collect()
}

fn read_element(of: Attribute<'_>) -> Option<(Key, Element)> {
    let (mut key, mut end, mut flags) = (None, None, 0);
    let (mut data, mut timeout, mut expires) = (None, None, None);
    for one in of.nested() {
        let one = one.ok()?;
        match one.kind {
            KEY => key = Some(Datum::octets(one).ok()?),
            KEY_END => end = Some(Datum::octets(one).ok()?),
            DATA => data = Some(Datum::read(one).ok()?),
            FLAGS => flags = one.be32().ok()?,
            TIMEOUT => timeout = Some(Duration::from_millis(one.be64().ok()?)),
            EXPIRATION => expires = Some(Duration::from_millis(one.be64().ok()?)),
            _ => {}
        }
    }
    let lasts = expires.or(timeout);
    let element = Element {
        attributes: Stored::of(of.nested(), &[EXPIRATION]),
        data,
        expires: lasts.map(|lasts| Instant::now() + lasts),
    };
    Some(((key?, end, flags & F_END != 0), element))
}

/// Attributes of an element with this key and these data.
pub(super) fn of_element(key: &[u8], data: Option<&[u8]>, timeout: Option<Duration>) -> Stored {
    let mut request = Request::new(0, 0, "", "");
    request = request.nested(KEY, |r| r.attribute(VALUE, key));
    if let Some(data) = data {
        request = request.nested(DATA, |r| r.attribute(VALUE, data));
    }
    if let Some(timeout) = timeout {
        request = request.be64(TIMEOUT, timeout.as_millis() as u64);
    }
    stored(&request, 0)
}

/// Attributes of a chain that only has a name.
pub(super) fn named_chain(table: &str, name: &str) -> Stored {
    let request = Request::new(0, 0, "", "").nfgenmsg(0);
    stored(&request.text(TABLE, table).text(CHAIN_NAME, name), HEADER)
}

fn stored(request: &Request, header: usize) -> Stored {
    let bytes = datagram(request, 0, 0);
    let message = Messages::new(&bytes).flatten().next();
    message.map_or_else(Stored::default, |message| {
        Stored::of(message.attributes(header), &[])
    })
}

fn attribute<'a>(message: &Message<'a>, kind: u16) -> Option<Attribute<'a>> {
    let mut all = message.attributes(HEADER).flatten();
    all.find(|attribute| attribute.kind == kind)
}

fn text<'a>(message: &Message<'a>, kind: u16) -> Result<&'a str, Errno> {
    let text = attribute(message, kind).and_then(|attribute| attribute.text().ok());
    text.ok_or(Errno::EINVAL)
}

/// Returns the octets of the parts of a key; nothing for a set without ranges of concatenations.
fn parts(message: &Message<'_>) -> Result<Vec<usize>, Malformed> {
    let mut parts = Vec::new();
    for inner in attribute(message, SET_DESCRIPTION)
        .iter()
        .flat_map(Attribute::nested)
    {
        let inner = inner?;
        if inner.kind != PARTS {
            continue;
        }
        for part in inner.nested() {
            for length in part?.nested() {
                parts.push(length?.be32()? as usize);
            }
        }
    }
    Ok(parts)
}

fn number(message: &Message<'_>, kind: u16) -> Option<u32> {
    attribute(message, kind).and_then(|attribute| attribute.be32().ok())
}
