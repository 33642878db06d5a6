#![doc = include_str!("../README.md")]

mod change;
mod client;
pub mod connections;
pub mod decode;
mod encode;
pub mod ipset;
mod schedulers;
pub mod table;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, net::SocketAddr, time::Duration};

use net::{Family, Protocol};

pub use self::{
    change::Change,
    client::{Ipvs, Timeouts, is_gone},
    schedulers::{LONGEST_SCHEDULER_NAME, SCHEDULERS},
    table::{TableReal, is_there},
};

/// The key of a virtual server: no two have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId {
    /// Where clients call it.
    pub address: SocketAddr,
    /// The transport protocol that it speaks.
    pub protocol: Protocol,
}

impl ServerId {
    /// The key of the virtual server with that address and protocol.
    pub fn new(address: impl Into<SocketAddr>, protocol: Protocol) -> ServerId {
        ServerId {
            address: address.into(),
            protocol,
        }
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)
    }
}

/// If the real server that the scheduler picks by a client's address takes no new connections,
/// another does; each scheduler gives the flag its own meaning (`IP_VS_SVC_F_SCHED1`, for `sh` and
/// `mh` `IP_VS_SVC_F_SCHED_SH_FALLBACK` and `_MH_FALLBACK`).
pub const FALL_BACK: u32 = 0x8;
/// The scheduler also looks at the client's port (`IP_VS_SVC_F_SCHED2`, for `sh` and `mh`
/// `IP_VS_SVC_F_SCHED_SH_PORT` and `_MH_PORT`).
pub const HASH_PORTS: u32 = 0x10;
/// `IP_VS_SVC_F_PERSISTENT`: set by [`VirtualServer::persistence`].
const PERSISTENT: u32 = 0x1;
/// `IP_VS_SVC_F_HASHED`: the kernel's own mark.
const HASHED: u32 = 0x2;

/// A virtual server, without its real servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// The key of the virtual server.
    pub id: ServerId,
    /// Its scheduler, at most 15 characters.
    pub scheduler: Cow<'static, str>,
    /// Connections of one client go to one real server until this long after
    /// the last one ended; in whole seconds.
    pub persistence: Option<Duration>,
    /// How many bits of a client's address distinguish it from other clients for that.
    pub client_bits: u8,
    /// [`FALL_BACK`], [`HASH_PORTS`] and other `IP_VS_SVC_F_*`, except those that the kernel sets.
    pub flags: u32,
}

impl VirtualServer {
    /// Returns a virtual server without persistence and flags.
    pub fn new(id: ServerId, scheduler: impl Into<Cow<'static, str>>) -> VirtualServer {
        VirtualServer {
            client_bits: Family::of(&id.address.ip()).bits(),
            id,
            scheduler: scheduler.into(),
            persistence: None,
            flags: 0,
        }
    }
}

/// How packets get to a real server (`IP_VS_CONN_F_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Forwarding {
    /// Their destination is rewritten, and answers must come back this way.
    Masquerade,
    /// They are delivered to a process here, unchanged.
    Local,
    /// They are wrapped in another packet.
    Tunnel,
    /// They are sent to the real server's link address, unchanged.
    DirectRoute,
}

impl Forwarding {
    fn number(self) -> u32 {
        match self {
            Forwarding::Masquerade => 0,
            Forwarding::Local => 1,
            Forwarding::Tunnel => 2,
            Forwarding::DirectRoute => 3,
        }
    }

    /// The low bits of the method (`IP_VS_CONN_F_FWD_MASK`).
    fn from_number(number: u32) -> Option<Forwarding> {
        [
            Forwarding::Masquerade,
            Forwarding::Local,
            Forwarding::Tunnel,
            Forwarding::DirectRoute,
        ]
        .into_iter()
        .find(|method| method.number() == number & 7)
    }
}

/// Outer headers of tunnelled packets (`IP_VS_CONN_F_TUNNEL_TYPE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wrapping {
    /// Another IP packet (RFC 2003).
    #[default]
    IpInIp,
    /// Generic UDP encapsulation, to that port.
    Gue {
        /// Where the other end takes such packets.
        port: u16,
    },
    /// Generic Routing Encapsulation (RFC 2784).
    Gre,
}

/// A real server of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RealServer {
    /// Where it is. Its family may differ from the virtual server's with
    /// [`Forwarding::Tunnel`] only.
    pub address: SocketAddr,
    /// Its share of new connections; 0: none.
    pub weight: u32,
    /// How packets get there.
    pub forwarding: Forwarding,
    /// The outer headers of packets with [`Forwarding::Tunnel`].
    pub wrapping: Wrapping,
    /// Connections above which it gets no more; 0: no limit.
    pub upper_threshold: u32,
    /// Connections below which it gets some again; 0: three quarters of the
    /// upper threshold.
    pub lower_threshold: u32,
}

impl RealServer {
    /// Returns a real server without limits.
    pub fn new(address: SocketAddr, weight: u32, forwarding: Forwarding) -> RealServer {
        RealServer {
            address,
            weight,
            forwarding,
            wrapping: Wrapping::default(),
            upper_threshold: 0,
            lower_threshold: 0,
        }
    }
}

/// A real server as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedReal {
    /// Its settings.
    pub server: RealServer,
    /// Connections on which packets flow.
    pub active: u32,
    /// Connections that wait for their end, and UDP flows.
    pub inactive: u32,
    /// Its traffic since it was added; `None`: the kernel does not say (before 4.1).
    pub totals: Option<Totals>,
}

/// Traffic of a virtual or real server since it was added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that were scheduled.
    pub connections: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients, as far as they come back this way.
    pub bytes_out: u64,
}
