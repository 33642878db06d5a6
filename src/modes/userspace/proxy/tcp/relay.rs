//! Relays bytes between a client and its backend: both directions, half-close, back-pressure and
//! resets.

use std::{
    io,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    super::Shared,
    direction::{Direction, Ends, Fault, Phase},
    messages::Messages,
    ring,
};
use crate::kernel::socket::stream::Stream;

/// How long after connecting to a backend a reset still counts as "did not answer", so that another
/// one is tried. Long enough for a backend that hangs before it exits; too short for a machine that
/// read the bytes, was restarted, and now resets connections that it does not know.
pub const ANSWER_WINDOW: Duration = Duration::from_secs(5);

/// Maximum number of bytes that are kept to be sent again: if a client sends more than this before
/// any answer, its backend is accepting it.
const FIRST_FLIGHT: usize = 4 * 1024;

/// Data that a client sent before its backend answered, kept so that it can be sent again to
/// another backend.
#[derive(Debug, Default)]
pub struct FirstFlight {
    pub bytes: Vec<u8>,
    /// Whether the client closed its direction after them.
    pub ended: bool,
}

impl FirstFlight {
    /// Adds data of the client; returns false if it is too much to be kept.
    fn push(&mut self, bytes: &[u8]) -> bool {
        if self.bytes.len() + bytes.len() > FIRST_FLIGHT {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        true
    }
}

/// Result of a relay.
#[derive(Debug)]
pub enum End {
    /// Both directions were closed in an orderly way.
    Closed,
    /// One side reset the connection, or could no longer be reached.
    Reset,
    /// The backend reset the connection before it sent anything; contains the client's data.
    /// Another backend may be tried.
    Unanswered(FirstFlight),
}

/// Event that a relay reports to its owner.
#[derive(Debug)]
pub enum Progress {
    /// One direction was closed, the other is open.
    HalfClosed(Side),
    /// For the first time, the backend does not accept the client's data. While the relay waits for
    /// the backend it reads nothing from the client, and does not see its reset: report that with
    /// [`Relay::client_gone`].
    Stalled,
    /// The connection exchanges short messages, and so do others of this worker: the worker's ring
    /// can move them, see [`Relay::take_up`].
    Messages,
    /// The relay has ended.
    Ended(End),
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client that connected.
    Client,
    /// The chosen endpoint.
    Backend,
}

/// Both directions of one connection.
#[derive(Debug)]
pub struct Relay {
    out: Direction,
    back: Direction,
    half_closed_reported: bool,
    stalled_reported: bool,
    /// Which directions were stalled at the last check.
    stalled: [bool; 2],
    client_gone: bool,
    /// Whether a send to the backend failed because its connection was reset or timed out. The
    /// kernel reports that once: a read then only returns 0, as at an orderly end (`sock_error` in
    /// include/net/sock.h).
    backend_dead: bool,
    since: Instant,
    /// Whether the backend has sent something or ended its direction, or has not reset the
    /// connection for so long that a reset would no longer mean "did not answer".
    answered: bool,
    first_flight: Option<FirstFlight>,
    messages: Messages,
}

impl Relay {
    /// A relay to a newly connected backend. It starts by sending `header`, which is ours, and
    /// `first`, the data that the client sent to a backend that did not answer.
    pub fn new(header: &[u8], first: FirstFlight) -> Self {
        let mut out = Direction::of([header, &first.bytes].concat());
        if first.ended {
            out.phase = Phase::Ended;
        }
        Relay {
            out,
            back: Direction::of(Vec::new()),
            half_closed_reported: false,
            stalled_reported: false,
            stalled: [false; 2],
            client_gone: false,
            backend_dead: false,
            since: Instant::now(),
            answered: false,
            first_flight: Some(first),
            messages: Messages::default(),
        }
    }

    /// Moves all bytes that can be moved.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &Stream,
        backend: &Stream,
        shared: &Shared,
    ) -> Poll<Progress> {
        let (first, messages) = (&mut self.first_flight, &mut self.messages);
        let ends = Ends {
            from: client,
            to: backend,
            sender_dead: false,
            other_closed: self.back.phase == Phase::Closed,
        };
        let out = self.out.poll(cx, &ends, shared, &mut |bytes| {
            messages.moved(bytes.len());
            if first.as_mut().is_some_and(|f| !f.push(bytes)) {
                *first = None;
            }
        });
        match out {
            Poll::Ready(Err(Fault::Sender)) => return Poll::Ready(Progress::Ended(End::Reset)),
            Poll::Ready(Err(Fault::Receiver(why))) => self.backend_takes_no_more(why),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }

        let (answered, messages) = (&mut self.answered, &mut self.messages);
        let dead = self.backend_dead;
        let ends = Ends {
            from: backend,
            to: client,
            sender_dead: dead,
            other_closed: self.out.phase == Phase::Closed,
        };
        let back = self.back.poll(cx, &ends, shared, &mut |bytes| {
            messages.moved(bytes.len());
            // An end is also an answer, if the backend itself sent it.
            if !bytes.is_empty() || !dead {
                *answered = true;
            }
        });
        if self.out.bulk || self.answered {
            self.first_flight = None;
        }
        match back {
            Poll::Ready(Err(Fault::Sender)) => return self.backend_gone(),
            Poll::Ready(Err(Fault::Receiver(_))) => {
                return Poll::Ready(Progress::Ended(End::Reset));
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }

        if self.out.is_stalled() && self.out.phase != Phase::Broken {
            if self.client_gone {
                return Poll::Ready(Progress::Ended(End::Reset));
            }
            if !self.stalled_reported {
                self.stalled_reported = true;
                return Poll::Ready(Progress::Stalled);
            }
        }
        match (self.out.phase, self.back.phase) {
            (Phase::Closed, Phase::Closed) => Poll::Ready(Progress::Ended(End::Closed)),
            (Phase::Broken, Phase::Closed) => self.backend_gone(),
            (Phase::Closed, _) => self.half_closed(Side::Client),
            (_, Phase::Closed) => self.half_closed(Side::Backend),
            (Phase::Open, Phase::Open) if self.is_for_the_ring() => Poll::Ready(Progress::Messages),
            _ => Poll::Pending,
        }
    }

    /// Data that the backend sent earlier may still be readable.
    fn backend_takes_no_more(&mut self, why: io::ErrorKind) {
        self.out.phase = Phase::Broken;
        match why {
            // The backend had ended its direction before the reset, which is an answer (`tcp_reset`
            // in net/ipv4/tcp_input.c).
            io::ErrorKind::BrokenPipe => self.answered = true,
            // The error of shutdown(2), which leaves the reason for the read to report.
            io::ErrorKind::NotConnected => {}
            _ => self.backend_dead = true,
        }
    }

    /// Returns whether the ring should move the messages, and there is no state of which the ring
    /// does not know.
    fn is_for_the_ring(&mut self) -> bool {
        let plain = |direction: &Direction| !direction.bulk && !direction.is_stalled();
        self.answered
            && self.first_flight.is_none()
            && plain(&self.out)
            && plain(&self.back)
            && self.messages.are_for_the_ring()
    }

    /// Continues with what the ring left.
    pub fn take_up(&mut self, remainder: &ring::Remainder, client: &Stream, backend: &Stream) {
        let ring::Remainder { out, back, idle } = remainder;
        // Recorded, because its reset cannot be seen again while the backend accepts nothing.
        self.client_gone |= out.failed;
        self.out.take_up(out, backend);
        self.back.take_up(back, client);
        if !idle {
            self.messages.came_back();
        }
    }

    /// Number of bytes that are buffered because their receivers have not accepted them.
    pub fn buffered(&self) -> usize {
        self.out.buffered() + self.back.buffered()
    }

    /// Number of bytes read from the client and from the backend since the last call.
    pub fn take_counts(&mut self) -> (usize, usize) {
        let (out, back) = (&mut self.out.uncounted, &mut self.back.uncounted);
        (std::mem::take(out), std::mem::take(back))
    }

    /// Returns whether the receiver of either direction accepts nothing now, but did at the last
    /// call.
    pub fn has_stalled(&mut self) -> bool {
        let now = [&self.out, &self.back].map(Direction::is_stalled);
        let before = std::mem::replace(&mut self.stalled, now);
        now.iter().zip(before).any(|(now, before)| *now && !before)
    }

    /// Returns whether the backend has answered, and therefore has not failed.
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// Records that time has passed: a backend that has not reset the connection within
    /// [`ANSWER_WINDOW`] counts as having answered.
    pub fn time_passed(&mut self) {
        self.answered |= self.since.elapsed() >= ANSWER_WINDOW;
    }

    /// Records that the client reset the connection. Its earlier data is still delivered as far as
    /// the backend accepts it at once.
    pub fn client_gone(&mut self) {
        self.client_gone = true;
    }

    fn half_closed(&mut self, side: Side) -> Poll<Progress> {
        if self.half_closed_reported {
            return Poll::Pending;
        }
        self.half_closed_reported = true;
        Poll::Ready(Progress::HalfClosed(side))
    }

    /// Handles a reset by the backend. Usually it closed its socket with our bytes unread (RFC 2525
    /// section 2.17) or never accepted the connection: the client's data can be sent to another
    /// one, as long as nothing came back.
    fn backend_gone(&mut self) -> Poll<Progress> {
        let end = match self.first_flight.take() {
            Some(mut first) if self.since.elapsed() < ANSWER_WINDOW => {
                if self.out.phase == Phase::Ended || self.out.phase == Phase::Closed {
                    first.ended = true;
                }
                End::Unanswered(first)
            }
            _ => End::Reset,
        };
        Poll::Ready(Progress::Ended(end))
    }
}

#[cfg(test)]
mod tests;
