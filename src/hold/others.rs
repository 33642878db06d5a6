//! Processes that wait for clients at the addresses of held sockets without the holder's
//! knowing: a proxy that uses no holder, or another one.

use std::{
    collections::{HashMap, HashSet},
    io, mem,
    net::SocketAddr,
    os::fd::AsFd,
};

use nix::sys::stat::fstat;

use crate::{kernel::socket::bound::each_bound, net::Protocol};

/// What names a socket: several share an address, one a worker.
pub(super) type Place = (Protocol, SocketAddr);

/// The sockets of other processes that were seen, by their inodes.
#[derive(Debug, Default)]
pub(super) struct Others(HashMap<u64, Place>);

impl Others {
    /// Forgets what was seen.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    /// Returns at which addresses of `held` another process has a socket, now as at the last
    /// call: sockets that were not held and are open only because their process is about to
    /// end are gone by then.
    ///
    /// # Errors
    /// Those of reading the kernel's tables.
    pub(super) fn observe<'a, Socket: AsFd + 'a>(
        &mut self,
        held: impl Iterator<Item = (Place, &'a Socket)>,
    ) -> io::Result<HashSet<Place>> {
        let (mut places, mut own) = (HashSet::new(), HashSet::new());
        for (place, socket) in held {
            places.insert(place);
            own.insert(fstat(socket.as_fd())?.st_ino);
        }
        let mut seen = HashMap::new();
        each_bound(|protocol, address, inode| {
            let place = (protocol, address);
            if places.contains(&place) && !own.contains(&inode) {
                seen.insert(inode, place);
            }
        })?;
        let before = mem::replace(&mut self.0, seen);
        let lasting = before.keys().filter_map(|inode| self.0.get(inode));
        Ok(lasting.copied().collect())
    }
}
