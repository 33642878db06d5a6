//! Notices changes by others, from the kernel's notifications.

use std::{
    collections::BTreeSet,
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use net::{Family, PerFamily};
use netlink::{Error, Message, Protocol, Socket};
use nix::libc;
use socket2::{SockFilter, SockRef};

use super::{Failure, HEADER, Rules, Transaction, client::generation_of, kind, table};

/// `NFNLGRP_NFTABLES` of `linux/netfilter/nfnetlink.h`.
pub(super) const GROUP: u32 = 7;
pub(super) const NEW_GENERATION: u16 = kind(libc::NFT_MSG_NEWGEN);

/// Receives notifications of changes that others make.
pub struct Watcher {
    socket: Socket,
    /// Changes that may have been missed during transactions of [`Watcher::run_unwatched`].
    unwatched: Unwatched,
}

/// Changes that may have been missed during transactions that ran while nothing was watched.
#[derive(Default)]
struct Unwatched {
    /// Families whose tables others may have changed meanwhile.
    missed: PerFamily<bool>,
    /// Others did change something: the next transaction is watched, or writing the
    /// tables of two families in turn would never come to an end.
    watch_next: bool,
    /// The group could not be joined again.
    left: bool,
}

/// Changes that others made since the last question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The last generation that a notification named; `None`: none did.
    pub generation: Option<u32>,
    /// Tables of IPv4 and IPv6 in which something was changed.
    pub tables: BTreeSet<(Family, String)>,
    /// Families of which changes may have been missed: any table of theirs may have been
    /// changed. There were more changes than the socket could hold, or some came while
    /// nothing was watched.
    pub missed: PerFamily<bool>,
}

impl Changes {
    /// Returns true if something in that table may have been changed.
    pub fn concern(&self, family: Family, table: &str) -> bool {
        let of = |(f, name): &(Family, String)| *f == family && name == table;
        *self.missed.get(family) || self.tables.iter().any(of)
    }
}

impl Watcher {
    /// Returns a watcher of the network namespace of the calling thread. Changes by the
    /// sockets with the numbers `own` are left out, in the kernel already: a large
    /// transaction of ours brings no notifications.
    ///
    /// # Errors
    /// When no netlink socket can be opened, or no filter set.
    pub fn open(own: &[u32]) -> Result<Watcher, Error> {
        let socket = Socket::listen(Protocol::Netfilter, &[GROUP])?;
        socket.expect_many_answers();
        let watcher = Watcher {
            socket,
            unwatched: Unwatched::default(),
        };
        SockRef::from(&watcher)
            .attach_filter(&others_than(own))
            .map_err(failed)?;
        Ok(watcher)
    }

    /// Runs a large `transaction` while nothing is watched. If anybody watches, the kernel makes a
    /// notification of each element, which takes longer than all the rest
    /// (`nf_tables_setelem_notify` in `net/netfilter/nf_tables_api.c`).
    ///
    /// Changes that others make meanwhile in tables of the other family are not noticed:
    /// [`Watcher::changes`] then reports that they may have been missed.
    ///
    /// # Errors
    /// Those of [`Rules::run`]. [`Failure::Changed`] also where another process changed
    /// something right after it, which may have been the same table.
    pub fn run_unwatched(
        &mut self,
        rules: &mut Rules,
        transaction: &Transaction,
        generation: u32,
    ) -> Result<(), Failure> {
        let unwatched = &mut self.unwatched;
        if std::mem::take(&mut unwatched.watch_next) {
            return rules.run(transaction, Some(generation));
        }
        self.socket.leave(&[GROUP]).map_err(failed)?;
        let outcome = rules.run(transaction, Some(generation));
        unwatched.left = self.socket.join(&[GROUP]).is_err();
        let expected = match &outcome {
            Ok(()) => Some(generation.wrapping_add(1)),
            Err(Failure::Refused(_)) => Some(generation),
            Err(_) => None,
        };
        let now = rules.generation();
        let alone = expected.is_some() && now.as_ref().ok() == expected.as_ref();
        if !alone {
            let other = transaction.table().family.other();
            *unwatched.missed.get_mut(other) = true;
            unwatched.watch_next = true;
        }
        outcome?;
        now?;
        if alone { Ok(()) } else { Err(Failure::Changed) }
    }

    /// Returns the changes since the last call; does not wait.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn changes(&mut self) -> io::Result<Changes> {
        let unwatched = &mut self.unwatched;
        if unwatched.left {
            self.socket.join(&[GROUP])?;
            unwatched.left = false;
            unwatched.missed = PerFamily::each(|_| true);
        }
        let mut changes = Changes {
            missed: std::mem::take(&mut unwatched.missed),
            ..Changes::default()
        };
        if self.socket.drain(|message| note(message, &mut changes))? {
            changes.missed = PerFamily::each(|_| true);
        }
        Ok(changes)
    }
}

fn failed(error: io::Error) -> Error {
    Error::new("watch", "nf_tables", error)
}

/// Records the subject of a notification.
pub fn note(message: Message<'_>, changes: &mut Changes) {
    if message.kind == NEW_GENERATION {
        let named = generation_of(message).ok().flatten();
        changes.generation = named.or(changes.generation);
        return;
    }
    let family = message.header::<HEADER>().map(|header| header[0]);
    let Some(family) = family.ok().and_then(Family::from_number) else {
        return;
    };
    // All objects have their table's name as attribute 1.
    let mut attributes = message.attributes(HEADER).flatten();
    if let Some(Ok(name)) = attributes.find(|a| a.kind == table::NAME).map(|a| a.text()) {
        changes.tables.insert((family, name.to_owned()));
    }
}

/// A filter that passes datagrams whose first message does not bear one of
/// these numbers as `nlmsg_pid`. All messages of a datagram have the same.
fn others_than(own: &[u32]) -> Vec<SockFilter> {
    let code = |code: u32| code as u16;
    // Filters load values in network order that the kernel wrote in host order.
    let mut filter = vec![SockFilter::new(
        code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS),
        0,
        0,
        12,
    )];
    for number in own {
        let number = u32::from_be_bytes(number.to_ne_bytes());
        let equal = code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
        // If equal, continues with the next instruction, which drops; if not, skips it.
        filter.push(SockFilter::new(equal, 0, 1, number));
        filter.push(SockFilter::new(code(libc::BPF_RET | libc::BPF_K), 0, 0, 0));
    }
    let all = u32::MAX;
    filter.push(SockFilter::new(
        code(libc::BPF_RET | libc::BPF_K),
        0,
        0,
        all,
    ));
    filter
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.descriptor()
    }
}

impl AsRawFd for Watcher {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
