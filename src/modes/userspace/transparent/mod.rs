//! Endpoints see the client (`--userspace-transparent`): connections to them
//! are bound to the client's own address and port (`IP_TRANSPARENT`, `ip(7)`).
//!
//! What an endpoint answers is then addressed to the client and would pass by:
//! [`steering`] leads it to our socket, if it comes through this node at all,
//! which [`paths`] judges beforehand. Everyone else, and whoever cannot be
//! bound, sees the node's address as without the flag.
//!
//! Verified with namespaces on Linux 6.18, both families, TCP and UDP, redirect
//! and local capture.

mod doubts;
mod paths;
mod steering;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use hashbrown::HashSet;
use parking_lot::Mutex;
use socket2::Socket;

pub use self::steering::{Steering, cleanup};
use self::{doubts::Doubts, paths::Paths};
use super::insiders::Insiders;
use crate::{kernel::netlink, net::Family, sched::Flow};

/// What the data path asks.
#[derive(Debug)]
pub struct Transparent {
    /// Answers are led here, for IPv4 and IPv6.
    steered: [AtomicBool; 2],
    insiders: Arc<Insiders>,
    paths: Mutex<Option<Paths>>,
    doubts: Mutex<Doubts>,
    /// UDP sockets that are bound to a client: the kernel would let two have
    /// the same ends, and give each some of the answers.
    bound: Mutex<HashSet<(SocketAddr, SocketAddr)>>,
}

impl Transparent {
    /// Shows nobody until [`Steering`] leads answers here.
    pub fn new(insiders: Arc<Insiders>) -> Self {
        Transparent {
            steered: Default::default(),
            insiders,
            paths: Mutex::default(),
            doubts: Mutex::default(),
            bound: Mutex::default(),
        }
    }

    /// Whether `endpoint` may see the client of `flow`, because what it answers
    /// comes through this node.
    pub fn shows(&self, flow: &Flow, endpoint: SocketAddr) -> bool {
        let client = flow.client.ip();
        let family = Family::of(&client);
        if !self.steered(family).load(Relaxed)
            || Family::of(&endpoint.ip()) != family
            || is_of_one_link(&client)
            || self.insiders.is_node(flow)
            || self.doubts.lock().contains(client, endpoint.ip())
        {
            return false;
        }
        let pod = self.insiders.has_pod(&endpoint.ip());
        let mut paths = self.paths.lock();
        let paths = match &mut *paths {
            Some(paths) => paths,
            none => match netlink::Socket::open(netlink::Protocol::Route) {
                Ok(socket) => none.insert(Paths::new(socket)),
                Err(_) => return false,
            },
        };
        paths.come_back(client, endpoint.ip(), pod)
    }

    /// Notes that `endpoint` did not answer when it saw the client of `flow`.
    pub fn unanswered(&self, flow: &Flow, endpoint: SocketAddr) {
        self.doubts.lock().add(flow.client.ip(), endpoint.ip());
    }

    /// Notes that `endpoint` answered when it saw the node instead.
    pub fn answered_the_node(&self, flow: &Flow, endpoint: SocketAddr) {
        let client = flow.client.ip();
        if self.steered(Family::of(&client)).load(Relaxed) {
            self.doubts.lock().confirm(client, endpoint.ip());
        }
    }

    /// Binds the UDP `socket` to `client`, for `endpoint` alone.
    ///
    /// # Errors
    /// Those of setsockopt(2) and bind(2); `AddrInUse` when there is such a
    /// socket already.
    pub fn bind_udp(
        self: &Arc<Self>,
        socket: &Socket,
        client: SocketAddr,
        endpoint: SocketAddr,
    ) -> io::Result<Bound> {
        if !self.bound.lock().insert((client, endpoint)) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let bound = Bound {
            all: Arc::clone(self),
            ends: (client, endpoint),
        };
        bind(socket, client)?;
        Ok(bound)
    }

    fn steered(&self, family: Family) -> &AtomicBool {
        let [v4, v6] = &self.steered;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Forgets what was known of routes and links.
    fn forget_paths(&self) {
        *self.paths.lock() = None;
    }
}

/// A UDP socket that is bound to a client. To be dropped after the socket.
#[derive(Debug)]
pub struct Bound {
    all: Arc<Transparent>,
    ends: (SocketAddr, SocketAddr),
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.all.bound.lock().remove(&self.ends);
    }
}

/// Binds `socket` to the address of a client. Others may be bound to it too:
/// one client port may talk to many endpoints.
///
/// # Errors
/// Those of setsockopt(2) and bind(2).
pub fn bind(socket: &Socket, client: SocketAddr) -> io::Result<()> {
    match client {
        SocketAddr::V4(_) => socket.set_ip_transparent_v4(true)?,
        SocketAddr::V6(_) => socket.set_ip_transparent_v6(true)?,
    }
    socket.set_reuse_address(true)?;
    socket.bind(&client.into())
}

/// An address that means nothing on other links.
fn is_of_one_link(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
