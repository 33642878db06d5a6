//! Sockets of other processes: service groups take those at their addresses, and the others are
//! closed.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use net::{Family, Protocol};

use super::{
    super::{
        listeners::{
            ListenerSet,
            inherited::InheritedSockets,
            redirect_ports::{RedirectPort, RedirectPorts},
        },
        options::Role,
        plan::GroupName,
    },
    Executor,
};
use crate::{
    hold::{InheritedSocket, SocketDescription},
    kernel::socket::bound::BoundAddress,
    services::ServicePortName,
};

/// Returns the local port that an ended process had for a group, if its clients do not
/// call it: the rules that it left redirect there.
pub fn local_port(
    inherited: &InheritedSockets,
    ports: &mut RedirectPorts,
    name: &GroupName,
    group: &ListenerSet,
) -> Option<RedirectPort> {
    let (protocol, family) = (name.port.protocol, name.port.family);
    let port = inherited.local_port(protocol, family, name.label())?;
    if group.is_called_at(port.address.port()) {
        return None;
    }
    ports.adopt(port).ok()
}

impl Executor {
    /// Takes what other processes gave since the last call: groups that listen where the sockets are
    /// get them.
    pub fn take_inherited(&mut self) {
        let holding = self.shared.options.handover.holding();
        self.assignments.inherit(holding.take_notes());
        for (record, socket) in holding.take_flows() {
            self.assignments.inherit_flow(&record, socket, false);
        }
        self.assignments.give();
        let role = self.shared.options.role;
        // Node ports on loopback have no flows, and others may.
        if role != Role::LoopbackNodePorts && holding.have_stopped() {
            let groups = self.groups.values_mut();
            groups.for_each(|group| group.begin_turn(&self.shared, &self.workers));
        }
        let inherited = holding.take_inherited(|at| match role {
            Role::LoopbackNodePorts => at.bound.address.ip().is_loopback(),
            Role::Mode | Role::Chosen { .. } => true,
        });
        // Usually they come before there are groups, or from the holder.
        let open = if inherited.iter().any(InheritedSocket::is_shared) {
            self.open_addresses()
        } else {
            HashMap::new()
        };
        for inherited in inherited {
            let bound = inherited.description().bound;
            let name = open.get(&bound);
            match name.and_then(|name| self.groups.get_mut(name)) {
                // Its process gave way late: nobody else accepts there from now on.
                Some(group) if inherited.is_shared() => {
                    if let Err(error) = group.join(&self.workers, inherited) {
                        tracing::warn!("a socket at {} cannot be shared: {error}", bound.address);
                    }
                }
                _ => self.inherit(inherited),
            }
        }
    }

    /// The addresses at which groups listen.
    fn open_addresses(&self) -> HashMap<BoundAddress, GroupName> {
        let groups = self.groups.iter();
        let open = groups.flat_map(|(name, group)| {
            let protocol = name.port.protocol;
            let addresses = group.listens_on();
            addresses.map(move |address| (BoundAddress { protocol, address }, name.clone()))
        });
        open.collect()
    }

    /// Keeps a socket until a group takes it, or a full sync is applied.
    pub(super) fn inherit(&mut self, inherited: InheritedSocket) {
        if let Some(port) = self.inherited.add(inherited) {
            self.ports.keep(port);
        }
    }

    /// Closes those of `family` that no group has taken. Waiting connections of a Service
    /// that is still there are served.
    pub fn close_inherited(&mut self, family: Family) {
        if self.shared.options.role != Role::LoopbackNodePorts {
            self.assignments.drop_inherited(family);
        }
        let unclaimed = self.inherited.take_family(family);
        if unclaimed.is_empty() {
            return;
        }
        let groups = self.groups.iter();
        let groups: HashMap<_, _> = groups
            .filter(|(name, _)| name.port.family == family)
            .map(|(name, group)| ((name.port.protocol, name.label()), group))
            .collect();
        let mut ports = HashSet::new();
        for inherited in unclaimed {
            let SocketDescription { bound, label } = inherited.description();
            let group = groups.get(&(bound.protocol, Arc::clone(label)));
            if bound.address.ip().is_unspecified() {
                ports.insert(*bound);
            }
            match group {
                Some(group) if !inherited.is_shared() => {
                    group.serve_rest_of(&self.shared, &self.workers, inherited);
                }
                _ => inherited.close(),
            }
        }
        drop(groups);
        self.give_up(ports);
    }

    /// Closes the sockets of flows of an earlier process that the groups of `port` did not take
    /// over in time.
    pub(super) fn drop_expired_flows(&self, port: &ServicePortName) {
        if port.protocol != Protocol::Udp {
            return;
        }
        let groups = self.groups_of(port);
        let flows = groups.filter_map(|(_, group)| group.associations());
        flows.for_each(|flows| flows.drop_expired());
    }

    /// Gives those of these local ports that no group has to other groups.
    pub(super) fn give_up(&mut self, ports: impl IntoIterator<Item = BoundAddress>) {
        let mut ports = ports.into_iter().peekable();
        if ports.peek().is_none() {
            return;
        }
        let groups = self.groups.values();
        let open: HashSet<_> = groups.filter_map(|group| group.bound()).collect();
        for port in ports.filter(|port| !open.contains(port)) {
            self.ports.give_up(port);
        }
    }
}
