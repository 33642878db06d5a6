//! Sockets of an ended process that the holder gave, until a service group takes them.

use std::{mem, net::SocketAddr, sync::Arc};

use hashbrown::HashMap;

use crate::{
    hold::Given,
    net::{Family, Protocol},
};

/// What names a socket: several share an address, one a worker.
type Place = (Protocol, SocketAddr);

/// The sockets that no service group has taken.
#[derive(Debug, Default)]
pub struct GivenSockets {
    places: HashMap<Place, Vec<Given>>,
    /// The local ports among them, by what they were opened for.
    local_ports: HashMap<(Protocol, Family, Arc<str>), SocketAddr>,
}

impl GivenSockets {
    /// Adds a socket. Returns where it is if it has a local port of redirect capture,
    /// which no other group may take.
    pub fn add(&mut self, given: Given) -> Option<Place> {
        let description = given.description();
        let (place, ip) = (
            (description.protocol, description.address),
            description.address.ip(),
        );
        if ip.is_unspecified() {
            let label = Arc::from(&*description.label);
            let name = (description.protocol, Family::of(&ip), label);
            self.local_ports.insert(name, description.address);
        }
        self.places.entry(place).or_default().push(given);
        ip.is_unspecified().then_some(place)
    }

    /// Returns the local port that was opened for `label`.
    pub fn local_port(
        &self,
        protocol: Protocol,
        family: Family,
        label: &Arc<str>,
    ) -> Option<SocketAddr> {
        let name = (protocol, family, Arc::clone(label));
        let address = *self.local_ports.get(&name)?;
        self.places
            .contains_key(&(protocol, address))
            .then_some(address)
    }

    /// Returns the sockets at an address.
    pub fn take(&mut self, protocol: Protocol, address: SocketAddr) -> Vec<Given> {
        let taken = self.places.remove(&(protocol, address));
        taken.unwrap_or_default()
    }

    /// Returns all sockets of `family`.
    pub fn take_family(&mut self, family: Family) -> Vec<Given> {
        let (taken, rest) = mem::take(&mut self.places)
            .into_iter()
            .partition(|((_, address), _)| Family::of(&address.ip()) == family);
        self.places = rest;
        self.local_ports.retain(|(_, of, _), _| *of != family);
        let taken: HashMap<Place, Vec<Given>> = taken;
        taken.into_values().flatten().collect()
    }
}
