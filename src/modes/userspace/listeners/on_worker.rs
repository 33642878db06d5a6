//! One socket of an address on one worker.

use std::{
    io,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use socket2::Socket;

use super::{ListenerSet, Listeners, WorkerListener};
use crate::{
    hold::{Held, Listening},
    kernel::socket::listening,
    modes::userspace::proxy::{group::ListenerAddress, tcp, udp, workers::Worker},
};

/// Makes the workers of `listeners` continue the flows that came in at their address in another
/// process.
pub(super) fn go_on(listeners: &Listeners, associations: &Arc<udp::Associations>) {
    let clients = associations.passed_at(listeners.bind.address);
    let each = clients.len().div_ceil(listeners.on.len().max(1)).max(1);
    for (clients, WorkerListener { worker, token, .. }) in clients.chunks(each).zip(&listeners.on) {
        let Some(listener) = worker.udp.get(*token) else {
            continue;
        };
        let (associations, clients) = (Arc::clone(associations), clients.to_vec());
        worker.spawn(|| async move { associations.go_on(&listener, &clients).await });
    }
}

impl ListenerSet {
    /// Makes `worker` accept connections from a bound socket at the address of `listeners`.
    pub(super) fn on_tcp(
        &self,
        listeners: &Listeners,
        worker: &Arc<Worker>,
        socket: Socket,
        address: &Arc<ListenerAddress>,
        is_shared: bool,
    ) -> io::Result<WorkerListener> {
        if address.filtered.load(Relaxed) {
            // A filter that does not fit was logged when it was made; callers that it would not let
            // in are reset.
            let _ = self.filter.attach(&socket);
        }
        let socket = listening::start(socket)?;
        let listener = Arc::new(tcp::Listener::new(socket, Arc::clone(address)));
        let held: Weak<tcp::Listener> = Arc::downgrade(&listener);
        // Before the worker accepts: it may be another process's turn.
        let held = self.hold(listeners, held, is_shared);
        Ok(WorkerListener {
            token: worker.tcp.add(listener)?,
            worker: Arc::clone(worker),
            held,
        })
    }

    /// Makes `worker` take datagrams from a bound socket at the address of `listeners`.
    pub(super) fn on_udp(
        &self,
        listeners: &Listeners,
        worker: &Arc<Worker>,
        socket: std::net::UdpSocket,
        associations: &Arc<udp::Associations>,
        is_shared: bool,
    ) -> io::Result<WorkerListener> {
        let listener = Arc::new(udp::Listener::new(socket, Arc::clone(associations)));
        let held: Weak<udp::Listener> = Arc::downgrade(&listener);
        let held = self.hold(listeners, held, is_shared);
        Ok(WorkerListener {
            token: worker.udp.add(listener)?,
            worker: Arc::clone(worker),
            held,
        })
    }

    /// Lets other processes have a socket at the address of `listeners`.
    fn hold(
        &self,
        listeners: &Listeners,
        socket: Weak<dyn Listening>,
        is_shared: bool,
    ) -> Option<Held> {
        let (holding, address) = (&listeners.shared.options.holding, listeners.bind.address);
        let label = Arc::clone(&listeners.label);
        holding.hold(self.name.port.protocol, address, label, socket, is_shared)
    }
}
