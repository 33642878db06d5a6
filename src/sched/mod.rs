//! Load-balancing schedulers with the names and meanings of IPVS
//! (`ipvsadm(8)`, kernel `net/netfilter/ipvs/ip_vs_*.c`).

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{Arc, atomic::AtomicU32},
};

/// Connections that a real server carries now. Shared between successive
/// sets of real servers, so that counts survive a change of the set.
#[derive(Debug, Default)]
pub struct Load {
    /// Established or being established.
    pub active: AtomicU32,
    /// Half-closed: one direction has ended.
    pub inactive: AtomicU32,
}

/// One real server of a virtual server.
#[derive(Clone, Debug)]
pub struct RealServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Share of the load it takes; 0: no new connections.
    pub weight: u32,
    /// Its connections.
    pub load: Arc<Load>,
}

/// What a scheduler may look at beside the real servers.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Who calls.
    pub client: SocketAddr,
    /// The address that the client called.
    pub destination: IpAddr,
}

/// Picks the real server of a new connection. Made for one set of real
/// servers; a changed set gets a new scheduler that may inherit.
pub trait Scheduler: fmt::Debug + Send + Sync {
    /// Index of the real server that takes the connection, or `None` if every
    /// one is skipped or has weight 0. `skip(i)` is true for the servers that
    /// this connection tried already or that are out of order now.
    /// Does not allocate.
    fn pick(
        &self,
        servers: &[RealServer],
        flow: &Flow,
        skip: &dyn Fn(usize) -> bool,
    ) -> Option<usize>;
}
