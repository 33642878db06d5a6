//! IPVS: virtual servers with their real servers, and connections to them
//! (`net/netfilter/ipvs/ip_vs_ctl.c`).

mod answer;
mod packet;
mod read;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use net::Family;
use netlink::{Message, Request, generic};
use nix::{errno::Errno, libc};
use tokio::time::Instant;

use self::read::{Destination, Service};
use super::message::{ByKind, Refusal, datagram, list};

/// The first number that a generic netlink family gets, apart from the controller's.
const FIRST_FAMILY: u16 = 32;
/// Schedulers that the kernel has.
const SCHEDULERS: [&str; 6] = ["rr", "wrr", "lc", "wlc", "sh", "mh"];
/// `IP_VS_SVC_F_HASHED`: set by the kernel.
const HASHED: u32 = 2;
/// `IP_VS_CONN_F_TUNNEL`: the one way in which a real server may be of another family.
const TUNNEL: u32 = 2;
/// `IP_VS_CONN_F_TUNNEL_TYPE_GUE` of `linux/ip_vs.h`.
const GUE: u8 = 1;

/// Key of a virtual server: the protocol's number, address and port.
type Id = (u16, SocketAddr);

/// IPVS of a network namespace.
#[derive(Clone, Debug)]
pub struct Ipvs {
    /// The number of its generic netlink family.
    family: u16,
    servers: BTreeMap<Id, Server>,
    connections: Vec<Connection>,
    /// The real server on which each client of a virtual server with session affinity
    /// stays, and since when.
    templates: BTreeMap<(Id, IpAddr), (SocketAddr, Instant)>,
    /// Virtual servers at this address, and their real servers, are refused for this
    /// reason.
    refused: Option<(Errno, IpAddr)>,
    /// The timeouts of TCP, of TCP after a FIN, and of UDP, in seconds.
    timeouts: [u32; 3],
}

/// A virtual server.
#[derive(Clone, Debug)]
struct Server {
    scheduler: String,
    flags: u32,
    /// How long a client stays on its real server, in seconds.
    timeout: u32,
    netmask: u32,
    reals: BTreeMap<SocketAddr, Real>,
}

/// A real server.
#[derive(Clone, Debug, Default)]
struct Real {
    method: u32,
    weight: u32,
    upper_threshold: u32,
    lower_threshold: u32,
    tunnel: u8,
    tunnel_port: u16,
}

/// A connection of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The number of the transport protocol.
    pub protocol: u8,
    /// The client's address and port.
    pub client: SocketAddr,
    /// The virtual server.
    pub server: SocketAddr,
    /// The real server.
    pub real: SocketAddr,
}

impl Connection {
    fn id(&self) -> Id {
        (self.protocol.into(), self.server)
    }
}

impl Default for Ipvs {
    fn default() -> Ipvs {
        Ipvs {
            family: FIRST_FAMILY,
            servers: BTreeMap::new(),
            connections: Vec::new(),
            templates: BTreeMap::new(),
            refused: None,
            timeouts: TIMEOUTS,
        }
    }
}

/// The timeouts that the kernel begins with.
const TIMEOUTS: [u32; 3] = [900, 120, 300];
/// The longest one, in seconds: with 1000 ticks a second (`ip_vs_set_timeout`).
const LONGEST_TIMEOUT: u32 = i32::MAX as u32 / 1000;

impl Ipvs {
    /// Returns the real servers that may get a new connection to a virtual server; `None`:
    /// there is no such virtual server.
    pub fn served_by(&self, protocol: u8, server: SocketAddr) -> Option<Vec<SocketAddr>> {
        let server = self.servers.get(&(protocol.into(), server))?;
        let reals = server.reals.iter().filter(|(_, real)| real.weight > 0);
        Some(reals.map(|(address, _)| *address).collect())
    }

    /// Timeouts of TCP, of TCP after a FIN, and of UDP, in seconds.
    pub fn timeouts(&self) -> [u32; 3] {
        self.timeouts
    }

    /// Enters a connection, which its real server counts from now on.
    pub fn connect(&mut self, connection: Connection) {
        if !self.connections.contains(&connection) {
            self.connections.push(connection);
        }
    }

    /// Ends a connection.
    pub fn disconnect(&mut self, connection: &Connection) {
        self.connections.retain(|there| there != connection);
    }

    /// Deletes all virtual servers, as `ipvsadm -C` does.
    pub fn clear(&mut self) {
        self.servers.clear();
        self.drop_connections();
    }

    /// Unloads the module and loads it again.
    pub fn reload(&mut self) {
        *self = Ipvs {
            family: self.family + 1,
            refused: self.refused,
            ..Ipvs::default()
        };
    }

    /// Connections whose real server is gone get no further packets through
    /// (`expire_nodest_conn`).
    fn drop_connections(&mut self) {
        let servers = &self.servers;
        self.connections.retain(|connection| {
            let server = servers.get(&connection.id());
            server.is_some_and(|server| server.reals.contains_key(&connection.real))
        });
        self.templates.retain(|(id, _), (real, _)| {
            let server = servers.get(id);
            server.is_some_and(|server| server.reals.contains_key(real))
        });
    }

    /// Answers a list.
    pub(super) fn dump(
        &self,
        of: &Message<'_>,
        interrupted: bool,
    ) -> Result<Vec<Vec<u8>>, Refusal> {
        let listed = match self.command(of)? {
            read::GET_SERVICE => {
                let all = self.servers.iter();
                all.map(|(id, server)| self.service(*id, server)).collect()
            }
            read::GET_DEST => {
                let service = Service::read(&ByKind::of(of.attributes(generic::HEADER)))?;
                // The kernel lists nothing for a virtual server that does not exist.
                let reals = self.servers.get(&service.id).into_iter();
                let reals = reals.flat_map(|server| &server.reals);
                reals
                    .map(|(address, real)| self.destination(service.id, *address, real))
                    .collect()
            }
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        Ok(list(of, listed, interrupted))
    }

    /// Carries a request out; returns the answer, if there is one in addition to the
    /// acknowledgement.
    pub(super) fn request(&mut self, message: &Message<'_>) -> Result<Option<Vec<u8>>, Refusal> {
        let attributes = ByKind::of(message.attributes(generic::HEADER));
        let answer: Option<Request> = if message.kind == answer::CONTROLLER {
            Some(self.controller(&attributes)?)
        } else {
            match self.command(message)? {
                read::GET_INFO => Some(self.info()),
                read::GET_SERVICE => {
                    let id = Service::read(&attributes)?.id;
                    let server = self.servers.get(&id).ok_or(Errno::ESRCH)?;
                    Some(self.service(id, server))
                }
                read::SET_CONFIG => {
                    self.configure(&attributes)?;
                    None
                }
                read::FLUSH => {
                    self.clear();
                    None
                }
                command => {
                    self.change(command, &attributes)?;
                    None
                }
            }
        };
        Ok(answer.map(|answer| datagram(&answer, 0, message.sequence)))
    }

    /// Returns true for a request that changes nothing.
    pub(super) fn is_question(message: &Message<'_>) -> bool {
        let command = message.header::<{ generic::HEADER }>();
        let asks = |[command, ..]: [u8; generic::HEADER]| {
            [read::GET_INFO, read::GET_SERVICE].contains(&command)
        };
        message.kind == answer::CONTROLLER || command.is_ok_and(asks)
    }

    /// Reads the command of a message to the family of IPVS.
    fn command(&self, message: &Message<'_>) -> Result<u8, Errno> {
        let header = message.header::<{ generic::HEADER }>();
        let [command, ..] = header.map_err(|_| Errno::EINVAL)?;
        if message.kind == self.family {
            Ok(command)
        } else {
            Err(Errno::ENOENT)
        }
    }

    fn configure(&mut self, attributes: &ByKind<'_>) -> Result<(), Errno> {
        let given: [_; 3] = std::array::from_fn(|at| attributes.u32(read::TIMEOUT_TCP + at as u16));
        if given.iter().flatten().any(|given| *given > LONGEST_TIMEOUT) {
            return Err(Errno::EINVAL);
        }
        for (timeout, given) in self.timeouts.iter_mut().zip(given) {
            if let Some(given) = given.filter(|given| *given > 0) {
                *timeout = given;
            }
        }
        Ok(())
    }

    fn change(&mut self, command: u8, attributes: &ByKind<'_>) -> Result<(), Errno> {
        let service = Service::read(attributes)?;
        let there = self.servers.get(&service.id);
        let of_service = [read::NEW_SERVICE, read::SET_SERVICE].contains(&command);
        if of_service {
            service.full.as_ref().ok_or(Errno::EINVAL)?;
        }
        let adds = of_service || [read::NEW_DEST, read::SET_DEST].contains(&command);
        if let Some((errno, _)) = self
            .refused
            .filter(|(_, ip)| adds && *ip == service.id.1.ip())
        {
            return Err(errno);
        }
        if command != read::NEW_SERVICE && there.is_none() {
            return Err(Errno::ESRCH);
        }
        match command {
            read::NEW_SERVICE if there.is_some() => Err(Errno::EEXIST),
            read::NEW_SERVICE | read::SET_SERVICE => self.set_service(service),
            read::DEL_SERVICE => {
                self.servers.remove(&service.id);
                self.drop_connections();
                Ok(())
            }
            read::NEW_DEST | read::SET_DEST | read::DEL_DEST => {
                self.change_real(command, service.id, Destination::read(attributes)?)
            }
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn set_service(&mut self, service: Service) -> Result<(), Errno> {
        let full = service.full.ok_or(Errno::EINVAL)?;
        if !SCHEDULERS.contains(&&*full.scheduler) {
            return Err(Errno::ENOENT);
        }
        if service.id.1.is_ipv6() && !(1..=128).contains(&full.netmask) {
            return Err(Errno::EINVAL);
        }
        let there = self.servers.remove(&service.id);
        let (flags, mask) = full.flags;
        let before = there.as_ref().map_or(0, |there| there.flags);
        let server = Server {
            scheduler: full.scheduler,
            flags: before & !mask | flags & mask | HASHED,
            timeout: full.timeout,
            netmask: full.netmask,
            reals: there.map(|there| there.reals).unwrap_or_default(),
        };
        self.servers.insert(service.id, server);
        Ok(())
    }

    fn change_real(&mut self, command: u8, id: Id, real: Destination) -> Result<(), Errno> {
        let server = self.servers.get_mut(&id).ok_or(Errno::ESRCH)?;
        let there = server.reals.contains_key(&real.address);
        if command == read::DEL_DEST {
            server.reals.remove(&real.address).ok_or(Errno::ENOENT)?;
            self.drop_connections();
            return Ok(());
        }
        let full = real.full.ok_or(Errno::EINVAL)?;
        let of_other_family = Family::of(&real.address.ip()) != Family::of(&id.1.ip());
        if of_other_family && full.method != TUNNEL {
            return Err(Errno::EINVAL);
        }
        if full.lower_threshold > full.upper_threshold || full.weight > i32::MAX as u32 {
            return Err(Errno::ERANGE);
        }
        if full.tunnel == GUE && full.tunnel_port == 0 {
            return Err(Errno::EINVAL);
        }
        match command {
            read::NEW_DEST if there => return Err(Errno::EEXIST),
            read::NEW_DEST if !is_host(&real.address.ip()) => return Err(Errno::EINVAL),
            read::SET_DEST if !there => return Err(Errno::ENOENT),
            _ => {}
        }
        server.reals.insert(real.address, full);
        Ok(())
    }

    /// Returns how many connections a real server has: those of TCP are active, others
    /// inactive.
    fn counts(&self, id: Id, real: SocketAddr) -> (u32, u32) {
        let of_real = |one: &&Connection| one.id() == id && one.real == real;
        let count = self.connections.iter().filter(of_real).count() as u32;
        if i32::from(id.0) == libc::IPPROTO_TCP {
            (count, 0)
        } else {
            (0, count)
        }
    }
}

/// Returns whether an address may be a host's (`ip_vs_new_dest`).
fn is_host(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_multicast() && !ip.is_broadcast() && !ip.is_unspecified(),
        IpAddr::V6(ip) => !ip.is_multicast() && !ip.is_unspecified() && !ip.is_unicast_link_local(),
    }
}
