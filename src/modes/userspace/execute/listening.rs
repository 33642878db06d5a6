//! Which service group listens where, as its workers have it: for the simulation, whose
//! packets are led by rules to sockets that are real.

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
};

use crate::{
    modes::userspace::{
        Userspace,
        proxy::{group::ServiceGroup, workers::Worker},
    },
    net::{Family, Protocol},
    sched::Flow,
};

/// The sockets of a process, as long as it has some.
#[derive(Clone, Default)]
pub(crate) struct Listening(Vec<Weak<Worker>>);

/// What listens on a port.
pub(crate) struct Listener(Arc<ServiceGroup>);

impl Userspace {
    /// Returns what says who listens where, at any time.
    pub(crate) fn listening(&self) -> Listening {
        Listening(self.executor.workers.all())
    }
}

impl Listening {
    /// Returns what listens on a wildcard address; `None`: nothing does.
    pub(crate) fn at(&self, protocol: Protocol, family: Family, port: u16) -> Option<Listener> {
        let mut all = self.all(protocol, family);
        let found = all.find(|(address, _)| address.port() == port);
        found.map(|(_, group)| Listener(group))
    }

    /// Returns the ports with a listener.
    pub(crate) fn ports(&self, protocol: Protocol, family: Family) -> Vec<u16> {
        let all = self.all(protocol, family);
        all.map(|(address, _)| address.port()).collect()
    }

    fn all(
        &self,
        protocol: Protocol,
        family: Family,
    ) -> impl Iterator<Item = (SocketAddr, Arc<ServiceGroup>)> {
        let workers = self.0.iter().filter_map(Weak::upgrade);
        let sockets = workers.flat_map(move |worker| match protocol {
            Protocol::Tcp => {
                let all = worker.tcp.all().into_iter();
                let place =
                    all.map(|one| (one.socket.local_addr(), Arc::clone(&one.address.group)));
                place.collect::<Vec<_>>()
            }
            Protocol::Udp | Protocol::Sctp => {
                let all = worker.udp.all().into_iter();
                all.map(|one| one.place()).collect()
            }
        });
        sockets.filter_map(move |(address, group)| {
            let address = address.ok()?;
            (Family::of(&address.ip()) == family).then_some((address, group))
        })
    }
}

impl Listener {
    /// Returns the ServicePort that it is for.
    pub(crate) fn service_port(&self) -> &str {
        &self.0.label
    }

    /// Returns the endpoints that a new flow may get; none: it is refused.
    pub(crate) fn endpoints(&self, flow: &Flow) -> Vec<SocketAddr> {
        if !self.0.admits(flow) {
            return Vec::new();
        }
        self.0.candidates(flow)
    }
}
