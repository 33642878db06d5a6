//! The endpoint of a new UDP client, and the way there.

use std::{io, net::SocketAddr};

use tokio::net::UdpSocket;

use super::{
    super::{
        super::{
            backends::{Endpoint, Tried},
            descriptors,
        },
        Local, connected,
        flows::{Full, Place},
    },
    Associations, Key, flow,
};
use crate::{kernel::socket::local_ports::Failure, net::Protocol};

/// Endpoints that may be found to have as many flows as there are local ports, before a
/// datagram of a new client is dropped: of each, flows that are idle end meanwhile.
const MOST_FULL: usize = 8;

/// An endpoint that takes a client.
pub(super) struct Found {
    pub(super) endpoint: Endpoint,
    /// Connected to it.
    pub(super) backend: UdpSocket,
    /// What `backend` is bound to.
    pub(super) local: Local,
    pub(super) place: Place,
}

impl Associations {
    /// Returns the endpoint for a client that is not among `tried`, to which those are added
    /// that cannot be reached.
    pub(super) fn find(&self, key: Key, tried: &mut Tried) -> Option<Found> {
        let mut preferred = self.inherited(&key).filter(|_| tried.is_empty());
        let mut full = 0;
        loop {
            let endpoint = match self.choose(key, preferred.take(), tried) {
                Some(endpoint) => endpoint,
                None if full > 0 => return self.exhausted("local ports"),
                None => return None,
            };
            if self
                .shared
                .comes_back(&self.group, Protocol::Udp, endpoint.address)
            {
                let error = io::Error::other("its calls come back here");
                self.unreachable(&endpoint, tried, &error);
                continue;
            }
            let (place, ended) = self
                .shared
                .udp
                .flows
                .begin(&self.group.label, endpoint.address);
            self.count_ended(ended);
            let place = match place {
                Ok(place) => place,
                Err(Full::All) => return self.exhausted("file descriptors"),
                Err(Full::Endpoint) => {
                    full += 1;
                    if full == MOST_FULL || self.group.has_affinity() {
                        return self.exhausted("local ports");
                    }
                    tried.add(endpoint.address);
                    continue;
                }
            };
            match connected(&self.shared, &flow(key), endpoint.address) {
                Ok((backend, local)) => {
                    if self.shared.udp.exhaustion_logged.is_over() {
                        tracing::info!("no new UDP client was turned away for a minute");
                    }
                    return Some(Found {
                        endpoint,
                        backend,
                        local,
                        place,
                    });
                }
                Err(Failure::NoPort) => {
                    self.count_ended(self.shared.udp.flows.make_room(endpoint.address));
                    return self.exhausted("local ports");
                }
                Err(Failure::Other(e)) if descriptors::exhausted(&e) => {
                    return self.exhausted("file descriptors");
                }
                // No route leads there, most often.
                Err(Failure::Other(e)) => self.unreachable(&endpoint, tried, &e),
            }
        }
    }

    /// Returns the endpoint for a client: the one that is `preferred`, if it takes clients.
    fn choose(
        &self,
        key: Key,
        preferred: Option<SocketAddr>,
        tried: &mut Tried,
    ) -> Option<Endpoint> {
        let preferred = preferred.and_then(|address| self.group.prefer(&flow(key), address));
        preferred.or_else(|| self.group.pick(&flow(key), tried))
    }

    /// The endpoint cannot be reached from here: another one may be.
    fn unreachable(&self, endpoint: &Endpoint, tried: &mut Tried, error: &io::Error) {
        tracing::trace!(service = %self.label(), endpoint = %endpoint.address, "{error}");
        self.group.failed(endpoint.address);
        self.shared.counters.dial_failures.inc();
        tried.add(endpoint.address);
    }

    /// There is not enough of `what` for another client, and no other endpoint can help.
    pub(super) fn exhausted<T>(&self, what: &str) -> Option<T> {
        self.shared.counters.udp_exhausted.inc();
        if self.shared.udp.exhaustion_logged.is_first() {
            tracing::warn!(
                service = %self.label(),
                "no {what} are left for new UDP clients, whose datagrams are dropped; UDP may take \
                 half of net.ipv4.ip_local_port_range for each endpoint, and half of the open \
                 files (ulimit -n), and of those that there is memory for; tripod_userspace_udp_exhausted_total counts them"
            );
        }
        None
    }

    fn count_ended(&self, ended: usize) {
        let ended = u64::try_from(ended).unwrap_or(u64::MAX);
        self.shared.counters.udp_ended_early.inc_by(ended);
    }
}
