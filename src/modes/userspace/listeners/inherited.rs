//! Sockets that other processes gave, until a service group takes them.

use std::{io, net::SocketAddr, sync::Arc};

use hashbrown::HashMap;
use net::{Family, Protocol};
use socket2::Socket;

use crate::{
    hold::{InheritedSocket, Release, SocketDescription},
    kernel::socket::{
        bound::BoundAddress,
        listening::{self, Bind},
    },
};

/// What the local port of a service group was opened for.
type Purpose = (Protocol, Family, Arc<str>);

/// The sockets that no service group has taken.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: HashMap<BoundAddress, Vec<InheritedSocket>>,
    /// The local ports among them.
    local_ports: HashMap<Purpose, BoundAddress>,
}

impl InheritedSockets {
    /// Adds a socket. Returns where it is if it has a local port of redirect capture,
    /// which no other group may take.
    pub fn add(&mut self, inherited: InheritedSocket) -> Option<BoundAddress> {
        let SocketDescription { bound, label } = inherited.description();
        let (bound, ip) = (*bound, bound.address.ip());
        if ip.is_unspecified() {
            let purpose = (bound.protocol, Family::of(&ip), Arc::clone(label));
            self.local_ports.insert(purpose, bound);
        }
        let there = self.sockets.entry(bound).or_default();
        // The holder gives those of a predecessor that ends before this process serves.
        match there.iter_mut().find(|one| one.is_same(&inherited)) {
            Some(same) if same.is_shared() => *same = inherited,
            Some(_) => {}
            None => there.push(inherited),
        }
        ip.is_unspecified().then_some(bound)
    }

    /// Returns how many they are.
    pub fn len(&self) -> usize {
        self.sockets.values().map(Vec::len).sum()
    }

    /// Returns the local port that was opened for `label`.
    pub fn local_port(
        &self,
        protocol: Protocol,
        family: Family,
        label: Arc<str>,
    ) -> Option<BoundAddress> {
        let bound = *self.local_ports.get(&(protocol, family, label))?;
        self.sockets.contains_key(&bound).then_some(bound)
    }

    /// Returns whether there is a socket at an address.
    pub fn is_there(&self, protocol: Protocol, address: SocketAddr) -> bool {
        let bound = BoundAddress { protocol, address };
        self.sockets.contains_key(&bound)
    }

    /// Returns the sockets at an address.
    pub fn take(&mut self, protocol: Protocol, address: SocketAddr) -> Vec<InheritedSocket> {
        let taken = self.sockets.remove(&BoundAddress { protocol, address });
        taken.unwrap_or_default()
    }

    /// Returns all sockets of `family`.
    pub fn take_family(&mut self, family: Family) -> Vec<InheritedSocket> {
        self.local_ports.retain(|(_, of, _), _| *of != family);
        let is_of_family = |bound: &BoundAddress| Family::of(&bound.address.ip()) == family;
        let taken = self.sockets.extract_if(|bound, _| is_of_family(bound));
        taken.flat_map(|(_, sockets)| sockets).collect()
    }
}

/// Takes all sockets that were `inherited` at an address. Returns them with what has the holder
/// close its descriptors.
///
/// # Errors
/// Those of setsockopt(2).
pub(super) fn adopt(
    inherited: &mut Vec<InheritedSocket>,
    bind: Bind,
) -> io::Result<(Vec<Socket>, Vec<Release>)> {
    let parts = inherited.drain(..).map(InheritedSocket::take);
    let (sockets, releases): (Vec<_>, Vec<_>) = parts.unzip();
    let adopted = sockets
        .into_iter()
        .map(|socket| listening::adopt(socket, bind));
    let sockets = adopted.collect::<io::Result<Vec<_>>>()?;
    Ok((sockets, releases.into_iter().flatten().collect()))
}
