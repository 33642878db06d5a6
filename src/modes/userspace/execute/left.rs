//! Local ports to which the rules of an ended process still lead: a service group has the one
//! of its frontends again, and no other group has it before capture is in force.

use std::{collections::HashMap, net::SocketAddr};

use super::{
    super::{
        capture::Frontend,
        listeners::{
            ListenerSet,
            redirect_ports::{RedirectPort, RedirectPorts},
        },
        plan::GroupName,
    },
    Executor,
};
use crate::net::{Family, Protocol};

/// A protocol, and the wildcard address with a local port.
type Place = (Protocol, SocketAddr);

/// The ports of ended processes.
#[derive(Debug, Default)]
pub struct LeftPorts {
    places: HashMap<Frontend, Place>,
    frontends: HashMap<Place, Vec<Frontend>>,
}

impl LeftPorts {
    /// Returns the local port that an ended process had for frontends of this group alone, if
    /// its clients do not call it.
    pub fn local_port(
        &self,
        ports: &mut RedirectPorts,
        name: &GroupName,
        group: &ListenerSet,
    ) -> Option<RedirectPort> {
        let led = |frontend| self.places.get(frontend);
        let place = group.frontends.iter().find_map(led)?;
        let address = place.1;
        let is_of_group = |one: &Frontend| group.frontends.contains(one);
        let is_called = group.is_called_at(address.port());
        if is_called || !self.frontends.get(place)?.iter().all(is_of_group) {
            return None;
        }
        ports.have_again(name.port.protocol, address).ok()
    }
}

impl Executor {
    /// Takes in where the rules of an ended process lead, before there are groups of this
    /// family.
    pub fn take_left(&mut self, family: Family, left: Vec<(Frontend, u16)>) {
        for (frontend, port) in left {
            let place = (frontend.protocol, (family.unspecified(), port).into());
            self.ports.keep(place.0, place.1);
            self.left.places.insert(frontend, place);
            self.left.frontends.entry(place).or_default().push(frontend);
        }
    }

    /// Lets other groups have the ports that no group of `family` has again: nothing leads
    /// there any more.
    pub fn give_up_left(&mut self, family: Family) {
        self.left.places.retain(|one, _| one.family != family);
        let is_of_family = |(_, address): &Place| Family::of(&address.ip()) == family;
        let left = self
            .left
            .frontends
            .extract_if(|place, _| is_of_family(place));
        let left: Vec<Place> = left.map(|(place, _)| place).collect();
        self.give_up(left);
    }
}
