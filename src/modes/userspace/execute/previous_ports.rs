//! Local ports to which the rules of an ended process redirect, of which no socket is left: a
//! service group has the one of its frontends again, and no other group has it before capture is
//! applied.

use std::collections::HashMap;

use net::{Family, Frontend};

use super::{
    super::listeners::{
        ListenerSet,
        redirect_ports::{RedirectPort, RedirectPorts},
    },
    Executor,
};
use crate::kernel::socket::bound::BoundAddress;

/// The ports of earlier processes.
#[derive(Debug, Default)]
pub struct PreviousPorts {
    /// The local port, with the wildcard address, to which the rules of each frontend redirect;
    /// `None` if routes captured it.
    ports: HashMap<Frontend, Option<BoundAddress>>,
    /// The frontends of each port, unless a group has it again: the kernel would let two groups bind
    /// it.
    frontends: HashMap<BoundAddress, Vec<Frontend>>,
}

impl PreviousPorts {
    /// Returns whether an earlier process captured `frontend`.
    pub fn captured(&self, frontend: &Frontend) -> bool {
        self.ports.contains_key(frontend)
    }

    /// Returns the local port that an earlier process had for frontends of this group alone, if
    /// its clients do not call it and no group had it again.
    pub fn local_port(
        &mut self,
        ports: &mut RedirectPorts,
        group: &ListenerSet,
    ) -> Option<RedirectPort> {
        let led = |frontend| *self.ports.get(frontend)?;
        let port = group.frontends.iter().find_map(led)?;
        let is_of_group = |one: &Frontend| group.frontends.contains(one);
        let is_called = group.is_called_at(port.address.port());
        if is_called || !self.frontends.get(&port)?.iter().all(is_of_group) {
            return None;
        }
        let again = ports.have_again(port).ok()?;
        self.frontends.remove(&port);
        Some(again)
    }
}

impl Executor {
    /// Records where the rules of an earlier process redirect to, before there are groups
    /// of this family.
    pub fn take_previous_ports(&mut self, family: Family, redirects: Vec<(Frontend, u16)>) {
        for (frontend, port) in redirects {
            if port == 0 {
                self.previous.ports.insert(frontend, None);
                continue;
            }
            let port = BoundAddress {
                protocol: frontend.protocol,
                address: (family.unspecified(), port).into(),
            };
            self.ports.keep(port);
            self.previous.ports.insert(frontend, Some(port));
            self.previous
                .frontends
                .entry(port)
                .or_default()
                .push(frontend);
        }
    }

    /// Lets other groups have the ports that no group of `family` has again: nothing is
    /// redirected there any more.
    pub fn give_up_previous_ports(&mut self, family: Family) {
        self.previous.ports.retain(|one, _| one.family != family);
        let is_of_family = |port: &BoundAddress| Family::of(&port.address.ip()) == family;
        let unused = self
            .previous
            .frontends
            .extract_if(|port, _| is_of_family(port));
        let unused: Vec<BoundAddress> = unused.map(|(port, _)| port).collect();
        self.give_up(unused);
    }
}
