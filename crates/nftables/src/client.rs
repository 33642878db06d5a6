//! The socket to nf_tables: running transactions, and listing objects.

use std::{thread, time::Duration};

use hashbrown::HashSet;
use net::Family;
use netlink::{Error, Malformed, Message, Protocol, Reason, Refusal, Request, Socket};
use nix::{errno::Errno, libc};

use super::{
    HEADER,
    chain::{self, Chain, Hook, ListedChain},
    element::{self, Counted, Element, Found},
    failure::{Failure, Refused},
    kind,
    rule::{self, ListedRule},
    set::{self, ListedSet, Listing, Set},
    table::{Table, word},
    transaction::{Grouping, Transaction},
};

const GET_TABLE: u16 = kind(libc::NFT_MSG_GETTABLE);
const GET_CHAIN: u16 = kind(libc::NFT_MSG_GETCHAIN);
pub(super) const GET_RULE: u16 = kind(libc::NFT_MSG_GETRULE);
const GET_SET: u16 = kind(libc::NFT_MSG_GETSET);
const GET_ELEMENTS: u16 = kind(libc::NFT_MSG_GETSETELEM);
const GET_GENERATION: u16 = kind(libc::NFT_MSG_GETGEN);
/// `NFPROTO_INET`, tables of both families.
const INET: u8 = libc::NFPROTO_INET as u8;
// enum nft_gen_attributes
const GENERATION_ID: u16 = 1;
/// Number of times that several lists are read together when another process changes something
/// meanwhile.
const ATTEMPTS: u32 = 20;
/// By how much the pause before each further attempt to list elements grows; there is
/// none before the second. That is 0.4 s in all.
const PAUSE: Duration = Duration::from_millis(2);

/// The rules of a network namespace, and tables, chains and sets.
pub struct Rules {
    socket: Socket,
}

/// A table with all that is in it, as it was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The generation that was read; a transaction that is run with it fails if
    /// there is a later one.
    pub generation: u32,
    /// The table that was read.
    pub table: Table,
    /// Its chains with their rules, as they are listed.
    pub chains: Vec<ListedChain>,
    /// Its rules, in their order in each chain.
    pub rules: Vec<ListedRule>,
    /// Its sets and maps.
    pub sets: Vec<(ListedSet, Vec<Element>)>,
}

/// Separates answers of the kernel from unknown results: a permanent refusal, other than for lack
/// of a privilege, means that it has nothing of the kind.
fn known<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if error.errno() == Some(Errno::EPERM) || error.is_passing() => Err(error),
        answer => Ok(answer.ok()),
    }
}

impl Rules {
    /// Opens the rules of the network namespace of the calling thread.
    ///
    /// # Errors
    /// When no netlink socket can be opened.
    pub fn open() -> Result<Rules, Error> {
        let socket = Socket::open(Protocol::Netfilter)?;
        socket.expect_many_answers();
        Ok(Rules { socket })
    }

    /// Returns the number by which notifications name this socket as the author of a
    /// change; see [`Watcher::open`](super::Watcher::open).
    ///
    /// # Errors
    /// When the system does not tell it.
    pub fn port(&self) -> Result<u32, Error> {
        let port = self.socket.port();
        port.map_err(|error| Error::new("read", "the number of a netlink socket", error))
    }

    /// Reads a number that grows by one with each change, by any process.
    ///
    /// # Errors
    /// When the kernel has no nf_tables, or refuses.
    pub fn generation(&mut self) -> Result<u32, Error> {
        let request = Request::new(GET_GENERATION, 0, "read", "the generation of nf_tables")
            .header(&[0; HEADER]);
        let found = self.socket.call(&request, generation_of)?;
        Ok(found.first().copied().unwrap_or(0))
    }

    /// Runs a transaction, whole or not at all. With `generation`, it runs only if no process
    /// changed anything since.
    ///
    /// Of many elements in a message, the kernel reports one as refused, and since Linux 5.15 says
    /// which. A refused transaction is therefore sent once more, with each element in a message of
    /// its own.
    ///
    /// # Errors
    /// Every object that the kernel refused, by its name.
    pub fn run(
        &mut self,
        transaction: &Transaction,
        generation: Option<u32>,
    ) -> Result<(), Failure> {
        if transaction.is_empty() {
            return Ok(());
        }
        match self.send(transaction, generation, Grouping::Many) {
            Err(Failure::Refused(_)) if transaction.has_groups() => {
                self.send(transaction, generation, Grouping::Single)
            }
            outcome => outcome,
        }
    }

    fn send(
        &mut self,
        transaction: &Transaction,
        generation: Option<u32>,
        grouping: Grouping,
    ) -> Result<(), Failure> {
        let requests = transaction.requests(generation, grouping);
        let sent = self.socket.transact(requests);
        let refusals = sent.map_err(|reason| {
            let (table, count) = (transaction.table(), transaction.len());
            let object = format!("table {table} of nf_tables: {count} changes");
            Error::new("change", object, reason)
        })?;
        if refusals.is_empty() {
            return Ok(());
        }
        let is_stale = |r: &Refusal| r.index == 0 && r.errno == Errno::ERESTART;
        if refusals.iter().any(is_stale) {
            return Err(Failure::Changed);
        }
        let named = Refused::named(transaction, grouping, refusals);
        Err(Failure::Refused(named))
    }

    /// Returns the rules, and those of `families` that have a table of this name. A kernel that
    /// does not know nf_tables, or not for a family, has none.
    ///
    /// # Errors
    /// When that is not known: a privilege is missing, or the kernel did not answer for a reason
    /// that passes.
    pub fn with_table(
        table: &str,
        families: &[Family],
    ) -> Result<Option<(Rules, Vec<Family>)>, Error> {
        let Some(mut rules) = known(Rules::open())? else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for &family in families {
            let tables = known(rules.tables(family))?.unwrap_or_default();
            if tables.iter().any(|found| found.name == table) {
                found.push(family);
            }
        }
        Ok(Some((rules, found)))
    }

    /// Lists the tables of `family`. A table of both families, `inet`, is not among them.
    ///
    /// # Errors
    /// When the kernel has no nf_tables, or refuses.
    pub fn tables(&mut self, family: Family) -> Result<Vec<Table>, Error> {
        let request = list(GET_TABLE, family, format!("{family} tables of nf_tables"));
        self.socket.dump(&request, Table::read)
    }

    /// Hands every chain of `family` to `each`.
    ///
    /// # Errors
    /// When the kernel refuses, or its chains keep changing while it answers.
    pub fn chains(&mut self, family: Family, each: impl FnMut(ListedChain)) -> Result<(), Error> {
        let found = self.listed_chains(family.number(), &family.to_string())?;
        found.into_iter().for_each(each);
        Ok(())
    }

    fn listed_chains(&mut self, number: u8, name: &str) -> Result<Vec<ListedChain>, Error> {
        let object = format!("{name} chains of nf_tables");
        let request = Request::new(GET_CHAIN, 0, "list", object).nfgenmsg(number);
        self.socket
            .dump(&request, |m| ListedChain::read(m).map(Some))
    }

    /// Returns the base chains that packets of `family` come through at `hook`, each with
    /// the table as `nft` names it: also those of tables of both families, `inet`.
    ///
    /// # Errors
    /// As [`Rules::chains`].
    pub fn at_hook(&mut self, family: Family, hook: Hook) -> Result<Vec<(String, Chain)>, Error> {
        let mut found = Vec::new();
        for (number, name) in [(family.number(), word(family)), (INET, "inet")] {
            let there = self.listed_chains(number, name)?.into_iter();
            let there = there.filter(|listed| {
                let base = listed.chain.base;
                base.is_some_and(|base| base.hook == hook)
            });
            found.extend(there.map(|listed| (format!("{name} {}", listed.table), listed.chain)));
        }
        Ok(found)
    }

    /// Lists the rules of a table, in their order in each chain.
    ///
    /// # Errors
    /// As [`Rules::chains`].
    pub fn rules(&mut self, table: &Table) -> Result<Vec<ListedRule>, Error> {
        let request = list(
            GET_RULE,
            table.family,
            format!("rules of table {table} of nf_tables"),
        )
        .text(rule::TABLE, &table.name);
        // Kernels before 4.15 do not look at the table's name.
        let ours = |rule: ListedRule| (rule.table == table.name).then_some(rule);
        self.socket
            .dump(&request, |m| ListedRule::read(m).map(ours))
    }

    /// Reads the counters in the rules of a chain, in their order; nothing if there is no such
    /// chain.
    ///
    /// # Errors
    /// As [`Rules::chains`].
    pub fn counted(&mut self, table: &Table, chain: &str) -> Result<Vec<Counted>, Error> {
        let object = format!("rules of chain {chain} of table {table} of nf_tables");
        let request = list(GET_RULE, table.family, object)
            .text(rule::TABLE, &table.name)
            .text(rule::CHAIN, chain);
        let found = self
            .socket
            .dump(&request, |m| rule::counted(m, table, chain).map(Some))?;
        Ok(found.concat())
    }

    /// Returns the sets and maps of a table, without their elements.
    ///
    /// # Errors
    /// As [`Rules::chains`].
    pub fn sets(&mut self, table: &Table) -> Result<Vec<ListedSet>, Error> {
        let request = list(
            GET_SET,
            table.family,
            format!("sets of table {table} of nf_tables"),
        )
        .text(set::TABLE, &table.name);
        let ours = |set: ListedSet| (set.table == table.name).then_some(set);
        self.socket.dump(&request, |m| ListedSet::read(m).map(ours))
    }

    /// Lists the elements of a set or a map, each once, in no order. Of a dynamic one, to which
    /// packets add elements, some may be left out if others expire meanwhile: the kernel continues
    /// a dump by the number of elements that it listed so far.
    ///
    /// # Errors
    /// As [`Rules::chains`]; also when there is no such set.
    pub fn elements(&mut self, table: &Table, set: &Set) -> Result<Vec<Element>, Error> {
        self.elements_of(table, &set.listing())
    }

    fn elements_of(&mut self, table: &Table, set: &Listing<'_>) -> Result<Vec<Element>, Error> {
        if set.dynamic {
            let mut elements = Found::elements(self.listed(table, set)?, set.ranges_of_one);
            let mut seen = HashSet::new();
            elements.retain(|element| seen.insert(element.key.clone()));
            return Ok(elements);
        }
        for attempt in 0..ATTEMPTS {
            let found = self.listed(table, set)?;
            if !Found::repeats(&found) {
                return Ok(Found::elements(found, set.ranges_of_one));
            }
            // The kernel's table grows; that takes some milliseconds.
            thread::sleep(PAUSE * attempt);
        }
        let reason = Reason::Unstable(ATTEMPTS);
        Err(Error::new("list", name_elements(table, set), reason))
    }

    /// Returns the messages with the elements of a set or a map.
    fn listed(&mut self, table: &Table, set: &Listing<'_>) -> Result<Vec<Found>, Error> {
        let request = list(GET_ELEMENTS, table.family, name_elements(table, set))
            .text(element::TABLE, &table.name)
            .text(element::SET, set.name);
        self.socket.dump(&request, |m| Found::read(m).map(Some))
    }

    /// Returns a table with all that is in it; `None` if there is none.
    ///
    /// # Errors
    /// As [`Rules::chains`].
    pub fn contents(&mut self, family: Family, name: &str) -> Result<Option<Contents>, Error> {
        let object = Table::new(family, name);
        let (generation, found) = self.unchanged(&object, |rules| {
            let mut tables = rules.tables(family)?.into_iter();
            let Some(table) = tables.find(|table| table.name == name) else {
                return Ok(None);
            };
            let request = list(
                GET_CHAIN,
                family,
                format!("chains of table {table} of nf_tables"),
            )
            .text(chain::TABLE, name);
            let ours = |chain: ListedChain| (chain.table == name).then_some(chain);
            let chains = rules
                .socket
                .dump(&request, |m| ListedChain::read(m).map(ours))?;
            let listed = rules.rules(&table)?;
            let mut sets = Vec::new();
            for set in rules.sets(&table)? {
                let elements = rules.elements_of(&table, &set.listing())?;
                sets.push((set, elements));
            }
            Ok(Some((table, chains, listed, sets)))
        })?;
        Ok(found.map(|(table, chains, rules, sets)| Contents {
            generation,
            table,
            chains,
            rules,
            sets,
        }))
    }

    /// Reads several lists, again from the start if a process changed something meanwhile; also
    /// returns the generation that was read.
    fn unchanged<T>(
        &mut self,
        of: &Table,
        mut read: impl FnMut(&mut Rules) -> Result<T, Error>,
    ) -> Result<(u32, T), Error> {
        for _ in 0..ATTEMPTS {
            let before = self.generation()?;
            let found = read(self);
            let same = self.generation()? == before;
            match found {
                Ok(found) if same => return Ok((before, found)),
                // The objects to list may have been deleted.
                Err(error) if same && !matches!(error.reason(), Reason::Unstable(_)) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        let object = format!("table {of} of nf_tables");
        Err(Error::new("read", object, Reason::Unstable(ATTEMPTS)))
    }

    /// Deletes the table `name` of `family` with all that is in it, in one
    /// step. Returns whether it was there.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn delete_table(&mut self, family: Family, name: &str) -> Result<bool, Error> {
        let mut transaction = Transaction::new(Table::new(family, name));
        transaction.delete_table();
        self.gone(&transaction)
    }

    /// Deletes the rules in those chains of the table `name` of `family` that the
    /// kernel calls by itself, so that no packet reaches the others any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unlink_table(&mut self, family: Family, name: &str) -> Result<(), Error> {
        let mut called = Vec::new();
        self.chains(family, |listed| {
            if listed.base && listed.table == name {
                called.push(listed.chain.name);
            }
        })?;
        for chain in called {
            let mut transaction = Transaction::new(Table::new(family, name));
            transaction.flush_chain(chain);
            self.gone(&transaction)?;
        }
        Ok(())
    }

    /// Runs the transaction, which deletes one thing. Returns false if that was not there.
    fn gone(&mut self, transaction: &Transaction) -> Result<bool, Error> {
        match self.run(transaction, None).map_err(Failure::first) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn name_elements(table: &Table, set: &Listing<'_>) -> String {
    let Listing { word, name, .. } = set;
    format!("elements of {word} {name} of table {table} of nf_tables")
}

fn list(kind: u16, family: Family, object: String) -> Request {
    Request::new(kind, 0, "list", object).nfgenmsg(family.number())
}

/// Returns the generation in a message that names it.
pub(super) fn generation_of(message: Message<'_>) -> Result<Option<u32>, Malformed> {
    for attribute in message.attributes(HEADER) {
        let attribute = attribute?;
        if attribute.kind == GENERATION_ID {
            return attribute.be32().map(Some);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_absent() {
        let refused = |errno: Errno| known::<()>(Err(Error::new("list", "tables", errno)));
        for errno in [Errno::EPERM, Errno::ENOMEM, Errno::ENOBUFS, Errno::EINTR] {
            assert!(refused(errno).is_err(), "{errno}");
        }
        for errno in [Errno::EPROTONOSUPPORT, Errno::EAFNOSUPPORT, Errno::EINVAL] {
            assert_eq!(refused(errno).expect("an answer"), None, "{errno}");
        }
        assert_eq!(known(Ok(7)).expect("an answer"), Some(7));
    }
}
