//! Sockets that listen no longer though nothing here closed them: another program may end
//! them in the kernel (`ss -K`, SOCK_DESTROY of `sock_diag(7)`).

use std::{net::SocketAddr, os::fd::AsFd};

use super::{ListenerSet, Listeners};
use crate::{
    kernel::socket::{
        listening::identity,
        poller::{Poller, Token},
    },
    net::Protocol,
};

impl ListenerSet {
    /// Returns the addresses at which one of its sockets listens no longer.
    pub fn ended(&self) -> impl Iterator<Item = SocketAddr> {
        let ended = self.open.iter().filter(|listeners| listeners.has_ended());
        ended.map(|listeners| listeners.address)
    }
}

impl Listeners {
    fn has_ended(&self) -> bool {
        self.on.iter().any(|on| match self.protocol {
            Protocol::Udp => has_ended(&on.worker.udp, on.token),
            _ => has_ended(&on.worker.tcp, on.token),
        })
    }
}

fn has_ended<S: AsFd + 'static>(poller: &Poller<S>, token: Token) -> bool {
    let socket = poller.get(token);
    socket.is_none_or(|socket| identity(&*socket).is_none())
}
