//! The entries of connection tracking.

#[cfg(test)]
mod tests;

use net::Family;
use netlink::{
    Message,
    conntrack::{
        entries,
        flows::{self, Flow, Tuple},
    },
    netfilter_kind,
};
use nix::{errno::Errno, libc};

use super::message::{Stored, answer, datagram, list};

const NEW: u16 = netfilter_kind(libc::NFNL_SUBSYS_CTNETLINK, 0);
const DELETE: u16 = netfilter_kind(libc::NFNL_SUBSYS_CTNETLINK, 2);
/// Size of `struct nfgenmsg`.
const HEADER: usize = 4;
/// How long a flow lasts without packets, in seconds.
const TIMEOUT: u32 = 600;
/// `CTA_TUPLE_ORIG` of `linux/netfilter/nfnetlink_conntrack.h`.
const ORIGINAL: u16 = 1;

/// The entries of connection tracking.
#[derive(Clone, Default)]
pub struct Conntrack {
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    family: u8,
    /// `CTA_TUPLE_ORIG` as it came.
    original: Box<[u8]>,
    attributes: Stored,
    flow: Flow,
}

impl Conntrack {
    /// Returns the flows.
    pub fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.entries.iter().map(|entry| &entry.flow)
    }

    /// Enters a flow of a client that called `original`, answered as `reply` says. Returns
    /// false where another one has one of its tuples in either direction
    /// (`nf_conntrack_hash_check_insert` in `net/netfilter/nf_conntrack_core.c`), which stays
    /// as it is.
    pub fn enter(&mut self, protocol: u8, original: Tuple, reply: Tuple) -> bool {
        let family = Family::of(&original.source.ip());
        let message = entries::flow(protocol, original, reply, TIMEOUT);
        let datagram = datagram(&message, 0, 0);
        let mut messages = netlink::Messages::new(&datagram).flatten();
        let Some(message) = messages.next() else {
            return false;
        };
        let Ok(Some(flow)) = flows::parse(message) else {
            return false;
        };
        let tuples = [flow.original, flow.reply];
        let has_one = |there: &Flow| {
            let has = |tuple| tuples.contains(tuple);
            there.protocol == protocol && [there.original, there.reply].iter().any(has)
        };
        if self.flows().any(has_one) {
            return false;
        }
        self.entries.push(Entry {
            family: family.number(),
            original: original_of(&message),
            attributes: Stored::of(message.attributes(HEADER), &[]),
            flow,
        });
        true
    }

    /// Answers a list; filtering is left to the client, as by kernels before 5.8.
    pub(super) fn dump(&self, of: &Message<'_>, interrupted: bool) -> Vec<Vec<u8>> {
        let family = of.body.first().copied().unwrap_or_default();
        let all = self.entries.iter().filter(|entry| entry.family == family);
        let listed = all.map(|entry| entry.attributes.write(answer(NEW, entry.family)));
        list(of, listed.collect(), interrupted)
    }

    /// Carries a request out.
    pub(super) fn change(&mut self, message: &Message<'_>) -> Result<(), Errno> {
        if message.kind != DELETE {
            return Err(Errno::EOPNOTSUPP);
        }
        let original = original_of(message);
        let before = self.entries.len();
        self.entries.retain(|entry| entry.original != original);
        if self.entries.len() == before {
            return Err(Errno::ENOENT);
        }
        Ok(())
    }
}

fn original_of(message: &Message<'_>) -> Box<[u8]> {
    let mut all = message.attributes(HEADER).flatten();
    all.find(|attribute| attribute.kind == ORIGINAL)
        .map_or_else(Box::default, |attribute| attribute.payload.into())
}
