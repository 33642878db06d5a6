//! The listeners of the service groups as the workers know them: for the simulation, whose rules
//! send packets to real sockets.

use std::{
    any::Any,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Weak},
};

use net::Protocol;

use crate::{
    modes::userspace::{
        Userspace,
        proxy::{
            group::{ListenerAddress, ServiceGroup},
            workers::Worker,
        },
    },
    sched::Flow,
};

/// The listeners of a process, as long as it has workers.
#[derive(Clone, Default)]
pub(crate) struct Listening(Vec<Weak<Worker>>);

/// A listener on an address.
pub(crate) struct Listener {
    at: SocketAddr,
    group: Arc<ServiceGroup>,
    /// The address, which TCP connections that arrive there hold.
    address: Option<Arc<ListenerAddress>>,
}

impl Userspace {
    /// The current listeners, which may be queried at any time.
    pub(crate) fn listening(&self) -> Listening {
        Listening(self.executor.workers.all())
    }
}

impl Listening {
    /// The listeners on an address.
    pub(crate) fn at(&self, protocol: Protocol, at: SocketAddr) -> Vec<Listener> {
        let all = self.all(protocol).filter(|listener| listener.at == at);
        all.collect()
    }

    /// The addresses with a listener.
    pub(crate) fn addresses(&self, protocol: Protocol) -> Vec<SocketAddr> {
        self.all(protocol).map(|listener| listener.at).collect()
    }

    /// All listeners.
    pub(crate) fn all(&self, protocol: Protocol) -> impl Iterator<Item = Listener> {
        let workers = self.0.iter().filter_map(Weak::upgrade);
        workers.flat_map(move |worker| match protocol {
            Protocol::Tcp => {
                let all = worker.tcp.all().into_iter();
                let listeners = all.filter_map(|one| {
                    let at = one.address()?;
                    let address = Arc::clone(&one.of);
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
                    let (at, address) = (one.address()?, None);
                    let group = Arc::clone(&one.of.associations.group);
                    Some(Listener { at, group, address })
                });
                listeners.collect()
            }
        })
    }
}

impl Listener {
    /// Label of the group that it serves.
    pub(crate) fn service_port(&self) -> &str {
        &self.group.label
    }

    /// The value that a TCP connection to it holds while it is open; `None` if it need not hold
    /// any.
    pub(crate) fn connection(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        let address = self.address.as_ref()?;
        Some(Arc::clone(address) as Arc<dyn Any + Send + Sync>)
    }

    /// The endpoints that a new flow may get; empty if it is refused.
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
