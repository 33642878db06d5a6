//! A connection that a ring moves: the requests and buffers of each direction.

use std::{collections::VecDeque, net::TcpStream, rc::Rc, task::Waker};

use super::{Remainder, Rest};
use crate::{
    kernel::io_uring::{Buffer, Ring},
    sched::RealServer,
};

/// A connection that the ring moves.
#[derive(Debug)]
pub struct Connection {
    /// The direction from the client to the backend.
    pub out: Way,
    /// The direction from the backend to the client.
    pub back: Way,
    endpoint: RealServer,
    /// Number of requests that have not completed.
    pub requests: usize,
    /// `None` while the ring should move the connection.
    pub end: Option<Ending>,
    /// Whether something was received since the last check.
    pub active: bool,
    /// Wakes the task that waits for the remaining state.
    pub waker: Option<Waker>,
}

/// Why the ring should no longer move a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The relay continues when no request is left.
    GiveBack,
    /// The same, because nothing was received for a while.
    Idle,
    /// No task waits for the remaining state.
    Abandoned,
}

/// One direction of a connection.
#[derive(Debug)]
pub struct Way {
    // These keep the descriptors open until all requests that use them have completed.
    /// The side that sends in this direction.
    pub from: Rc<TcpStream>,
    /// The side that receives.
    pub to: Rc<TcpStream>,
    /// State of the request to receive from the sender.
    pub receiving: Receiving,
    /// Bytes that are being sent to the receiver.
    pub sending: Option<Received>,
    /// Bytes that were received after those.
    pub waiting: VecDeque<Received>,
    /// Number of full buffers in a row.
    pub full: u8,
    /// Remaining state for the relay.
    pub rest: Rest,
}

/// State of a request to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receiving {
    /// There is no such request.
    No,
    /// There is such a request.
    Yes,
    /// There is such a request, and it is being cancelled.
    Cancelled,
}

/// Bytes in a buffer.
#[derive(Debug)]
pub struct Received {
    /// The buffer, which contains them from its start.
    pub buffer: Buffer,
    /// Number of bytes in the buffer.
    pub length: usize,
}

/// Kind of a request. Kind and connection make up its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Receives from the client.
    ReceiveOut = 0,
    /// Receives from the backend.
    ReceiveBack = 1,
    /// Sends to the backend.
    SendOut = 2,
    /// Sends to the client.
    SendBack = 3,
    /// Cancels one of the first two.
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

    /// The token of this request of a connection.
    pub fn token(self, connection: usize) -> u64 {
        (connection as u64) << 3 | self as u64
    }

    /// The request and the connection's number of a token.
    pub fn of(token: u64) -> Option<(Request, usize)> {
        let request = Request::ALL.get((token & 7) as usize)?;
        Some((*request, usize::try_from(token >> 3).ok()?))
    }
}

impl Connection {
    /// A connection without requests.
    pub fn new(
        client: &Rc<TcpStream>,
        backend: &Rc<TcpStream>,
        endpoint: RealServer,
    ) -> Connection {
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

    /// Remaining state of a connection without requests; returns its buffers to the `ring`.
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

    /// The direction to which a request belongs.
    pub fn way(&mut self, request: Request) -> &mut Way {
        match request {
            Request::ReceiveBack | Request::SendBack => &mut self.back,
            _ => &mut self.out,
        }
    }

    /// Counts `length` received bytes.
    pub fn count(&self, request: Request, length: usize) {
        match request {
            Request::ReceiveBack => self.endpoint.count_bytes(0, length),
            _ => self.endpoint.count_bytes(length, 0),
        }
    }

    /// Records that the relay should continue.
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

    /// Keeps received bytes, except the first `sent` ones, for the relay, and returns the buffer.
    pub fn keep(&mut self, received: Received, sent: usize, ring: &mut Ring) {
        let Received { buffer, length } = received;
        let bytes = &ring.bytes(&buffer, length)[sent..];
        self.rest.bytes.extend_from_slice(bytes);
        ring.give_back(buffer);
    }

    /// Keeps all waiting bytes for the relay, unless earlier ones are still being sent.
    pub fn keep_waiting(&mut self, ring: &mut Ring) {
        if self.sending.is_none() {
            while let Some(received) = self.waiting.pop_front() {
                self.keep(received, 0, ring);
            }
        }
    }
}
