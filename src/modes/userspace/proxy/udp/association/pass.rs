//! Flows that this process passes to its successor, with their sockets, so that endpoints see the
//! same source port as before.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{super::Local, Association, Associations, Exchange, Key};

impl Associations {
    /// The flows that can continue in another process. Excludes flows that are bound to the
    /// client's own address, because that process binds the same address, and flows that already
    /// continue in another process, which passes them on itself.
    pub fn to_pass_on(&self) -> Vec<Arc<Association>> {
        let table = self.table.lock();
        let all = table.values();
        let is_ours = |one: &&Arc<Association>| {
            matches!(one.local, Local::Port { .. }) && !one.is_left.load(Relaxed)
        };
        let ours = all.filter(is_ours);
        ours.cloned().collect()
    }
}

impl Association {
    /// Number that identifies it within this process.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The address that receives its client's datagrams; `None` if the kernel does not return it.
    pub fn listener(&self) -> Option<SocketAddr> {
        self.listener.socket.local_addr().ok()
    }

    /// Its client, the endpoint, and how long it has been idle.
    pub fn assigned(&self) -> (Key, SocketAddr, Duration) {
        (self.key, self.lease.endpoint().address, self.place.idle())
    }

    /// Datagrams exchanged so far.
    pub fn exchange(&self) -> Exchange {
        Exchange {
            sent: self.sent.load(Relaxed),
            received: self.received.load(Relaxed),
            converses: self.converses.load(Relaxed),
        }
    }

    /// Leaves the answers to another process, or takes them back.
    pub fn leave_answers(&self, to: Reader) {
        self.is_left.store(to == Reader::Successor, Relaxed);
        self.place.activity().wake();
    }
}

impl AsFd for Association {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backend.as_fd()
    }
}

/// The process that reads the answers of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// This process, as before it gave way.
    ThisProcess,
    /// The process that takes over.
    Successor,
}
