//! Shows clients to endpoints (`--userspace-transparent`): connections to endpoints are bound to
//! the client's own address and port (`IP_TRANSPARENT`, `ip(7)`).
//!
//! An endpoint's answers are then addressed to the client and would not reach us: `return_path`
//! delivers them to our socket, if they pass through this node at all, which [`paths`] determines
//! beforehand. Every other endpoint, and any whose client's address cannot be bound, sees the
//! node's address, as without the flag.
//!
//! Verified with namespaces on Linux 6.18, both families, TCP and UDP, redirect
//! and local capture.

mod paths;
mod unanswered;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use hashbrown::HashSet;
use net::{Family, PerFamily};
use parking_lot::Mutex;
use socket2::Socket;

use self::{paths::Paths, unanswered::Unanswered};
use super::cluster_local::ClusterLocal;
use crate::{kernel::socket::bind_transparent, sched::Flow};

/// Decides for the data path which endpoints see the client's address.
#[derive(Debug)]
pub struct Transparent {
    /// Whether endpoints may see clients, because answers are delivered to this process.
    shown: PerFamily<AtomicBool>,
    cluster_local: Arc<ClusterLocal>,
    paths: Mutex<Option<Paths>>,
    unanswered: Mutex<Unanswered>,
    /// UDP sockets that are bound to a client: the kernel would let two have the same ends, and
    /// give each some of the answers.
    bound: Mutex<HashSet<Ends>>,
}

impl Transparent {
    /// Shows no client until a return path delivers answers to this process.
    pub fn new(cluster_local: Arc<ClusterLocal>) -> Self {
        Transparent {
            shown: PerFamily::default(),
            cluster_local,
            paths: Mutex::default(),
            unanswered: Mutex::default(),
            bound: Mutex::default(),
        }
    }

    /// Returns whether `endpoint` may see the client of `flow`, because its answers pass through
    /// this node.
    pub fn shows(&self, flow: &Flow, endpoint: SocketAddr) -> bool {
        let client = flow.client.ip();
        let family = Family::of(&client);
        if !self.is_shown(family)
            || Family::of(&endpoint.ip()) != family
            || is_of_one_link(&client)
            || self.cluster_local.is_node(flow)
            || self.unanswered.lock().contains(client, endpoint.ip())
        {
            return false;
        }
        let is_pod = self.cluster_local.has_pod(&endpoint.ip());
        let mut paths = self.paths.lock();
        let paths = match &mut *paths {
            Some(paths) => paths,
            none => match netlink::Socket::open(netlink::Protocol::Route) {
                Ok(socket) => none.insert(Paths::new(socket)),
                Err(_) => return false,
            },
        };
        paths.answers_pass_here(client, endpoint.ip(), is_pod)
    }

    /// Records that `endpoint` did not answer when it saw the client of `flow`.
    pub fn unanswered(&self, flow: &Flow, endpoint: SocketAddr) {
        self.unanswered.lock().add(flow.client.ip(), endpoint.ip());
    }

    /// Records that `endpoint` answered when it saw the node instead.
    pub fn answered_the_node(&self, flow: &Flow, endpoint: SocketAddr) {
        let client = flow.client.ip();
        if self.is_shown(Family::of(&client)) {
            self.unanswered.lock().confirm(client, endpoint.ip());
        }
    }

    /// Binds the UDP `socket` to `client`, for `endpoint` alone.
    ///
    /// # Errors
    /// Errors of setsockopt(2) and bind(2); `AddrInUse` if there is such a socket already.
    pub fn bind_udp(
        self: &Arc<Self>,
        socket: &Socket,
        client: SocketAddr,
        endpoint: SocketAddr,
    ) -> io::Result<Bound> {
        let ends = Ends { client, endpoint };
        if !self.bound.lock().insert(ends) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let bound = Bound {
            all: Arc::clone(self),
            ends,
        };
        bind_transparent(socket, client)?;
        Ok(bound)
    }

    /// Returns whether clients of `family` may be shown.
    pub fn is_shown(&self, family: Family) -> bool {
        self.shown.get(family).load(Relaxed)
    }

    /// Sets whether clients of `family` are shown from now on.
    pub fn set_shown(&self, family: Family, shown: bool) {
        self.shown.get(family).store(shown, Relaxed);
    }

    /// Forgets known routes and links.
    pub fn clear_paths(&self) {
        *self.paths.lock() = None;
    }
}

/// The two ends of a socket that is bound to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Ends {
    client: SocketAddr,
    endpoint: SocketAddr,
}

/// A UDP socket that is bound to a client. Must be dropped after the socket.
#[derive(Debug)]
pub struct Bound {
    all: Arc<Transparent>,
    ends: Ends,
}

impl Drop for Bound {
    fn drop(&mut self) {
        self.all.bound.lock().remove(&self.ends);
    }
}

/// Returns whether an address is only valid on one link.
fn is_of_one_link(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use testing::{in_namespace, ip};

    use super::*;
    use crate::config::DetectLocal;

    #[test]
    fn two_sockets_never_share_client_and_endpoint() {
        in_namespace(|| {
            ip("link add pods type bridge");
            ip("link set pods up");
            ip("addr add 10.1.0.1/24 dev pods");
            let [client, a, b] = ["192.0.2.9:53", "10.1.0.2:53", "10.1.0.3:53"];
            let [client, a, b] = [client, a, b].map(|text| text.parse::<SocketAddr>().unwrap());
            let cluster_local = Arc::new(ClusterLocal::new(DetectLocal::NodeCidr));
            let transparent = Arc::new(Transparent::new(cluster_local));
            let bind = |endpoint| {
                let socket =
                    Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
                let bound = transparent.bind_udp(&socket, client, endpoint)?;
                socket.connect(&endpoint.into()).unwrap();
                io::Result::Ok((socket, bound))
            };
            let first = bind(a).unwrap();
            let _other_endpoint = bind(b).unwrap();
            let again = bind(a).map(drop).unwrap_err();
            assert_eq!(again.kind(), io::ErrorKind::AddrInUse);
            drop(first);
            bind(a).unwrap();
        });
    }
}
