//! IP Virtual Server over generic netlink (`linux/ip_vs.h`): virtual servers,
//! their real servers, counters, timeouts.
//!
//! A virtual server is an address and a port that the kernel answers for; its
//! real servers are where it sends the connections. All that is here acts on the
//! network namespace of the thread that opened the socket.
//!
//! ```no_run
//! use tripod::kernel::ipvs::{Forwarding, Ipvs, Protocol, RealServer, ServerId, VirtualServer};
//!
//! # fn main() -> Result<(), tripod::kernel::netlink::Error> {
//! let mut ipvs = Ipvs::open()?;
//! let id = ServerId {
//!     protocol: Protocol::Tcp,
//!     address: "10.96.0.10:80".parse().unwrap(),
//! };
//! ipvs.add(&VirtualServer::new(id, "rr"))?;
//! let real = RealServer::new("10.244.1.7:8080".parse().unwrap(), 1, Forwarding::Masquerade);
//! ipvs.add_real(&id, &real)?;
//! for server in ipvs.list()? {
//!     println!("{server:?}: {:?}", ipvs.list_real(&id)?);
//! }
//! # Ok(())
//! # }
//! ```

mod change;
mod client;
pub(in crate::kernel) mod decode;
mod encode;
mod schedulers;
pub(in crate::kernel) mod table;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, net::SocketAddr, time::Duration};

use nix::libc;

pub use self::{
    change::Change,
    client::{Info, Ipvs, Timeouts},
    schedulers::LONGEST_SCHEDULER_NAME,
    table::TableReal,
};
use crate::net::Family;

/// Transport protocol of a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// `IPPROTO_*`.
    fn number(self) -> u16 {
        let number = match self {
            Protocol::Tcp => libc::IPPROTO_TCP,
            Protocol::Udp => libc::IPPROTO_UDP,
            Protocol::Sctp => libc::IPPROTO_SCTP,
        };
        number as u16
    }

    fn from_number(number: u16) -> Option<Protocol> {
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .into_iter()
            .find(|protocol| protocol.number() == number)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        })
    }
}

/// What tells a virtual server from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its address and port.
    pub address: SocketAddr,
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.protocol, self.address)
    }
}

/// The scheduler also looks at the client's port; what flag 1 means is the
/// scheduler's to say (`IP_VS_SVC_F_SCHED1`, for `sh` and `mh`
/// `IP_VS_SVC_F_SCHED_SH_PORT` and `_MH_PORT`).
pub const HASH_PORTS: u32 = 0x10;
/// Every packet is a connection (`IP_VS_SVC_F_ONEPACKET`).
pub const ONE_PACKET: u32 = 0x4;
/// `IP_VS_SVC_F_PERSISTENT`: set by [`VirtualServer::persistence`].
const PERSISTENT: u32 = 0x1;
/// `IP_VS_SVC_F_HASHED`: the kernel's own mark.
const HASHED: u32 = 0x2;

/// A virtual server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualServer {
    /// What tells it from the others.
    pub id: ServerId,
    /// Its scheduler, at most 15 characters.
    pub scheduler: Cow<'static, str>,
    /// Connections of one client go to one real server until this long after
    /// the last one ended; in whole seconds.
    pub persistence: Option<Duration>,
    /// How many bits of a client's address tell clients apart for that.
    pub client_bits: u8,
    /// [`HASH_PORTS`], [`ONE_PACKET`] and the scheduler's other flags.
    pub flags: u32,
}

impl VirtualServer {
    /// One without persistence and flags.
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
    /// To a process here, as they are.
    Local,
    /// Wrapped in another packet.
    Tunnel,
    /// As they are, to the real server's link address.
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

/// What packets are wrapped in (`IP_VS_CONN_F_TUNNEL_TYPE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wrapping {
    /// IP in IP.
    #[default]
    IpInIp,
    /// Generic UDP encapsulation, to that port.
    Gue {
        /// The port.
        port: u16,
    },
    /// GRE.
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
    /// For [`Forwarding::Tunnel`].
    pub wrapping: Wrapping,
    /// Connections above which it gets no more; 0: no limit.
    pub upper_threshold: u32,
    /// Connections below which it gets some again; 0: three quarters of the
    /// upper threshold.
    pub lower_threshold: u32,
}

impl RealServer {
    /// One without limits.
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

/// Counters of a virtual or real server since it was made, and rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Connections.
    pub connections: u64,
    /// Packets from clients.
    pub packets_in: u64,
    /// Packets to clients.
    pub packets_out: u64,
    /// Bytes from clients.
    pub bytes_in: u64,
    /// Bytes to clients.
    pub bytes_out: u64,
    /// Connections a second.
    pub connections_rate: u64,
}

/// A virtual server as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedServer {
    /// The server.
    pub server: VirtualServer,
    /// Its counters.
    pub statistics: Statistics,
}

/// A real server as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedReal {
    /// The server.
    pub server: RealServer,
    /// Connections on which packets flow.
    pub active: u32,
    /// Connections that wait for their end, and UDP flows.
    pub inactive: u32,
    /// Clients that persistence binds to it.
    pub persistent: u32,
    /// Its counters.
    pub statistics: Statistics,
}
