//! Finds the endpoint of a new UDP client, and starts the flow to it.

use std::{fmt, io, net::SocketAddr};

use net::Protocol;
use tokio::net::UdpSocket;

use super::{
    super::{
        super::{backends::Tried, descriptors, dials::Dial},
        Local, connected,
        flows::{Full, Place},
    },
    Associations, Key, flow,
    inherited::{Exchange, Inherited, Passed},
};
use crate::{
    kernel::socket::local_ports::Failure,
    sched::{Flow, RealServer},
};

/// Number of endpoints that may turn out to have no local port left before a new client's datagram
/// is dropped; meanwhile, idle flows of each are ended.
const MOST_FULL: usize = 8;

/// A flow to an endpoint.
pub(super) struct Begun {
    /// Socket that is connected to the endpoint.
    pub(super) backend: UdpSocket,
    /// The address or port to which `backend` is bound.
    pub(super) local: Local,
    pub(super) place: Place,
    /// Datagrams exchanged in another process.
    pub(super) exchange: Exchange,
}

/// Why a flow to an endpoint did not start.
enum NotBegun {
    Full(Full),
    Failed(Failure),
}

impl Associations {
    /// Finds an endpoint for a client that is not among `tried`: the one that it had in another
    /// process, if that can be reached. Endpoints that cannot be reached are added to `tried`.
    pub(super) fn find(
        &self,
        key: Key,
        mut inherited: Option<Inherited>,
        tried: &mut Tried,
    ) -> Option<(RealServer, Begun)> {
        let mut full = 0;
        loop {
            let (endpoint, begun) = match self.choose(key, inherited.take(), tried) {
                Some(chosen) => chosen,
                None if full > 0 => return self.exhausted("local ports"),
                None => return None,
            };
            match begun {
                Ok(flow) => {
                    if self.shared.udp.exhaustion_logged.is_over() {
                        tracing::info!("no new UDP client was turned away for a minute");
                    }
                    return Some((endpoint, flow));
                }
                Err(NotBegun::Full(Full::All)) => return self.exhausted("file descriptors"),
                Err(NotBegun::Full(Full::Endpoint)) => {
                    full += 1;
                    if full == MOST_FULL || self.group.has_affinity() {
                        return self.exhausted("local ports");
                    }
                    tried.add(endpoint.address);
                }
                Err(NotBegun::Failed(Failure::NoPort)) => {
                    self.count_ended(self.shared.udp.flows.make_room(endpoint.address));
                    return self.exhausted("local ports");
                }
                Err(NotBegun::Failed(Failure::Other(e))) if descriptors::exhausted(&e) => {
                    return self.exhausted("file descriptors");
                }
                // Usually there is no route to it, or datagrams would come back to this process.
                Err(NotBegun::Failed(Failure::Other(e))) => {
                    self.unreachable(key, &endpoint, tried, &e);
                }
            }
        }
    }

    /// Chooses the endpoint for a client, the `inherited` one if flows may continue there, and
    /// starts the flow to it.
    fn choose(
        &self,
        key: Key,
        inherited: Option<Inherited>,
        tried: &mut Tried,
    ) -> Option<(RealServer, Result<Begun, NotBegun>)> {
        let flow = flow(key);
        let inherited = inherited.and_then(|Inherited { endpoint, passed }| {
            Some((self.group.prefer(endpoint)?, passed))
        });
        match inherited {
            Some((endpoint, passed)) => {
                let begun = self.begin_flow(&flow, &endpoint, passed);
                Some((endpoint, begun))
            }
            None => {
                let begin = |endpoint: &RealServer| self.begin_flow(&flow, endpoint, None);
                self.group.begin(&flow, tried, begin)
            }
        }
    }

    fn begin_flow(
        &self,
        flow: &Flow,
        endpoint: &RealServer,
        passed: Option<Passed>,
    ) -> Result<Begun, NotBegun> {
        let (shared, address) = (&self.shared, endpoint.address);
        let mark = shared.mark_to(&self.group, Protocol::Udp, address);
        let mark = mark.map_err(|error| NotBegun::Failed(Failure::Other(error)))?;
        let (place, ended) = shared.udp.flows.begin(&self.group.label, address);
        self.count_ended(ended);
        let place = place.map_err(NotBegun::Full)?;
        let (backend, local, exchange) = match passed {
            None => {
                let new = connected(shared, flow, address, mark).map_err(NotBegun::Failed)?;
                (new.0, new.1, Exchange::default())
            }
            Some(passed) => {
                place.was_used(passed.idle());
                let continued = passed.take_over();
                continued.map_err(|error| NotBegun::Failed(Failure::Other(error)))?
            }
        };
        Ok(Begun {
            backend,
            local,
            place,
            exchange,
        })
    }

    /// Records that the endpoint cannot be reached from this node; another one may be.
    fn unreachable(&self, key: Key, endpoint: &RealServer, tried: &mut Tried, error: &io::Error) {
        tracing::trace!(service = %self.label(), endpoint = %endpoint.address, "{error}");
        self.group.failed(endpoint.address);
        self.shared.counters.dial_failures.inc();
        self.remember(key, endpoint.address, Err(error));
        tried.add(endpoint.address);
    }

    /// Logs the outcome of an attempt for those who follow the ServicePort.
    pub(super) fn remember(
        &self,
        (client, _): Key,
        endpoint: SocketAddr,
        outcome: Result<&UdpSocket, &dyn fmt::Display>,
    ) {
        let dial = || Dial {
            client,
            endpoint,
            from: outcome.ok().and_then(|socket| socket.local_addr().ok()),
            error: outcome.err().map(ToString::to_string),
        };
        self.shared.dials.add(self.label(), Protocol::Udp, dial);
    }

    /// Logs that there is not enough of `what` for another client, so that trying another endpoint
    /// would not help. Returns `None`.
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
