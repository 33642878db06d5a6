//! Sockets that listen no longer though nothing here closed them: another program may end
//! them in the kernel (`ss -K`, SOCK_DESTROY of `sock_diag(7)`).

use std::net::SocketAddr;

use super::{ListenerSet, Listeners};
use crate::{kernel::socket::listening::identity, net::Protocol};

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
            Protocol::Udp => {
                let listener = on.worker.udp.get(on.token);
                listener.is_none_or(|listener| identity(&*listener).is_none())
            }
            _ => {
                let listener = on.worker.tcp.get(on.token);
                listener.is_none_or(|listener| identity(&*listener).is_none())
            }
        })
    }
}
