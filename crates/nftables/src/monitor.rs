//! Changes of chains and of the rules in them, generation by generation, as `nft monitor` shows
//! them.

use std::{io, sync::Arc};

use net::Family;
use netlink::{Error, Malformed, Message, Protocol, Socket};
use nix::libc;

use super::{
    HEADER, chain,
    client::generation_of,
    expression::Expression,
    kind, rule,
    verdict::Verdict,
    watcher::{GROUP, NEW_GENERATION},
};

const NEW_CHAIN: u16 = kind(libc::NFT_MSG_NEWCHAIN);
const DELETED_CHAIN: u16 = kind(libc::NFT_MSG_DELCHAIN);
const NEW_RULE: u16 = kind(libc::NFT_MSG_NEWRULE);
const DELETED_RULE: u16 = kind(libc::NFT_MSG_DELRULE);

/// A notification of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The changes since the last generation led to this one. The kernel notifies of each
    /// generation, also of one without any change that is shown here (`nf_tables_commit` in
    /// `net/netfilter/nf_tables_api.c`).
    Generation(u32),
    /// A chain, or a rule in it, was added, changed or deleted.
    Changed(ChangedChain),
}

/// A chain that was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedChain {
    /// The family of its table; `None`: the table is for several families.
    pub family: Option<Family>,
    /// Name of its table.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// The chains that the rule that was added or deleted jumps to; `None`: the kernel does not
    /// say.
    pub leads_to: Option<Vec<Arc<str>>>,
}

/// Receives notifications of all changes of chains and rules, by any process.
pub struct Monitor {
    socket: Socket,
}

impl Monitor {
    /// Returns a monitor for the network namespace of the calling thread.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open() -> Result<Monitor, Error> {
        let socket = Socket::listen(Protocol::Netfilter, &[GROUP])?;
        socket.expect_many_answers();
        Ok(Monitor { socket })
    }

    /// Receives nothing from now on; notifications in the queue stay.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn pause(&mut self) -> io::Result<()> {
        self.socket.leave(&[GROUP])
    }

    /// Receives notifications from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn resume(&mut self) -> io::Result<()> {
        self.socket.join(&[GROUP])
    }

    /// Hands all that waits to `each`; does not wait for more. Returns false if some
    /// notifications were lost, or cannot be read.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> io::Result<bool> {
        let mut is_whole = true;
        let lost = self.socket.drain(|message| match read(message) {
            Ok(Some(event)) => each(event),
            Ok(None) => {}
            Err(_) => is_whole = false,
        })?;
        Ok(is_whole && !lost)
    }
}

/// Reads a notification; `None`: it is about something else.
pub(super) fn read(message: Message<'_>) -> Result<Option<Event>, Malformed> {
    let (of_rule, name) = match message.kind {
        NEW_GENERATION => return Ok(generation_of(message)?.map(Event::Generation)),
        NEW_CHAIN | DELETED_CHAIN => (false, chain::NAME),
        NEW_RULE | DELETED_RULE => (true, rule::CHAIN),
        _ => return Ok(None),
    };
    let mut changed = ChangedChain {
        family: Family::from_number(message.header::<HEADER>()?[0]),
        table: String::new(),
        chain: String::new(),
        leads_to: (!of_rule).then(Vec::new),
    };
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        match attribute.kind {
            // The attribute of the table's name is 1 for chains and rules alike.
            chain::TABLE => attribute.text()?.clone_into(&mut changed.table),
            kind if kind == name => attribute.text()?.clone_into(&mut changed.chain),
            rule::EXPRESSIONS if of_rule => {
                // Others may use expressions that are not known here.
                let expressions = Expression::read_all(attribute).ok();
                changed.leads_to = expressions.map(|all| leads_to(&all));
            }
            _ => {}
        }
    }
    Ok(Some(Event::Changed(changed)))
}

fn leads_to(expressions: &[Expression]) -> Vec<Arc<str>> {
    let verdicts = expressions.iter().filter_map(Expression::verdict);
    let chains = verdicts.filter_map(|verdict| match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
        _ => None,
    });
    chains.cloned().collect()
}
