//! One direction of a relayed connection.
//!
//! Short messages pass through a buffer that all connections of a worker share; a direction with
//! bulk traffic is spliced through a pipe. A connection only keeps bytes that a slow receiver has
//! not accepted yet.

use std::{
    cell::RefCell,
    io,
    net::Shutdown,
    task::{Context, Poll, ready},
};

use socket2::SockRef;

use super::{super::Shared, ring};
use crate::kernel::socket::{
    pipe::Pipe,
    stream::{Follows, Read, Stream},
};

/// Size of the buffer shared by a worker's connections, in bytes.
const SCRATCH: usize = 64 * 1024;

/// Maximum size of a read while much is buffered for slow receivers, in bytes.
const LITTLE: usize = 2 * 1024;

/// A read of at least this many bytes indicates a bulk flow.
const BULK_READ: usize = 16 * 1024;

/// A splice of fewer bytes than this indicates that a flow is not bulk: the pipe then costs more
/// calls than the copy that it saves.
const SHORT_SPLICE: usize = 4 * 1024;

/// Number of reads (or splices) in a row after which a direction switches between copying and
/// splicing.
const STREAK: u8 = 4;

/// Number of bytes that one connection moves before the worker's others get a turn.
const TURN: usize = 1024 * 1024;

thread_local! {
    static SHARED: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// The state of a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The sender may send more.
    Open,
    /// The sender has closed; bytes in flight must still be delivered.
    Ended,
    /// The receiver was told about the end.
    Closed,
    /// The receiver no longer accepts anything.
    Broken,
}

/// The end of the direction that failed.
pub enum Fault {
    /// The sender's connection was reset, or timed out.
    Sender,
    /// The receiver accepts nothing more, for this reason.
    Receiver(io::ErrorKind),
}

/// Result of one read.
struct Moved {
    /// Number of bytes, 0 at the end of the stream.
    length: usize,
    /// Whether the stream ends after them.
    last: bool,
}

/// The two sides of a direction.
pub struct Ends<'a> {
    /// The side that sends in this direction.
    pub from: &'a Stream,
    /// The side that receives.
    pub to: &'a Stream,
    /// Whether the sender's connection is known to be dead: then the end of its stream was not sent
    /// by it.
    pub sender_dead: bool,
    /// Whether the other direction has ended: then both sockets are closed when this one ends,
    /// which also tells its receiver about the end.
    pub other_closed: bool,
}

/// One direction of a relayed connection.
#[derive(Debug)]
pub struct Direction {
    /// The state of the direction.
    pub phase: Phase,
    /// Whether bytes are spliced.
    pub bulk: bool,
    streak: u8,
    pipe: Option<Pipe>,
    /// Copied bytes that the receiver has not accepted yet, after the `delivered` ones.
    pending: Vec<u8>,
    delivered: usize,
    /// Number of bytes that were read and not counted yet.
    pub uncounted: usize,
    /// The error of a send directly after a read. The kernel returns it once, and EPIPE from then
    /// on.
    refused: Option<io::ErrorKind>,
    /// Whether the sender's connection failed after the pending bytes.
    failed: bool,
}

impl Direction {
    /// A direction in which `pending` is sent first.
    pub fn of(pending: Vec<u8>) -> Self {
        Direction {
            phase: Phase::Open,
            bulk: false,
            streak: 0,
            pipe: None,
            pending,
            delivered: 0,
            uncounted: 0,
            refused: None,
            failed: false,
        }
    }

    /// Number of copied bytes that are kept until the receiver has accepted them.
    pub fn buffered(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether the receiver has not accepted everything that was read.
    pub fn is_stalled(&self) -> bool {
        !self.pending.is_empty() || self.pipe.as_ref().is_some_and(|p| p.filled() > 0)
    }

    /// Continues with the bytes that the ring left in this direction.
    pub fn take_up(&mut self, rest: &ring::Rest, to: &Stream) {
        self.failed = rest.failed;
        if rest.refused.is_some() {
            self.refused = rest.refused;
            return;
        }
        self.pass_on(&rest.bytes, |bytes| to.write_unwatched(bytes));
    }

    /// Delivers bytes of earlier reads.
    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &Stream) -> Poll<io::Result<()>> {
        if let Some(why) = self.refused.take() {
            return Poll::Ready(Err(why.into()));
        }
        while self.delivered < self.pending.len() {
            match to.write_some(&self.pending[self.delivered..], Follows::Nothing) {
                Ok(n) => self.delivered += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(to.poll_writable(cx))?;
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        (self.pending, self.delivered) = (Vec::new(), 0);
        while let Some(pipe) = self.pipe.as_mut().filter(|p| p.filled() > 0) {
            match to.drain(pipe) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    ready!(to.poll_writable(cx))?;
                }
                // A splice(2) that moved something suppresses the error after it
                // (`splice_to_socket` in fs/splice.c): the next one then returns EPIPE, whatever
                // the error was.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once and immediately forwards what the receiver accepts.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        ends: &Ends<'_>,
        shared: &Shared,
        seen: &mut dyn FnMut(&[u8]),
    ) -> Poll<Result<Moved, Fault>> {
        if self.bulk && self.pipe.is_none() {
            self.pipe = Pipe::take(|| {
                // The remaining descriptors are for connections.
                if shared.descriptors.short() {
                    return None;
                }
                shared.descriptors.try_take(2)
            });
            self.bulk = self.pipe.is_some();
        }
        let moved = SHARED.with_borrow_mut(|buffer| {
            let at_once = if shared.memory.is_much_buffered() {
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
                    let write = |bytes: &[u8]| ends.to.write_some(bytes, follows);
                    self.pass_on(&buffer[..length], write);
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

    /// Writes `bytes` with `write`, and keeps those that the receiver does not accept.
    fn pass_on(&mut self, bytes: &[u8], write: impl Fn(&[u8]) -> io::Result<usize>) {
        let mut sent = 0;
        while sent < bytes.len() {
            match write(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => {
                    self.refused = Some(e.kind());
                    break;
                }
            }
        }
        (self.pending, self.delivered) = (bytes[sent..].to_vec(), 0);
    }

    /// Decides by the size of a read whether this is a bulk flow.
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
    pub fn poll(
        &mut self,
        cx: &mut Context<'_>,
        ends: &Ends<'_>,
        shared: &Shared,
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
            if self.failed {
                return Poll::Ready(Err(Fault::Sender));
            }
            if moved >= TURN {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let step = ready!(self.poll_move(cx, ends, shared, seen))?;
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
