//! What the proxy has of the holder: sockets that are kept there, and those that it gave.

use std::{fmt, os::fd::OwnedFd, sync::Arc};

use net::Protocol;

use super::message::SocketDescription;
use crate::kernel::socket::records;

/// Has the holder close what need not be kept any more.
pub(super) trait Released: fmt::Debug + Send + Sync {
    /// Is called when the process has closed the socket that the holder keeps under `number`.
    fn closed(&self, number: u64);

    /// Is called when the process does not need the socket with this `inode` any more that the
    /// holder gave.
    fn unneeded(&self, inode: u64);
}

/// A socket that the holder keeps, until this is dropped.
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

/// A socket of an ended process.
#[derive(Debug)]
pub struct InheritedSocket {
    pub(super) description: SocketDescription,
    pub(super) socket: OwnedFd,
    pub(super) release: Release,
}

impl InheritedSocket {
    /// Returns its description, which was checked against the socket.
    pub fn description(&self) -> &SocketDescription {
        &self.description
    }

    /// Returns the socket, and what has the holder close its own descriptor when it is
    /// dropped.
    pub fn into_parts(self) -> (OwnedFd, Release) {
        (self.socket, self.release)
    }

    /// Closes it in this process and in the holder. Connections that wait are reset.
    pub fn close(self) {
        if self.description.protocol == Protocol::Tcp {
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
                protocol,
                address: socket.local_addr().expect("it is bound"),
                label: String::new(),
            },
            socket: socket.into(),
            release: Release {
                released: Arc::new(()),
                inode: 0,
            },
        }
    }
}

#[cfg(test)]
impl Released for () {
    fn closed(&self, _: u64) {}
    fn unneeded(&self, _: u64) {}
}
