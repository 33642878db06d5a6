//! The forwarding of packets by IPVS (`net/netfilter/ipvs/ip_vs_core.c`), and changes by others.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use net::{Family, octets};
use nix::errno::Errno;
use tokio::time::Instant;

use super::{Connection, Id, Ipvs, Real, Server};
use crate::packet::Update;

/// `IP_VS_SVC_F_PERSISTENT` of `linux/ip_vs.h`.
const PERSISTENT: u32 = 1;

/// A real server, and the memory of a client that is forwarded there.
type Led = (SocketAddr, Option<Update>);

impl Ipvs {
    /// Returns the real servers to which a new connection of `client` may be forwarded; empty: it
    /// is refused. `None`: there is no such virtual server. Where clients stay on their real
    /// servers, `expires` says that they leave those whose weight is 0.
    pub(crate) fn scheduled(
        &self,
        protocol: u8,
        client: IpAddr,
        at: SocketAddr,
        expires: bool,
    ) -> Option<Vec<Led>> {
        let id: Id = (protocol.into(), at);
        let server = self.servers.get(&id)?;
        if server.flags & PERSISTENT == 0 {
            let reals = self.served_by(protocol, at)?.into_iter();
            return Some(reals.map(|real| (real, None)).collect());
        }
        let stays = self.template(id, client, server, expires);
        let reals = match stays {
            Some(real) => vec![real],
            None => self.served_by(protocol, at)?,
        };
        let remembered = |real: SocketAddr| Update {
            set: format!("{protocol} {at}").into(),
            key: octets(&client).into(),
            data: Some(real.to_string().into_bytes().into()),
            timeout: None,
        };
        let led = reals.into_iter();
        Some(led.map(|real| (real, Some(remembered(real)))).collect())
    }

    /// Returns the real server on which a client stays (`ip_vs_check_template`).
    fn template(
        &self,
        id: Id,
        client: IpAddr,
        server: &Server,
        expires: bool,
    ) -> Option<SocketAddr> {
        let (real, since) = self.templates.get(&(id, client))?;
        let there = server.reals.get(real)?;
        let lasts = since.elapsed() < Duration::from_secs(server.timeout.into());
        (lasts && !(expires && there.weight == 0)).then_some(*real)
    }

    /// Remembers on which real server a client stays, as `scheduled`
    /// says it.
    pub fn remember(&mut self, update: &Update) {
        let at = update.set.split_once(' ');
        let id = at.and_then(|(protocol, at)| Some((protocol.parse().ok()?, at.parse().ok()?)));
        let client = match *update.key {
            [a, b, c, d] => Some([a, b, c, d].into()),
            ref key => <[u8; 16]>::try_from(key).ok().map(IpAddr::from),
        };
        let real = update.data.as_deref().map(String::from_utf8_lossy);
        let real = real.and_then(|real| real.parse().ok());
        if let (Some(id), Some(client), Some(real)) = (id, client, real) {
            self.templates.insert((id, client), (real, Instant::now()));
        }
    }

    /// Returns whether there is such a connection.
    pub(crate) fn has(&self, connection: &Connection) -> bool {
        self.connections.contains(connection)
    }

    /// Refuses virtual servers at an address from now on, and their real servers; `None`:
    /// takes all.
    pub fn refuse(&mut self, refused: Option<(Errno, IpAddr)>) {
        self.refused = refused;
    }

    /// Returns the virtual servers of a family.
    fn of_family(&self, family: Family) -> Vec<Id> {
        let ids = self.servers.keys();
        let ids = ids.filter(|(_, at)| Family::of(&at.ip()) == family);
        ids.copied().collect()
    }

    /// Deletes the virtual server of a family with this number, modulo how many there are,
    /// as another process would. Returns whether there was one.
    pub fn delete_server(&mut self, family: Family, at: usize) -> bool {
        let ids = self.of_family(family);
        let id = ids.get(at % ids.len().max(1));
        let deleted = id.is_some_and(|id| self.servers.remove(id).is_some());
        self.drop_connections();
        deleted
    }

    /// Deletes all virtual servers of a family. Returns whether there were some.
    pub fn delete_servers(&mut self, family: Family) -> bool {
        let ids = self.of_family(family);
        self.servers.retain(|id, _| !ids.contains(id));
        self.drop_connections();
        !ids.is_empty()
    }

    /// Deletes a real server, or gives it another weight, of the virtual server of a family
    /// with the number `at`: the one with the number `real`. Returns whether there was one.
    pub fn edit_real(
        &mut self,
        family: Family,
        (at, real): (usize, usize),
        weight: Option<u32>,
    ) -> bool {
        let ids = self.of_family(family);
        let id = ids.get(at % ids.len().max(1));
        let Some(server) = id.and_then(|id| self.servers.get_mut(id)) else {
            return false;
        };
        let addresses: Vec<SocketAddr> = server.reals.keys().copied().collect();
        let Some(address) = addresses.get(real % addresses.len().max(1)) else {
            return false;
        };
        match (weight, server.reals.get_mut(address)) {
            (Some(weight), Some(there)) => there.weight = weight,
            _ => drop(server.reals.remove(address)),
        }
        self.drop_connections();
        true
    }

    /// Adds a virtual server as another process would, with one real server.
    pub fn add_server(&mut self, protocol: u8, at: SocketAddr, real: SocketAddr) {
        let there = Real {
            weight: 1,
            ..Real::default()
        };
        let server = self.servers.entry((protocol.into(), at));
        server.or_insert_with(|| Server {
            scheduler: "rr".to_owned(),
            flags: super::HASHED,
            timeout: 0,
            netmask: match at {
                SocketAddr::V4(_) => u32::MAX,
                SocketAddr::V6(_) => 128,
            },
            reals: [(real, there)].into(),
        });
    }
}
