//! Sockets that no longer listen although this process did not close them: another program may end
//! them in the kernel (`ss -K`, SOCK_DESTROY of `sock_diag(7)`).

use std::{io, mem, net::SocketAddr, sync::Arc};

use super::{ListenerSet, Listeners, WorkerListener, bound};

impl ListenerSet {
    /// The addresses on which one of its sockets no longer listens.
    pub fn ended(&self) -> impl Iterator<Item = SocketAddr> {
        let ended = self.open.iter().filter(|listeners| listeners.has_ended());
        ended.map(|listeners| listeners.bind.address)
    }

    /// Makes each worker whose socket on an address no longer listens listen there again. The other
    /// workers keep listening.
    ///
    /// # Errors
    /// The first address that cannot be bound; the others are tried all the same.
    pub fn reopen_ended(&mut self) -> Result<(), (SocketAddr, io::Error)> {
        let mut open = mem::take(&mut self.open);
        let mut outcome = Ok(());
        for listeners in &mut open {
            let address = listeners.bind.address;
            let reopened = self.reopen(listeners);
            outcome = outcome.and(reopened.map_err(|error| (address, error)));
        }
        self.open = open;
        outcome
    }

    fn reopen(&self, listeners: &mut Listeners) -> io::Result<()> {
        let protocol = listeners.protocol;
        for number in 0..listeners.on.len() {
            let WorkerListener { worker, token, .. } = &listeners.on[number];
            if worker.has_ended(protocol, *token) {
                let (worker, ended) = (Arc::clone(worker), *token);
                let socket = bound(protocol, listeners.bind)?;
                listeners.on[number] = self.on(listeners, &worker, socket, false)?;
                // The associations of a UDP socket send their answers through it.
                worker.remove(protocol, ended);
            }
        }
        Ok(())
    }
}

impl Listeners {
    fn has_ended(&self) -> bool {
        let mut on = self.on.iter();
        on.any(|on| on.worker.has_ended(self.protocol, on.token))
    }
}
