//! Bytes between a client and its backend: both directions, half-close,
//! back-pressure and resets.
//!
//! Short messages pass through a buffer that all connections of a worker
//! share; a direction that proves to be bulk is spliced through a pipe. What
//! a slow receiver does not take is the only thing that a connection keeps.

use std::{
    cell::RefCell,
    io,
    net::Shutdown,
    task::{Context, Poll, ready},
    time::Duration,
};

use socket2::SockRef;
use tokio::time::Instant;

use super::{
    super::buffered::Buffered, budget::Budget, first_flight::FirstFlight, pending::Pending,
};
use crate::kernel::socket::{
    pipe::Pipe,
    stream::{Follows, Read, Stream},
};

/// Size of the buffer that a worker's connections share, in bytes.
const SCRATCH: usize = 64 * 1024;

/// What is read at once while much is kept for slow receivers, in bytes.
const LITTLE: usize = 2 * 1024;

/// A read of at least this many bytes speaks for a bulk flow.
const BULK_READ: usize = 16 * 1024;

/// A splice of less than this speaks against one: the pipe then costs more
/// calls than the copy that it saves.
const SHORT_SPLICE: usize = 4 * 1024;

/// So many reads (or splices) in a row change a direction's way of moving bytes.
const STREAK: u8 = 4;

/// Bytes that one connection moves before the worker's others get a turn.
const TURN: usize = 1024 * 1024;

/// How long after the connection to it a backend's reset still counts as
/// "did not answer", so that another one is tried. Long enough for a backend
/// that hangs before it dies; too short for a machine that read the bytes, was
/// restarted, and now resets what it no longer knows.
pub const ANSWER_WINDOW: Duration = Duration::from_secs(5);

thread_local! {
    static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// How a relay ended.
#[derive(Debug)]
pub enum End {
    /// Both directions were closed in order.
    Closed,
    /// One side reset the connection, or could no longer be reached.
    Reset,
    /// The backend reset the connection before it sent anything; this is what
    /// the client had sent. Another backend may be tried.
    Unanswered(FirstFlight),
}

/// What a relay reports to its owner before the end.
#[derive(Debug)]
pub enum Progress {
    /// One direction was closed, the other is open.
    HalfClosed(Side),
    /// For the first time, the backend does not take what the client sent. Who
    /// waits for the backend reads nothing from the client, and does not see
    /// its reset: say so by [`Relay::client_gone`].
    Stalled,
    /// It is over.
    Ended(End),
}

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The client that connected.
    Client,
    /// The endpoint that was chosen.
    Backend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// The sender has closed; what is under way is still to be delivered.
    Ended,
    Closed,
    /// The receiver no longer takes anything.
    Broken,
}

/// What went wrong, and with which end of the direction.
enum Fault {
    Sender,
    Receiver(io::ErrorKind),
}

/// What one read moved.
struct Moved {
    /// Bytes, 0 at the stream's end.
    length: usize,
    /// The stream ends after them.
    last: bool,
}

/// Where a direction begins and ends.
struct Ends<'a> {
    from: &'a Stream,
    to: &'a Stream,
    /// The sender's connection is known to be dead: the end of its stream is not its own.
    sender_dead: bool,
    /// The other direction has ended, so that both sockets are closed when this one has,
    /// which ends it, too.
    other_closed: bool,
}

/// One direction of a relayed connection.
#[derive(Debug)]
struct Direction {
    phase: Phase,
    bulk: bool,
    streak: u8,
    pipe: Option<Pipe>,
    /// Copied bytes that the receiver did not take yet.
    pending: Pending,
    /// Bytes that were read and not counted yet.
    uncounted: usize,
    /// The error of a send that was made right after a read. The kernel gives it
    /// once, and EPIPE ever after.
    refused: Option<io::ErrorKind>,
}

impl Direction {
    fn new() -> Self {
        Direction {
            phase: Phase::Open,
            bulk: false,
            streak: 0,
            pipe: None,
            pending: Pending::default(),
            uncounted: 0,
            refused: None,
        }
    }

    /// Returns whether the receiver did not take yet what was read.
    fn is_stalled(&self) -> bool {
        !self.pending.is_empty() || self.pipe.as_ref().is_some_and(|p| p.filled() > 0)
    }

    /// Delivers what was read before.
    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &Stream) -> Poll<io::Result<()>> {
        if let Some(why) = self.refused.take() {
            return Poll::Ready(Err(why.into()));
        }
        while !self.pending.is_empty() {
            match to.write_some(self.pending.left(), Follows::Nothing) {
                Ok(n) => self.pending.delivered(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(to.poll_writable(cx))?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        while let Some(pipe) = self.pipe.as_mut().filter(|p| p.filled() > 0) {
            match to.drain(pipe) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(to.poll_writable(cx))?;
                }
                // A splice(2) that moved something keeps back the error behind
                // it (`splice_to_socket` in fs/splice.c): the next one then
                // returns EPIPE, whatever it was.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once and passes on at once what the receiver takes.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        ends: &Ends<'_>,
        budget: Budget<'_>,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Poll<Result<Moved, Fault>> {
        if self.bulk && self.pipe.is_none() {
            self.pipe = Pipe::take(|| {
                // What is left then is for connections.
                if budget.descriptors.short() {
                    return None;
                }
                budget.descriptors.try_take(2)
            });
            self.bulk = self.pipe.is_some();
        }
        let moved = SHARED.with_borrow_mut(|buffer| {
            let at_once = if budget.buffered.is_much() {
                &mut buffer[..LITTLE]
            } else {
                &mut buffer[..]
            };
            let read = ready!(ends.from.poll_read(cx, self.pipe.as_mut(), at_once))?;
            Poll::Ready(io::Result::Ok(match read {
                Read::Spliced(length) => Moved {
                    length,
                    last: false,
                },
                Read::Copied { length, last } => {
                    seen(&buffer[..length]);
                    let last = last && !ends.sender_dead;
                    let follows = if last { Follows::End } else { Follows::Nothing };
                    self.pass_on(&buffer[..length], follows, ends.to, budget.buffered);
                    Moved { length, last }
                }
            }))
        });
        match moved {
            Poll::Ready(Ok(moved)) => {
                self.judge(moved.length);
                Poll::Ready(Ok(moved))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Fault::Sender)),
            Poll::Pending => {
                if let Some(pipe) = self.pipe.take() {
                    pipe.put_back();
                }
                Poll::Pending
            }
        }
    }

    /// Writes `bytes`, and keeps what the receiver does not take.
    fn pass_on(&mut self, bytes: &[u8], follows: Follows, to: &Stream, buffered: &Buffered) {
        let mut sent = 0;
        while sent < bytes.len() {
            match to.write_some(&bytes[sent..], follows) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => {
                    self.refused = Some(e.kind());
                    break;
                }
            }
        }
        self.pending = Pending::copy(&bytes[sent..], buffered);
    }

    /// Decides from the size of a read whether this is a bulk flow.
    fn judge(&mut self, n: usize) {
        let against = if self.bulk {
            n < SHORT_SPLICE
        } else {
            n >= BULK_READ
        };
        self.streak = if against { self.streak + 1 } else { 0 };
        if self.streak >= STREAK {
            self.bulk = !self.bulk;
            self.streak = 0;
        }
    }

    /// Moves bytes until one side has to wait or the direction is closed.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ends: &Ends<'_>,
        budget: Budget<'_>,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Poll<Result<(), Fault>> {
        let mut moved = 0;
        loop {
            match self.phase {
                Phase::Closed | Phase::Broken => return Poll::Ready(Ok(())),
                Phase::Open | Phase::Ended => {
                    ready!(self.poll_flush(cx, ends.to)).map_err(|e| Fault::Receiver(e.kind()))?;
                }
            }
            if !self.bulk
                && let Some(pipe) = self.pipe.take()
            {
                pipe.put_back();
            }
            if self.phase == Phase::Ended {
                if !ends.other_closed {
                    SockRef::from(ends.to)
                        .shutdown(Shutdown::Write)
                        .map_err(|e| Fault::Receiver(e.kind()))?;
                }
                self.phase = Phase::Closed;
                continue;
            }
            if moved >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let step = ready!(self.poll_move(cx, ends, budget, seen))?;
            if step.length == 0 && ends.sender_dead {
                return Poll::Ready(Err(Fault::Sender));
            }
            moved += step.length;
            self.uncounted += step.length;
            if step.length == 0 || step.last {
                self.phase = Phase::Ended;
                if let Some(pipe) = self.pipe.take() {
                    pipe.put_back();
                }
            }
        }
    }
}

/// Both directions of one connection.
#[derive(Debug)]
pub struct Relay {
    out: Direction,
    back: Direction,
    half_closed_reported: bool,
    stalled_reported: bool,
    client_gone: bool,
    /// A send to the backend failed because its connection was reset or timed
    /// out. The kernel reports that once: a read then only returns 0, as at an
    /// orderly end (`sock_error` in include/net/sock.h).
    backend_dead: bool,
    since: Instant,
    /// The backend sent something or ended its direction, or did not reset the connection
    /// for so long that this would say nothing of it any more.
    answered: bool,
    first_flight: Option<FirstFlight>,
}

impl Relay {
    /// Returns a relay to a backend that was just connected. It begins by sending
    /// `header`, which is ours, and `first`, what the client had sent to a
    /// backend that did not answer.
    pub fn new(header: &[u8], first: FirstFlight) -> Self {
        let mut out = Direction::new();
        out.pending = Pending::first([header, &first.bytes].concat());
        if first.ended {
            out.phase = Phase::Ended;
        }
        Relay {
            out,
            back: Direction::new(),
            half_closed_reported: false,
            stalled_reported: false,
            client_gone: false,
            backend_dead: false,
            since: Instant::now(),
            answered: false,
            first_flight: Some(first),
        }
    }

    /// Moves what can be moved.
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        client: &Stream,
        backend: &Stream,
        budget: Budget<'_>,
    ) -> Poll<Progress> {
        let first = &mut self.first_flight;
        let ends = Ends {
            from: client,
            to: backend,
            sender_dead: false,
            other_closed: self.back.phase == Phase::Closed,
        };
        let out = self.out.poll(cx, &ends, budget, &mut |bytes| {
            if first.as_mut().is_some_and(|f| !f.push(bytes)) {
                *first = None;
            }
        });
        match out {
            Poll::Ready(Err(Fault::Sender)) => return Poll::Ready(Progress::Ended(End::Reset)),
            // The backend takes no more, but what it sent before may still be
            // there to be read.
            Poll::Ready(Err(Fault::Receiver(why))) => {
                self.out.phase = Phase::Broken;
                match why {
                    // It had ended its direction before the reset, which is an
                    // answer (`tcp_reset` in net/ipv4/tcp_input.c).
                    io::ErrorKind::BrokenPipe => self.answered = true,
                    // From shutdown(2), which leaves the reason to the read.
                    io::ErrorKind::NotConnected => {}
                    _ => self.backend_dead = true,
                }
            }
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }

        let answered = &mut self.answered;
        let dead = self.backend_dead;
        let ends = Ends {
            from: backend,
            to: client,
            sender_dead: dead,
            other_closed: self.out.phase == Phase::Closed,
        };
        let back = self.back.poll(cx, &ends, budget, &mut |bytes| {
            // An end is an answer, too, if it is the backend's own.
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
            _ => Poll::Pending,
        }
    }

    /// Returns how many bytes were read from the client and from the backend since the
    /// last call.
    pub fn take_counts(&mut self) -> (usize, usize) {
        let (out, back) = (&mut self.out.uncounted, &mut self.back.uncounted);
        (std::mem::take(out), std::mem::take(back))
    }

    /// Returns whether the backend has answered, by which it does not fail.
    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// Some time has passed: a backend that has not reset the connection within
    /// [`ANSWER_WINDOW`] has answered by that.
    pub fn time_passed(&mut self) {
        self.answered |= self.since.elapsed() >= ANSWER_WINDOW;
    }

    /// The client reset the connection. What the backend takes at once of what
    /// it had sent is still delivered.
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

    /// A backend that resets mostly closed its socket with our bytes unread (RFC
    /// 2525 section 2.17) or never accepted it: what the client sent can be sent
    /// to another one, as long as nothing came back.
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
