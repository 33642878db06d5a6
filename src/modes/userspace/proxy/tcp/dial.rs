//! Finds a backend for an accepted client: which endpoints are tried, in which order and for how
//! long.

use std::{io, net::SocketAddr, time::Duration};

use net::Family;
use socket2::Socket;
use tokio::time::{Instant, timeout};

use super::super::{backends::Tried, descriptors, dials::Dial, ticket::Ticket};
use crate::{
    family_metrics::observe,
    kernel::socket::{bind_transparent, stream::Stream},
    sched::{Flow, RealServer},
    services::Retry,
};

/// How long the first, second, ... attempt of a connection waits for its endpoint, as in the
/// userspace mode of kube-proxy before 1.26.
const TIMEOUTS: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
];

/// Limits of a client's search for a backend.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of attempts to connect.
    pub attempts: usize,
    /// Maximum time for all attempts together, including the time in which endpoints accepted the
    /// connection but sent nothing before they reset it.
    pub time: Duration,
}

/// A connection to an endpoint.
#[derive(Debug)]
pub struct Dialed {
    pub stream: Stream,
    pub endpoint: RealServer,
}

/// One client's search for a backend that answers.
#[derive(Debug)]
pub struct Search<'a> {
    /// Counts at the endpoint that is tried, or that answered.
    pub ticket: &'a mut Ticket,
    flow: Flow,
    /// Endpoints tried in this round; none is tried twice before all have been tried.
    tried: Tried,
    attempts: usize,
    /// The limits, with the remaining time.
    limits: Limits,
    /// Whether an endpoint received the client's data: no endpoint is tried twice from then on.
    sent: bool,
    timed_out: usize,
    /// Whether an endpoint has reset the connection after a while.
    was_late: bool,
    /// Whether endpoints see the node's address from now on, because an endpoint that was shown the
    /// client's did not answer.
    plain: bool,
}

impl<'a> Search<'a> {
    /// A search for `flow` among the service group's endpoints, with what `retry` allows.
    pub fn new(ticket: &'a mut Ticket, flow: Flow, retry: Retry) -> Self {
        let limits = ticket.shared.options.dial;
        Search {
            ticket,
            flow,
            tried: Tried::default(),
            sent: false,
            attempts: 0,
            limits: match retry {
                Retry::FirstFlight | Retry::Connect => limits,
                Retry::Off => Limits {
                    attempts: 1,
                    ..limits
                },
            },
            timed_out: 0,
            was_late: false,
            plain: false,
        }
    }

    /// The next endpoint that answers, or `None` when the limits of the search are reached, or
    /// nothing is left to try: every endpoint was tried, and at least as many attempts were made as
    /// there are timeouts.
    pub async fn next(&mut self) -> Option<Dialed> {
        while self.attempts < self.limits.attempts && !self.limits.time.is_zero() {
            self.ticket.leave_endpoint();
            let group = &self.ticket.group;
            let endpoint = match group.pick(&self.flow, &mut self.tried) {
                Some(endpoint) => endpoint,
                None if self.tried.is_empty() || self.sent => return None,
                None if self.attempts >= TIMEOUTS.len() => return None,
                None => {
                    self.tried.clear();
                    continue;
                }
            };
            let shared = &self.ticket.shared;
            let mark = match shared.mark_to(group, net::Protocol::Tcp, endpoint.address) {
                Ok(mark) => mark,
                Err(error) => {
                    self.attempts += 1;
                    self.failed(endpoint.address, &error);
                    continue;
                }
            };
            if self.attempts > 0 {
                shared.counters.dial_retries.inc();
            }
            self.ticket.enter(&endpoint);
            self.attempts += 1;
            let patience = TIMEOUTS[self.timed_out.min(TIMEOUTS.len() - 1)];
            let patience = patience.min(self.limits.time);
            let begun = Instant::now();
            // Boxed, so that a connection does not keep the space for it until its end.
            let dialed = Box::pin(self.dial(endpoint.address, mark, patience)).await;
            self.waited(begun.elapsed());
            match dialed {
                Ok(stream) => {
                    self.remember(endpoint.address, Ok(&stream));
                    self.answered();
                    if self.ticket.shared.ports_logged.is_over() {
                        tracing::info!("local ports are available again");
                    }
                    return Some(Dialed { stream, endpoint });
                }
                // Other endpoints could not be reached either, and none of them has failed.
                Err(error) if descriptors::exhausted(&error) => {
                    self.remember(endpoint.address, Err(&error));
                    return None;
                }
                Err(error) => {
                    if error.kind() == io::ErrorKind::TimedOut {
                        self.timed_out += 1;
                    }
                    if error.kind() == io::ErrorKind::AddrNotAvailable {
                        // The endpoint has not failed; another one may still be reachable.
                        self.log_exhausted_ports(endpoint.address);
                        self.not_reached(endpoint.address, &error);
                    } else {
                        self.failed(endpoint.address, &error);
                    }
                }
            }
        }
        None
    }

    /// Records that the client has waited for this `time`, which reduces the remaining time of the
    /// search.
    fn waited(&mut self, time: Duration) {
        self.limits.time = self.limits.time.saturating_sub(time);
    }

    /// Records how long the client has waited for the first endpoint that accepted the connection.
    fn answered(&self) {
        if !self.sent && !self.was_late {
            let shared = &self.ticket.shared;
            let waited = shared.options.dial.time.saturating_sub(self.limits.time);
            let family = Family::of(&self.flow.destination);
            observe(&shared.counters.found, family, waited.as_secs_f64());
        }
    }

    /// Records that an endpoint had the connection for this `time` before it reset it. The client
    /// may have been slow as well, so the first time enough is left for one more endpoint.
    pub fn answered_late(&mut self, time: Duration) {
        self.waited(time);
        if !std::mem::replace(&mut self.was_late, true) {
            let least = TIMEOUTS[0].min(self.ticket.shared.options.dial.time);
            self.limits.time = self.limits.time.max(least);
        }
    }

    /// Records that an endpoint received the client's data, and reset the connection; returns false
    /// if another one received it before. A single endpoint may fail for its own reasons; if a
    /// second one resets as well, the data may be the cause.
    pub fn may_be_sent_again(&mut self) -> bool {
        !std::mem::replace(&mut self.sent, true)
    }

    /// Records that `endpoint` did not answer, so that this and other connections try another one.
    pub fn failed(&mut self, endpoint: SocketAddr, why: &dyn std::fmt::Display) {
        self.ticket.group.failed(endpoint);
        self.not_reached(endpoint, why);
    }

    /// Records that `endpoint` was not reached, so that another one is tried next.
    fn not_reached(&mut self, endpoint: SocketAddr, why: &dyn std::fmt::Display) {
        self.tried.add(endpoint);
        self.ticket.shared.counters.dial_failures.inc();
        self.remember(endpoint, Err(why));
        tracing::trace!(
            service = %self.ticket.group.label,
            %endpoint,
            client = %self.flow.client,
            "endpoint did not answer: {why}"
        );
    }

    /// Logs the outcome of an attempt for those who follow the ServicePort.
    fn remember(&self, endpoint: SocketAddr, outcome: Result<&Stream, &dyn std::fmt::Display>) {
        let dial = || Dial {
            client: self.flow.client,
            endpoint,
            from: outcome.ok().and_then(|stream| stream.local_address().ok()),
            error: outcome.err().map(ToString::to_string),
        };
        let (dials, label) = (&self.ticket.shared.dials, &self.ticket.group.label);
        dials.add(label, net::Protocol::Tcp, dial);
    }

    /// Logs once that local ports are exhausted: clients that end their connections first leave our
    /// connections to a busy endpoint in TIME_WAIT, each of which occupies a local port for a
    /// minute (RFC 9293 section 3.6.1).
    fn log_exhausted_ports(&self, endpoint: SocketAddr) {
        if self.ticket.shared.ports_logged.is_first() {
            tracing::warn!(
                service = %self.ticket.group.label,
                %endpoint,
                "this node has no local port left for connections to the endpoint; set \
                 net.ipv4.tcp_tw_reuse=1, or widen net.ipv4.ip_local_port_range (both are for \
                 IPv6 too)"
            );
        }
    }

    async fn dial(
        &mut self,
        endpoint: SocketAddr,
        mark: Option<u32>,
        patience: Duration,
    ) -> io::Result<Stream> {
        let transparent = &self.ticket.shared.transparent;
        if !self.plain && transparent.shows(&self.flow, endpoint) {
            let dialed = self.dial_as(Some(self.flow.client), endpoint, mark, patience);
            match dialed.await.map_err(|e| (e.kind(), e)) {
                Ok(stream) => return Ok(stream),
                // The endpoint itself refused.
                Err((io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset, e)) => {
                    return Err(e);
                }
                Err((_, e)) if descriptors::exhausted(&e) => return Err(e),
                Err((io::ErrorKind::TimedOut, e)) => {
                    transparent.unanswered(&self.flow, endpoint);
                    self.plain = true;
                    return Err(e);
                }
                // The client's address cannot be bound here, or its port cannot be used again for
                // this endpoint.
                Err((_, e)) => tracing::trace!(
                    service = %self.ticket.group.label,
                    %endpoint,
                    client = %self.flow.client,
                    "endpoint sees the node's address: {e}"
                ),
            }
        }
        let stream = self.dial_as(None, endpoint, mark, patience).await?;
        transparent.answered_the_node(&self.flow, endpoint);
        Ok(stream)
    }

    /// Connects, from the address of the client `shown` if there is one, with packets that have
    /// `mark`. If the system has no room for another socket, waits for it as long as the search may
    /// take.
    async fn dial_as(
        &self,
        shown: Option<SocketAddr>,
        endpoint: SocketAddr,
        mark: Option<u32>,
        patience: Duration,
    ) -> io::Result<Stream> {
        let prepare = |socket: &Socket| {
            mark.map_or(Ok(()), |mark| socket.set_mark(mark))?;
            shown.map_or(Ok(()), |client| bind_transparent(socket, client))
        };
        let connect = async || {
            let connected = timeout(patience, Stream::connect(endpoint, prepare)).await;
            connected.unwrap_or_else(|_| {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer within {} ms", patience.as_millis()),
                ))
            })
        };
        let paused = || self.ticket.shared.counters.accept_paused.inc();
        when_there_is_room(self.limits.time, paused, connect).await
    }
}

/// Repeats `attempt` until the system has room for another socket. Returns its result, or its error
/// if there is no room within `limit`. Calls `paused` before each pause.
async fn when_there_is_room<T>(
    limit: Duration,
    paused: impl Fn(),
    attempt: impl AsyncFn() -> io::Result<T>,
) -> io::Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        match attempt().await {
            Err(e) if descriptors::exhausted(&e) && Instant::now() < deadline => {
                paused();
                tokio::time::sleep(super::EXHAUSTED_PAUSE).await;
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use nix::errno::Errno;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn room_for_a_socket_is_waited_for_as_long_as_a_search_may_take() {
        const LIMIT: Duration = Duration::from_secs(5);
        for error in [Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM] {
            for (room_after, expected) in [(3, Ok(())), (60, Err(error))] {
                let begun = Instant::now();
                let pauses = Cell::new(0);
                let attempt = async || match begun.elapsed().as_secs() {
                    passed if passed < room_after => Err(io::Error::from(error)),
                    _ => Ok(()),
                };
                let paused = || pauses.set(pauses.get() + 1);
                let done = when_there_is_room(LIMIT, paused, attempt);
                let done = timeout(LIMIT * 2, done).await.expect("it ends");
                let errno = done.map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)));
                assert_eq!(errno, expected);
                let waited = LIMIT.min(Duration::from_secs(room_after));
                let pauses = super::super::EXHAUSTED_PAUSE * pauses.get();
                assert!(
                    pauses.abs_diff(waited) < Duration::from_millis(200),
                    "{pauses:?}"
                );
            }
        }
    }
}
