//! Sockets that processes share: those of this process, which others may be given, and those that
//! it was given.

use std::{
    fmt,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use net::Protocol;
use tokio::sync::mpsc::UnboundedSender;

use super::{inode, message::SocketDescription};
use crate::kernel::socket::records;

/// Has the holder close what need not be kept any more.
pub(super) trait Released: fmt::Debug + Send + Sync {
    /// Is called when the process has closed the socket that the holder keeps under `number`.
    fn closed(&self, number: u64);

    /// Is called when the process does not need the socket with this `inode` any more that the
    /// holder gave.
    fn unneeded(&self, inode: u64);
}

/// A socket at which this process accepts connections or receives datagrams.
pub trait Listening: AsFd + Send + Sync {
    /// Has another process do so in place of this one, or this one again.
    fn leave(&self, to_another: bool);
}

/// An open socket that other processes may be given, until this is dropped.
#[derive(Debug)]
pub struct Held {
    pub(super) released: Arc<dyn Released>,
    pub(super) number: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.released.closed(self.number);
    }
}

/// A socket of another process.
#[derive(Debug)]
pub struct InheritedSocket {
    pub(super) description: SocketDescription,
    pub(super) socket: OwnedFd,
    pub(super) origin: Origin,
}

/// Who gave a socket.
#[derive(Debug)]
pub enum Origin {
    /// The holder: it was that of a process that has ended.
    Holder(Release),
    /// A process that gives way to this one, and may still accept there.
    Predecessor(Taken),
}

/// Tells a predecessor which of its sockets this process takes.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The predecessor's number of the socket.
    pub number: u64,
    /// Where the number is sent.
    pub sender: UnboundedSender<u64>,
}

impl InheritedSocket {
    /// Its description, which was checked against the socket.
    pub fn description(&self) -> &SocketDescription {
        &self.description
    }

    /// Whether a predecessor gave it.
    pub fn is_shared(&self) -> bool {
        matches!(self.origin, Origin::Predecessor(_))
    }

    /// Whether both are descriptors of one socket.
    pub fn is_same(&self, other: &InheritedSocket) -> bool {
        let inode = |of: &InheritedSocket| inode(&of.socket).ok();
        inode(self) == inode(other)
    }

    /// Takes the socket, to accept there. The holder closes its own descriptor when what is
    /// returned next to it is dropped.
    pub fn take(self) -> (OwnedFd, Option<Release>) {
        match self.origin {
            Origin::Holder(release) => (self.socket, Some(release)),
            Origin::Predecessor(Taken { number, sender }) => {
                // It fails if that process has ended.
                let _ = sender.send(number);
                (self.socket, None)
            }
        }
    }

    /// Closes it in this process and in the holder. Connections that wait are reset, unless a
    /// predecessor has it.
    pub fn close(self) {
        if self.description.bound.protocol == Protocol::Tcp && !self.is_shared() {
            records::stop_listening(&self.socket);
        }
    }
}

/// Has the holder close the descriptor that it gave when this is dropped.
#[derive(Debug)]
pub struct Release {
    pub(super) released: Arc<dyn Released>,
    pub(super) inode: u64,
}

impl Drop for Release {
    fn drop(&mut self) {
        self.released.unneeded(self.inode);
    }
}

#[cfg(test)]
impl InheritedSocket {
    /// Returns a socket that no holder gave; for tests.
    pub(crate) fn of_none(protocol: Protocol, socket: std::net::TcpListener) -> InheritedSocket {
        InheritedSocket {
            description: SocketDescription {
                bound: crate::kernel::socket::bound::BoundAddress {
                    protocol,
                    address: socket.local_addr().expect("it is bound"),
                },
                label: "".into(),
            },
            socket: socket.into(),
            origin: Origin::Holder(Release {
                released: Arc::new(()),
                inode: 0,
            }),
        }
    }
}

#[cfg(test)]
impl Released for () {
    fn closed(&self, _: u64) {}
    fn unneeded(&self, _: u64) {}
}
