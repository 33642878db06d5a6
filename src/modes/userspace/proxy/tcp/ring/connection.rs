//! A connection that a ring moves: what is under way in each of its directions.

use std::{collections::VecDeque, net::TcpStream, rc::Rc, task::Waker};

use super::{super::super::backends::Endpoint, Remainder, Rest};
use crate::kernel::io_uring::{Buffer, Ring};

/// A connection that the ring moves.
#[derive(Debug)]
pub struct Connection {
    /// The direction from the client to the backend.
    pub out: Way,
    /// The direction from the backend to the client.
    pub back: Way,
    endpoint: Endpoint,
    /// Number of requests that have not completed.
    pub requests: usize,
    /// `None` while the ring is to move it.
    pub end: Option<Ending>,
    /// Whether something was received since the last check.
    pub active: bool,
    /// Wakes the task that waits for what is left of it.
    pub waker: Option<Waker>,
}

/// Why the ring is no longer to move it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The relay goes on when nothing is under way any more.
    GiveBack,
    /// The same, only because nothing was received for a while.
    Idle,
    /// No task waits for what is left of it.
    Abandoned,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Way {
    // These keep the descriptors open until all requests that name them have completed.
    /// The side whose bytes go in this direction.
    pub from: Rc<TcpStream>,
    /// The side that gets these bytes.
    pub to: Rc<TcpStream>,
    /// Whether what the sender sends is received.
    pub receiving: Receiving,
    /// Bytes under way to the receiver.
    pub sending: Option<Received>,
    /// Bytes that were received after those.
    pub waiting: VecDeque<Received>,
    /// Number of full buffers in a row.
    pub full: u8,
    /// What is left of it for the relay.
    pub rest: Rest,
}

/// Whether a request to receive is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// None is under way.
    No,
    /// One is under way.
    Yes,
    /// One is under way, and is being cancelled.
    Cancelled,
}

/// Bytes in a buffer.
#[derive(Debug)]
pub struct Received {
    /// The buffer that holds them, from its start.
    pub buffer: Buffer,
    /// Number of bytes in it.
    pub length: usize,
}

/// A kind of request, which with the connection makes its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To receive from the client.
    ReceiveOut = 0,
    /// To receive from the backend.
    ReceiveBack = 1,
    /// To send to the backend.
    SendOut = 2,
    /// To send to the client.
    SendBack = 3,
    /// To cancel one of the first two.
    Cancel = 4,
}

impl Request {
    const ALL: [Request; 5] = [
        Request::ReceiveOut,
        Request::ReceiveBack,
        Request::SendOut,
        Request::SendBack,
        Request::Cancel,
    ];

    /// Returns the token of this request of a connection.
    pub fn token(self, connection: usize) -> u64 {
        (connection as u64) << 3 | self as u64
    }

    /// Returns the request and the connection's number of a token.
    pub fn of(token: u64) -> Option<(Request, usize)> {
        let request = Request::ALL.get((token & 7) as usize)?;
        Some((*request, usize::try_from(token >> 3).ok()?))
    }
}

impl Connection {
    /// Returns a connection of which nothing is under way.
    pub fn new(client: &Rc<TcpStream>, backend: &Rc<TcpStream>, endpoint: Endpoint) -> Connection {
        Connection {
            out: Way::new(client, backend),
            back: Way::new(backend, client),
            endpoint,
            requests: 0,
            end: None,
            active: true,
            waker: None,
        }
    }

    /// Returns what is left of it, of which nothing is under way any more, and gives its buffers
    /// back to the `ring`.
    pub fn into_remainder(mut self, ring: &mut Ring) -> Remainder {
        for way in [&mut self.out, &mut self.back] {
            way.keep_waiting(ring);
        }
        Remainder {
            out: self.out.rest,
            back: self.back.rest,
            idle: self.end == Some(Ending::Idle),
        }
    }

    /// Returns the direction that a request belongs to.
    pub fn way(&mut self, request: Request) -> &mut Way {
        match request {
            Request::ReceiveBack | Request::SendBack => &mut self.back,
            _ => &mut self.out,
        }
    }

    /// Counts `length` bytes that were received.
    pub fn count(&self, request: Request, length: usize) {
        match request {
            Request::ReceiveBack => self.endpoint.count_bytes(0, length),
            _ => self.endpoint.count_bytes(length, 0),
        }
    }

    /// Records that the relay is to go on.
    pub fn give_back(&mut self) {
        self.end.get_or_insert(Ending::GiveBack);
    }
}

impl Way {
    fn new(from: &Rc<TcpStream>, to: &Rc<TcpStream>) -> Way {
        Way {
            from: Rc::clone(from),
            to: Rc::clone(to),
            receiving: Receiving::No,
            sending: None,
            waiting: VecDeque::new(),
            full: 0,
            rest: Rest::default(),
        }
    }

    /// Keeps for the relay what was received, except the `sent` bytes, and gives the buffer back.
    pub fn keep(&mut self, received: Received, sent: usize, ring: &mut Ring) {
        let Received { buffer, length } = received;
        let bytes = &ring.bytes(&buffer, length)[sent..];
        self.rest.bytes.extend_from_slice(bytes);
        ring.give_back(buffer);
    }

    /// Keeps for the relay all that waits, unless what comes before it is under way.
    pub fn keep_waiting(&mut self, ring: &mut Ring) {
        if self.sending.is_none() {
            while let Some(received) = self.waiting.pop_front() {
                self.keep(received, 0, ring);
            }
        }
    }
}
