//! One socket of an address on one worker.

use std::{
    io,
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
};

use socket2::Socket;

use super::{ListenerSet, Listeners, WorkerListener};
use crate::{
    hold::{Held, SocketDescription},
    kernel::socket::{
        bound::BoundAddress,
        listening,
        poller::{Poller, Token},
        records,
    },
    modes::userspace::proxy::{Shared, listener::Listener, tcp, udp, workers::Worker},
};

/// Makes `worker` serve the connections that wait at a TCP `listener`, and close it. `keep` is
/// dropped after that.
pub(super) fn serve_rest(
    worker: &Worker,
    shared: &Arc<Shared>,
    listener: Arc<tcp::Listener>,
    keep: impl Send + 'static,
) {
    let (shared, placement) = (Arc::clone(shared), worker.placement.clone());
    worker.spawn(|| async move {
        tcp::serve_rest(&shared, &placement, &listener);
        // The holder or a successor may have another descriptor.
        records::stop_listening(&listener);
        drop((listener, keep));
    });
}

impl Listeners {
    /// Makes the workers continue the UDP flows that came in at this address in another process.
    pub(super) fn go_on(&self, associations: &Arc<udp::Associations>) {
        let clients = associations.passed_at(self.bind.address);
        let each = clients.len().div_ceil(self.on.len().max(1)).max(1);
        for (clients, WorkerListener { worker, token, .. }) in clients.chunks(each).zip(&self.on) {
            let Some(listener) = worker.udp.get(*token) else {
                continue;
            };
            let (associations, clients) = (Arc::clone(associations), clients.to_vec());
            worker.spawn(|| async move { associations.go_on(&listener, &clients).await });
        }
    }

    /// Makes a worker, by its `poller`, serve `socket` for `of`.
    fn serve<T: Send + Sync + 'static>(
        &self,
        poller: &Poller<Listener<T>>,
        socket: Socket,
        of: T,
        is_shared: bool,
    ) -> io::Result<(Token, Option<Held>)> {
        let listener = Arc::new(Listener::new(socket, of));
        let socket: Weak<Listener<T>> = Arc::downgrade(&listener);
        // Other processes may have it before the worker accepts: it may be the turn of one.
        let description = SocketDescription {
            bound: BoundAddress {
                protocol: self.protocol,
                address: self.bind.address,
            },
            label: Arc::clone(&self.label),
        };
        let holding = self.shared.options.handover.holding();
        let held = holding.hold(description, socket, is_shared);
        Ok((poller.add(listener)?, held))
    }
}

impl ListenerSet {
    /// Makes `worker` serve a bound socket at the address of `listeners`.
    pub(super) fn on(
        &self,
        listeners: &Listeners,
        worker: &Arc<Worker>,
        socket: Socket,
        is_shared: bool,
    ) -> io::Result<WorkerListener> {
        let (token, held) = if let Some(associations) = &self.associations {
            let clients = udp::Clients::new(Arc::clone(associations));
            listeners.serve(&worker.udp, socket, clients, is_shared)?
        } else {
            let address = Arc::clone(&listeners.address);
            if address.filtered.load(Relaxed) {
                // A filter that does not fit was logged when it was made; callers that it would not
                // let in are reset.
                let _ = self.filter.attach(&socket);
            }
            let socket = listening::start(socket)?.into();
            listeners.serve(&worker.tcp, socket, address, is_shared)?
        };
        let worker = Arc::clone(worker);
        Ok(WorkerListener {
            worker,
            token,
            held,
        })
    }
}
