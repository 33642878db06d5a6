//! Processes that wait for clients at the addresses of held sockets without the holder's knowledge:
//! a proxy that uses no holder, or another one.

use std::{
    collections::{HashMap, HashSet},
    io, mem,
    os::fd::AsFd,
};

use nix::unistd::geteuid;

use super::inode;
use crate::kernel::socket::bound::{BoundAddress, each_bound};

/// The sockets of other processes that were seen, by their inodes.
#[derive(Debug, Default)]
pub(super) struct Others(HashMap<u64, BoundAddress>);

impl Others {
    /// Drops what was seen.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the addresses of `held` at which another process has a socket, both now and at the
    /// last call: sockets that were not held and are open only because their process is about to
    /// end are gone by then.
    ///
    /// # Errors
    /// Those of reading the kernel's tables.
    pub(super) fn observe<'a, Socket: AsFd + 'a>(
        &mut self,
        held: impl Iterator<Item = (BoundAddress, &'a Socket)>,
    ) -> io::Result<HashSet<BoundAddress>> {
        let (mut bound, mut own) = (HashSet::new(), HashSet::new());
        for (address, socket) in held {
            bound.insert(address);
            own.insert(inode(socket)?);
        }
        let mut seen = HashMap::new();
        let user = geteuid().as_raw();
        each_bound(|address, socket| {
            // The kernel lets only sockets of one user share an address, but lists those of all.
            let may_serve = socket.uid == user && !own.contains(&socket.inode);
            if may_serve && bound.contains(&address) {
                seen.insert(socket.inode, address);
            }
        })?;
        let before = mem::replace(&mut self.0, seen);
        let lasting = before.keys().filter_map(|inode| self.0.get(inode));
        Ok(lasting.copied().collect())
    }
}
