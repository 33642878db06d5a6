//! Sockets that no longer listen although this process did not close them: another program may end
//! them in the kernel (`ss -K`, SOCK_DESTROY of `sock_diag(7)`).

use std::{io, mem, net::SocketAddr, os::fd::AsFd, sync::Arc};

use net::Protocol;

use super::{ListenerSet, Listeners, WorkerListener};
use crate::kernel::socket::{
    listening::{self, identity},
    poller::{Poller, Token},
};

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
        for number in 0..listeners.on.len() {
            let on = &listeners.on[number];
            if !on.has_ended(self.name.port.protocol) {
                continue;
            }
            let worker = Arc::clone(&on.worker);
            let fresh = match &self.associations {
                Some(associations) => {
                    let socket = listening::udp(listeners.bind)?;
                    let fresh = self.on_udp(listeners, &worker, socket, associations, false)?;
                    // Its associations send their answers through it.
                    if let Some(ended) = worker.udp.remove(listeners.on[number].token) {
                        ended.close();
                    }
                    fresh
                }
                None => {
                    let Some(ended) = worker.tcp.get(on.token) else {
                        continue;
                    };
                    let socket = listening::tcp(listeners.bind)?;
                    let fresh = self.on_tcp(listeners, &worker, socket, &ended.address, false)?;
                    worker.tcp.remove(listeners.on[number].token);
                    fresh
                }
            };
            listeners.on[number] = fresh;
        }
        Ok(())
    }
}

impl Listeners {
    fn has_ended(&self) -> bool {
        self.on.iter().any(|on| on.has_ended(self.protocol))
    }
}

impl WorkerListener {
    fn has_ended(&self, protocol: Protocol) -> bool {
        match protocol {
            Protocol::Udp => has_ended(&self.worker.udp, self.token),
            _ => has_ended(&self.worker.tcp, self.token),
        }
    }
}

fn has_ended<S: AsFd + 'static>(poller: &Poller<S>, token: Token) -> bool {
    let socket = poller.get(token);
    socket.is_none_or(|socket| identity(&*socket).is_none())
}
