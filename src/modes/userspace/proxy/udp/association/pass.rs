//! Flows that this process passes on to the one that takes over, with their sockets: endpoints
//! see the same source port as before.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use super::{super::Local, Association, Associations, Exchange, Key};

impl Associations {
    /// Returns the flows that another process can go on with. Flows that are bound to the client's
    /// own address are left out, as that process binds the same address. So are those that another
    /// process goes on with already, which passes them on itself.
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
    /// Returns its number among this process's flows.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the address at which its client's datagrams come in; `None`: the kernel does
    /// not say.
    pub fn listener(&self) -> Option<SocketAddr> {
        self.listener.socket.local_addr().ok()
    }

    /// Returns its client with its endpoint, and how long it has been silent.
    pub fn assigned(&self) -> (Key, SocketAddr, Duration) {
        (self.key, self.lease.endpoint().address, self.place.idle())
    }

    /// Returns what was exchanged.
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

/// Who reads the answers of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// This process, as before it gave way.
    ThisProcess,
    /// The one that takes over.
    Successor,
}
