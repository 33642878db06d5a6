//! Handles completed requests, and makes the next ones.

use std::{collections::VecDeque, io, mem, os::fd::AsFd};

use nix::errno::Errno;
use slab::Slab;

use super::{
    super::messages,
    Remainder, TURN,
    connection::{Connection, Ending, Received, Receiving, Request},
};
use crate::kernel::io_uring::{Completion, Ring, SIZE};

/// Number of full buffers in a row that indicates more than short messages.
const STREAK: u8 = 2;

/// Maximum number of completions that are handled before the resulting requests are submitted.
const BATCH: usize = 1024;

/// Maximum number of system calls to end the remaining connections: one is enough to cancel them,
/// and one to see that done.
const LAST_ROUNDS: usize = 100;

/// A ring and the connections that it moves.
#[derive(Debug)]
pub struct State {
    /// The ring, which this worker alone uses.
    pub ring: Ring,
    connections: Slab<Connection>,
    /// Connections with a request that could not be cancelled yet.
    unsettled: Vec<usize>,
    /// Directions that do not receive because there are no buffers.
    starved: VecDeque<(usize, Request)>,
}

impl State {
    /// Returns a state without connections.
    pub fn new(ring: Ring) -> State {
        State {
            ring,
            connections: Slab::new(),
            unsettled: Vec::new(),
            starved: VecDeque::new(),
        }
    }

    /// Moves a connection from now on. Returns its number.
    pub fn begin(&mut self, connection: Connection) -> usize {
        let number = self.connections.insert(connection);
        self.receive(number, Request::ReceiveOut);
        self.receive(number, Request::ReceiveBack);
        self.settle(number);
        self.submit();
        number
    }

    /// Submits requests now, or requests a wake-up to do so as soon as possible.
    pub fn submit(&mut self) {
        if self.ring.submit().is_err() || !self.unsettled.is_empty() {
            self.ring.wake();
        }
    }

    /// Submits requests and handles completions, until nothing is left to do or others should get a
    /// turn.
    ///
    /// # Errors
    /// Errors of io_uring_enter(2), after completions were handled.
    pub fn advance(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            for number in mem::take(&mut self.unsettled) {
                self.settle(number);
            }
            let submitted = self.ring.submit();
            let mut count = 0;
            while count < BATCH
                && let Some(completion) = self.ring.completed()
            {
                self.completed(completion);
                count += 1;
            }
            submitted?;
            self.feed();
            if !self.has_work() && (count == 0 || !self.ring.may_have_put_off()) {
                break;
            }
        }
        Ok(())
    }

    /// Makes as many directions without a buffer receive again as there are buffers now.
    fn feed(&mut self) {
        let mut free = self.ring.free_buffers();
        while free > 0
            && let Some((number, request)) = self.starved.pop_front()
        {
            free -= usize::from(self.receive(number, request));
            self.settle(number);
        }
    }

    /// Returns whether there is immediate work.
    pub fn has_work(&mut self) -> bool {
        let can_feed = !self.starved.is_empty() && self.ring.free_buffers() > 0;
        can_feed || !self.unsettled.is_empty() || self.ring.has_work()
    }

    /// Returns whether the ring moves any connection.
    pub fn is_used(&self) -> bool {
        !self.connections.is_empty()
    }

    fn completed(&mut self, completion: Completion) {
        let request = Request::of(completion.token);
        let connection = request.and_then(|(_, number)| self.connections.get_mut(number));
        let (Some((request, number)), Some(connection)) = (request, connection) else {
            debug_assert!(false, "a completion of no request: {completion:?}");
            return;
        };
        if completion.last {
            connection.requests -= 1;
        }
        match request {
            Request::ReceiveOut | Request::ReceiveBack => {
                self.received(number, request, completion);
            }
            Request::SendOut | Request::SendBack => self.sent(number, request, &completion),
            Request::Cancel => {}
        }
        self.settle(number);
    }

    fn received(&mut self, number: usize, request: Request, completion: Completion) {
        let Some((connection, ring)) = self.connection(number) else {
            return;
        };
        let way = connection.way(request);
        if completion.last {
            way.receiving = Receiving::No;
        }
        match (completion.result, completion.buffer) {
            (Ok(length), Some(buffer)) if length > 0 => {
                messages::count(length);
                way.full = if length == SIZE {
                    way.full.saturating_add(1)
                } else {
                    0
                };
                let much = way.full >= STREAK;
                way.waiting.push_back(Received { buffer, length });
                connection.active = true;
                connection.count(request, length);
                if much {
                    connection.give_back();
                }
            }
            (result, buffer) => {
                if let Some(buffer) = buffer {
                    ring.give_back(buffer);
                }
                match result {
                    Err(Errno::ENOBUFS) => {
                        self.starved.push_back((number, request));
                        return;
                    }
                    Ok(_) => connection.give_back(),
                    Err(errno) => {
                        way.rest.failed = is_of_the_connection(errno);
                        connection.give_back();
                    }
                }
            }
        }
        self.send(number, request);
        if completion.last {
            self.receive(number, request);
        }
    }

    fn sent(&mut self, number: usize, request: Request, completion: &Completion) {
        let Some((connection, ring)) = self.connection(number) else {
            return;
        };
        let way = connection.way(request);
        let Some(received) = way.sending.take() else {
            return;
        };
        let sent = completion.result.unwrap_or_else(|errno| {
            let refused = is_of_the_connection(errno);
            way.rest.refused = refused.then(|| io::Error::from(errno).kind());
            0
        });
        let all = sent >= received.length;
        way.keep(received, sent, ring);
        if !all {
            connection.give_back();
        }
        self.send(number, request);
    }

    /// Sends the next waiting bytes in the direction of `request`, if none are being sent.
    fn send(&mut self, number: usize, request: Request) {
        let request = match request {
            Request::ReceiveOut | Request::SendOut => Request::SendOut,
            _ => Request::SendBack,
        };
        let Some((connection, ring)) = self.connection(number) else {
            return;
        };
        let ended = connection.end.is_some();
        let way = connection.way(request);
        if ended {
            // They are kept for the relay, so that no buffer waits for its turn.
            return way.keep_waiting(ring);
        }
        if way.sending.is_some() {
            return;
        }
        let Some(next) = way.waiting.pop_front() else {
            return;
        };
        let to = way.to.as_fd();
        match ring.send(to, &next.buffer, next.length, request.token(number)) {
            Ok(()) => {
                way.sending = Some(next);
                connection.requests += 1;
            }
            Err(_) => {
                way.waiting.push_front(next);
                connection.give_back();
            }
        }
    }

    /// Receives from the sender of a direction again, unless it already does, or the connection is
    /// ending. Returns whether it made a request.
    fn receive(&mut self, number: usize, request: Request) -> bool {
        let Some((connection, ring)) = self.connection(number) else {
            return false;
        };
        if connection.end.is_some() {
            return false;
        }
        let way = connection.way(request);
        if way.receiving != Receiving::No {
            return false;
        }
        match ring.receive(way.from.as_fd(), request.token(number)) {
            Ok(()) => {
                way.receiving = Receiving::Yes;
                connection.requests += 1;
                true
            }
            Err(_) => {
                connection.give_back();
                false
            }
        }
    }

    /// Cancels requests of an ending connection. When none is left, wakes the waiting task, or
    /// forgets the connection.
    pub fn settle(&mut self, number: usize) {
        let Some((connection, ring)) = self.connection(number) else {
            return;
        };
        let Some(end) = connection.end else {
            return;
        };
        let mut all = true;
        for request in [Request::ReceiveOut, Request::ReceiveBack] {
            let way = connection.way(request);
            if way.receiving != Receiving::Yes {
                continue;
            }
            let token = Request::Cancel.token(number);
            if ring.cancel(request.token(number), token).is_ok() {
                way.receiving = Receiving::Cancelled;
                connection.requests += 1;
            } else {
                all = false;
            }
        }
        if connection.requests > 0 {
            if !all {
                self.unsettled.push(number);
            }
            return;
        }
        match end {
            Ending::GiveBack | Ending::Idle => {
                if let Some(waker) = connection.waker.take() {
                    waker.wake();
                }
            }
            Ending::Abandoned => drop(self.take(number)),
        }
    }

    /// Removes a connection, and returns its remaining state.
    pub fn take(&mut self, number: usize) -> Option<Remainder> {
        let connection = self.connections.try_remove(number)?;
        Some(connection.into_remainder(&mut self.ring))
    }

    /// The connection with this number, and the ring.
    pub fn connection(&mut self, number: usize) -> Option<(&mut Connection, &mut Ring)> {
        let connection = self.connections.get_mut(number)?;
        Some((connection, &mut self.ring))
    }
}

impl Drop for State {
    /// Waits for all requests, because sockets must be closed when this is dropped.
    fn drop(&mut self) {
        for _ in 0..LAST_ROUNDS {
            if !self.is_used() || self.advance().is_err() {
                return;
            }
        }
    }
}

/// Returns whether an error means that the connection has failed, rather than that the kernel could
/// not perform the request: in the latter case the relay tries by itself. Any other error may
/// belong to the connection, even one that an ICMP message reported.
fn is_of_the_connection(errno: Errno) -> bool {
    !matches!(
        errno,
        Errno::EAGAIN
            | Errno::EBADF
            | Errno::ECANCELED
            | Errno::EFAULT
            | Errno::EINTR
            | Errno::EINVAL
            | Errno::ENOBUFS
            | Errno::ENOMEM
    )
}
