//! Changes of connection tracking entries, from the kernel's notifications.

use std::io;

use nix::libc;

use super::flows::{self, Flow};
use crate::{Error, Malformed, Message, Notifications, Protocol};

// `NFNLGRP_CONNTRACK_NEW`, `_UPDATE`, `_DESTROY`
const NEW: u32 = 1;
const UPDATE: u32 = 2;
const DESTROY: u32 = 3;
const ALL: [u32; 3] = [NEW, UPDATE, DESTROY];

/// Change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its first packet has left, or reached a socket of this node.
    New,
    /// Its state is another.
    Update,
    /// It is gone.
    Destroy,
}

/// A change of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The change of the entry that the notification reports.
    pub change: Change,
    /// The entry as it is now.
    pub flow: Flow,
}

/// The changes of entries in a network namespace.
pub struct Events(Notifications);

impl Events {
    /// Subscribes, in the network namespace of the calling thread; must be called within
    /// a tokio runtime.
    ///
    /// # Errors
    /// When the kernel has no ctnetlink, or the caller lacks CAP_NET_ADMIN.
    pub fn open() -> Result<Events, Error> {
        Events::of(&ALL)
    }

    /// Subscribes to new entries and to those that end, as [`Events::open`] does to all changes.
    ///
    /// # Errors
    /// The same as for [`Events::open`].
    pub fn of_ends() -> Result<Events, Error> {
        Events::of(&[NEW, DESTROY])
    }

    fn of(groups: &[u32]) -> Result<Events, Error> {
        Notifications::open(Protocol::Netfilter, groups, "connection tracking").map(Events)
    }

    /// Waits until some may have arrived; they must be drained then.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn arrived(&self) -> io::Result<()> {
        self.0.arrived().await
    }

    /// Calls `each` with each event that waits; those that cannot be read, and those of
    /// protocols without ports, are passed over. Returns true if some were lost.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self, mut each: impl FnMut(Event)) -> io::Result<bool> {
        self.0.drain(|message| {
            if let Ok(Some(event)) = parse(message) {
                each(event);
            }
        })
    }
}

/// Reads a notification; `None` for one of a protocol without ports.
pub fn parse(message: Message<'_>) -> Result<Option<Event>, Malformed> {
    // A new entry has the flags of a request that would make it
    // (`ctnetlink_conntrack_event`).
    let is_created = message.flags & libc::NLM_F_CREATE as u16 != 0;
    let change = match message.kind {
        flows::CT_DELETE => Change::Destroy,
        _ if is_created => Change::New,
        _ => Change::Update,
    };
    let kind = flows::CT_NEW;
    let is_of_entry = matches!(message.kind, flows::CT_NEW | flows::CT_DELETE);
    let found = flows::parse(Message { kind, ..message })?;
    Ok(found
        .filter(|_| is_of_entry)
        .map(|flow| Event { change, flow }))
}
