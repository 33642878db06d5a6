//! One socket of an address on one worker.

use std::{
    io,
    os::fd::AsFd,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use socket2::Socket;

use super::{ListenerSet, Listeners, WorkerListener};
use crate::{
    hold::Held,
    kernel::socket::listening,
    modes::userspace::proxy::{tcp, udp, workers::Worker},
};

/// Makes the workers of `listeners` go on with the flows that came in at their address in another
/// process.
pub(super) fn go_on(listeners: &Listeners, associations: &Arc<udp::Associations>) {
    let clients = associations.passed_at(listeners.bind.address);
    let each = clients.len().div_ceil(listeners.on.len().max(1)).max(1);
    for (clients, WorkerListener { worker, token, .. }) in clients.chunks(each).zip(&listeners.on) {
        let Some(listener) = worker.udp.get(*token) else {
            continue;
        };
        let (associations, clients) = (Arc::clone(associations), clients.to_vec());
        worker.spawn(|| async move { associations.go_on(&listener, &clients) });
    }
}

impl ListenerSet {
    /// Makes `worker` accept connections from a bound socket at the address of `listeners`.
    pub(super) fn on_tcp(
        &self,
        listeners: &Listeners,
        worker: &Arc<Worker>,
        socket: Socket,
        address: &Arc<tcp::ListenerAddress>,
    ) -> io::Result<WorkerListener> {
        if address.filtered.load(Relaxed) {
            // A filter that does not fit was logged when it was made; callers that it would not let
            // in are reset.
            let _ = self.filter.attach(&socket);
        }
        let listener = Arc::new(tcp::Listener {
            socket: listening::start(socket)?,
            address: Arc::clone(address),
        });
        let held: Weak<tcp::Listener> = Arc::downgrade(&listener);
        Ok(WorkerListener {
            token: worker.tcp.add(listener)?,
            worker: Arc::clone(worker),
            held: self.hold(listeners, held),
        })
    }

    /// Makes `worker` take datagrams from a bound socket at the address of `listeners`.
    pub(super) fn on_udp(
        &self,
        listeners: &Listeners,
        worker: &Arc<Worker>,
        socket: std::net::UdpSocket,
        associations: &Arc<udp::Associations>,
    ) -> io::Result<WorkerListener> {
        let listener = Arc::new(udp::Listener::new(socket, Arc::clone(associations)));
        let held: Weak<udp::Listener> = Arc::downgrade(&listener);
        Ok(WorkerListener {
            token: worker.udp.add(listener)?,
            worker: Arc::clone(worker),
            held: self.hold(listeners, held),
        })
    }

    /// Makes the holder keep a socket at the address of `listeners`.
    fn hold(&self, listeners: &Listeners, socket: Weak<dyn AsFd + Send + Sync>) -> Option<Held> {
        let (holding, address) = (&listeners.shared.holding, listeners.bind.address);
        holding.hold(
            self.name.port.protocol,
            address,
            || self.name.label(),
            socket,
        )
    }
}
