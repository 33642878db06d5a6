//! A netlink socket that only receives notifications, waited for without a thread.

use std::io;

use tokio::io::{Interest, unix::AsyncFd};

use super::{Error, Message, Protocol, Socket};

/// The notifications of some groups, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Notifications {
    socket: AsyncFd<Socket>,
    /// Whether the last time not all that had come was read.
    more: bool,
}

/// Maximum number of datagrams that are read before other tasks have their turn: if many come all
/// the time, reading would never end.
const MOST: usize = 1000;

impl Notifications {
    /// Subscribes to `groups` (numbers as in `NFNLGRP_*`); `object` names the subject of the
    /// notifications, for errors. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there is no such group, or the caller lacks CAP_NET_ADMIN for it.
    pub fn open(protocol: Protocol, groups: &[u32], object: &str) -> Result<Notifications, Error> {
        let socket = Socket::listen(protocol, groups)?;
        socket.expect_many_answers();
        // SAFETY: a `Socket` owns its descriptor, never exchanges it, and closes
        // it when dropped, which `AsyncFd` does after it has deregistered.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }
            .map_err(|error| Error::new("watch", object, io::Error::from(error)))?;
        Ok(Notifications {
            socket,
            more: false,
        })
    }

    /// Waits until some may have arrived; they must be drained then. Safe to drop while
    /// it waits.
    ///
    /// # Errors
    /// When the runtime ends.
    pub async fn arrived(&self) -> io::Result<()> {
        if self.more {
            tokio::task::yield_now().await;
            return Ok(());
        }
        // Notifications from here on wake the reader again: it reads all that are there afterwards.
        self.socket.readable().await?.clear_ready();
        Ok(())
    }

    /// Calls `each` with each notification that waits, or with some of them if there are many.
    /// Returns true if some were lost because they came faster than they were read.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn drain(&mut self, each: impl FnMut(Message<'_>)) -> io::Result<bool> {
        let drained = self.socket.get_mut().drain_some(MOST, each)?;
        self.more = drained.more;
        Ok(drained.lost)
    }
}
