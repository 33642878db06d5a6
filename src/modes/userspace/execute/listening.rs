//! Which service group listens where, as its workers have it: for the simulation, whose
//! rules send packets to real sockets.

use std::{
    any::Any,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
};

use net::Protocol;

use crate::{
    modes::userspace::{
        Userspace,
        proxy::{group::ServiceGroup, tcp::ListenerAddress, workers::Worker},
    },
    sched::Flow,
};

/// The sockets of a process, as long as it has some.
#[derive(Clone, Default)]
pub(crate) struct Listening(Vec<Weak<Worker>>);

/// What listens at an address.
pub(crate) struct Listener {
    at: SocketAddr,
    group: Arc<ServiceGroup>,
    /// The address, which TCP connections that come in there hold.
    address: Option<Arc<ListenerAddress>>,
}

impl Userspace {
    /// Returns a view of who listens where, at any time.
    pub(crate) fn listening(&self) -> Listening {
        Listening(self.executor.workers.all())
    }
}

impl Listening {
    /// Returns what listens at an address.
    pub(crate) fn at(&self, protocol: Protocol, at: SocketAddr) -> Vec<Listener> {
        let all = self.all(protocol).filter(|listener| listener.at == at);
        all.collect()
    }

    /// Returns the addresses with a listener.
    pub(crate) fn addresses(&self, protocol: Protocol) -> Vec<SocketAddr> {
        self.all(protocol).map(|listener| listener.at).collect()
    }

    /// Returns all that listens.
    pub(crate) fn all(&self, protocol: Protocol) -> impl Iterator<Item = Listener> {
        let workers = self.0.iter().filter_map(Weak::upgrade);
        workers.flat_map(move |worker| match protocol {
            Protocol::Tcp => {
                let all = worker.tcp.all().into_iter();
                let listeners = all.filter_map(|one| {
                    let at = one.socket.local_addr().ok()?;
                    let address = Arc::clone(&one.address);
                    let group = Arc::clone(&address.group);
                    Some(Listener {
                        at,
                        group,
                        address: Some(address),
                    })
                });
                listeners.collect::<Vec<_>>()
            }
            Protocol::Udp | Protocol::Sctp => {
                let all = worker.udp.all().into_iter();
                let listeners = all.filter_map(|one| {
                    let (at, group) = one.place();
                    let (at, address) = (at.ok()?, None);
                    Some(Listener { at, group, address })
                });
                listeners.collect()
            }
        })
    }
}

impl Listener {
    /// Returns the ServicePort that it is for.
    pub(crate) fn service_port(&self) -> &str {
        &self.group.label
    }

    /// Returns the value that a TCP connection which came in there holds while it is open; `None`:
    /// it needs to hold nothing.
    pub(crate) fn connection(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let address = self.address.as_ref()?;
        Some(Arc::clone(address) as Arc<dyn Any + Send + Sync>)
    }

    /// Returns the endpoints that a new flow may get; empty: it is refused.
    pub(crate) fn endpoints(&self, flow: &Flow) -> Vec<SocketAddr> {
        if !self.group.admits(flow) {
            return Vec::new();
        }
        self.group.candidates(flow)
    }

    /// Returns whether clients stay on their endpoints.
    pub(crate) fn has_affinity(&self) -> bool {
        self.group.has_affinity()
    }

    /// Makes a client stay on an endpoint, as if its connection had been sent there.
    pub(crate) fn pin(&self, client: IpAddr, endpoint: SocketAddr) {
        self.group.pin(client, endpoint);
    }
}
