//! Connections whose short messages the worker's ring carries, many of them in one system
//! call.
//!
//! It carries what is received and sent at once. Whatever else happens to a connection (an
//! end, a reset, a receiver that takes nothing, much at once) ends that, and the relay goes
//! on from there: nothing of it is decided here.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    net::TcpStream,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use nix::errno::Errno;
use tokio::io::unix::AsyncFd;

use super::super::backends::Endpoint;
use crate::kernel::io_uring::{Buffer, Completion, Ring, SIZE};

/// Rounds through what has completed before the worker's other tasks get a turn.
const TURN: usize = 16;

/// So many full buffers in a row are no short messages.
const STREAK: u8 = 4;

/// How long a system call is left alone that failed for want of memory.
const PAUSE: Duration = Duration::from_millis(10);

thread_local! {
    static OWN: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// Returns this worker's; `None`: it has none.
pub fn of_this_worker() -> Option<Rc<Driver>> {
    OWN.with_borrow(Clone::clone)
}

/// The ring of a worker, and what it carries.
#[derive(Debug)]
pub struct Driver {
    state: RefCell<State>,
}

/// What the ring left of a connection.
#[derive(Debug)]
pub struct Left {
    /// From the client to the backend.
    pub out: Rest,
    /// From the backend to the client.
    pub back: Rest,
}

/// What it left of a direction.
#[derive(Debug, Default)]
pub struct Rest {
    /// Bytes that were received and not sent.
    pub bytes: Vec<u8>,
    /// Why the receiver takes no more.
    pub refused: Option<io::ErrorKind>,
    /// The sender's connection failed after those bytes.
    pub failed: bool,
}

#[derive(Debug)]
struct State {
    ring: Ring,
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    /// Places of which a request could not be cancelled yet.
    unsettled: Vec<usize>,
}

/// A connection that is carried.
#[derive(Debug)]
struct Place {
    out: Way,
    back: Way,
    endpoint: Endpoint,
    /// Requests that have not completed.
    requests: usize,
    end: Option<Ending>,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The relay goes on when nothing is under way any more.
    GiveBack,
    /// Nobody waits for it.
    Abandoned,
}

/// One direction of it.
#[derive(Debug)]
struct Way {
    // These keep the descriptors open until all requests that name them have completed.
    from: Rc<TcpStream>,
    to: Rc<TcpStream>,
    receiving: Receiving,
    /// Under way to the receiver.
    sending: Option<Received>,
    /// Received after that.
    waiting: VecDeque<Received>,
    full: u8,
    rest: Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    No,
    Yes,
    Cancelled,
}

/// Bytes in a buffer.
#[derive(Debug)]
struct Received {
    buffer: Buffer,
    length: usize,
}

/// A kind of request, which with the place makes its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    ReceiveOut = 0,
    ReceiveBack = 1,
    SendOut = 2,
    SendBack = 3,
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

    fn token(self, place: usize) -> u64 {
        (place as u64) << 3 | self as u64
    }

    /// Returns the request and the place of a token.
    fn of(token: u64) -> Option<(Request, usize)> {
        let request = Request::ALL.get((token & 7) as usize)?;
        Some((*request, usize::try_from(token >> 3).ok()?))
    }
}

/// A connection that the ring carries as long as this lives.
#[derive(Debug)]
pub struct Carried {
    driver: Rc<Driver>,
    place: Cell<Option<usize>>,
}

impl Driver {
    /// Returns the driver of `ring` for this thread, and what becomes readable for it.
    fn new(mut ring: Ring) -> io::Result<(Rc<Driver>, AsyncFd<OwnedFd>)> {
        ring.enable()?;
        let event = ring.event()?;
        let state = RefCell::new(State {
            ring,
            places: Vec::new(),
            free: Vec::new(),
            unsettled: Vec::new(),
        });
        Ok((Rc::new(Driver { state }), event))
    }

    /// Carries messages between a client and its `endpoint`, whose sockets nobody else reads
    /// or writes meanwhile.
    pub fn carry(
        self: Rc<Self>,
        client: Rc<TcpStream>,
        backend: Rc<TcpStream>,
        endpoint: Endpoint,
    ) -> Carried {
        let mut state = self.state.borrow_mut();
        let number = state.begin(Place {
            out: Way::new(&client, &backend),
            back: Way::new(&backend, &client),
            endpoint,
            requests: 0,
            end: None,
            waker: None,
        });
        drop(state);
        Carried {
            driver: self,
            place: Cell::new(Some(number)),
        }
    }
}

/// Serves connections of this worker by `ring`, for ever. Runs inside its runtime.
pub async fn run(ring: Ring) {
    struct Own;
    impl Drop for Own {
        fn drop(&mut self) {
            OWN.set(None);
        }
    }
    let (driver, event) = match Driver::new(ring) {
        Ok(made) => made,
        Err(error) => {
            tracing::warn!("a worker goes without io_uring: {error}");
            return;
        }
    };
    OWN.set(Some(Rc::clone(&driver)));
    let _own = Own;
    while let Ok(mut ready) = event.readable().await {
        ready.clear_ready();
        driver.state.borrow_mut().ring.awake();
        loop {
            let advanced = driver.state.borrow_mut().advance();
            if let Err(error) = advanced {
                tracing::debug!("io_uring: {error}");
                tokio::time::sleep(PAUSE).await;
            }
            if !driver.state.borrow_mut().ring.rest() {
                break;
            }
            driver.state.borrow_mut().ring.awake();
            tokio::task::yield_now().await;
        }
    }
}

impl State {
    fn begin(&mut self, place: Place) -> usize {
        let number = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[number] = Some(place);
        self.receive(number, Request::ReceiveOut);
        self.receive(number, Request::ReceiveBack);
        self.settle(number);
        // What is not submitted here is submitted later.
        let _ = self.ring.submit();
        number
    }

    /// Submits requests, and handles what has completed, until there is nothing left to do
    /// or others are to have a turn.
    fn advance(&mut self) -> io::Result<()> {
        for number in std::mem::take(&mut self.unsettled) {
            self.settle(number);
        }
        for _ in 0..TURN {
            self.ring.submit()?;
            while let Some(completion) = self.ring.next() {
                self.completed(completion);
            }
            if !self.ring.has_work() {
                break;
            }
        }
        Ok(())
    }

    fn completed(&mut self, completion: Completion) {
        let request = Request::of(completion.token);
        let place = request.and_then(|(_, number)| self.places.get_mut(number)?.as_mut());
        let (Some((request, number)), Some(place)) = (request, place) else {
            debug_assert!(false, "a completion of no request: {completion:?}");
            return;
        };
        if completion.last {
            place.requests -= 1;
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
        let Some((place, ring)) = self.place(number) else {
            return;
        };
        let way = place.way(request);
        if completion.last {
            way.receiving = Receiving::No;
        }
        match (completion.result, completion.buffer) {
            (Ok(length), Some(buffer)) if length > 0 => {
                way.full = if length == SIZE { way.full + 1 } else { 0 };
                let much = way.full >= STREAK;
                way.waiting.push_back(Received { buffer, length });
                place.count(request, length);
                if much {
                    place.give_back();
                }
            }
            (result, buffer) => {
                if let Some(buffer) = buffer {
                    ring.give_back(buffer);
                }
                match result {
                    // There will be some when this round is over.
                    Err(Errno::ENOBUFS) => {}
                    Err(Errno::ECANCELED) | Ok(_) => place.give_back(),
                    Err(_) => {
                        way.rest.failed = true;
                        place.give_back();
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
        let Some((place, ring)) = self.place(number) else {
            return;
        };
        let way = place.way(request);
        let Some(Received { buffer, length }) = way.sending.take() else {
            return;
        };
        let sent = match completion.result {
            Ok(sent) => sent,
            Err(Errno::EAGAIN) => 0,
            Err(errno) => {
                way.rest.refused = Some(io::Error::from(errno).kind());
                0
            }
        };
        if sent < length {
            let left = &ring.bytes(&buffer, length)[sent..];
            way.rest.bytes.extend_from_slice(left);
            place.give_back();
        }
        ring.give_back(buffer);
        self.send(number, request);
    }

    /// Sends what waits next in the direction of `request`, if nothing is under way.
    fn send(&mut self, number: usize, request: Request) {
        let request = match request {
            Request::ReceiveOut | Request::SendOut => Request::SendOut,
            _ => Request::SendBack,
        };
        let Some((place, ring)) = self.place(number) else {
            return;
        };
        let abandoned = place.end == Some(Ending::Abandoned);
        let way = place.way(request);
        if abandoned || way.sending.is_some() || !way.rest.bytes.is_empty() {
            return;
        }
        let Some(next) = way.waiting.pop_front() else {
            return;
        };
        let to = way.to.as_fd();
        match ring.send(to, &next.buffer, next.length, request.token(number)) {
            Ok(()) => {
                way.sending = Some(next);
                place.requests += 1;
            }
            Err(_) => {
                way.waiting.push_front(next);
                place.give_back();
            }
        }
    }

    /// Receives from the sender of a direction again.
    fn receive(&mut self, number: usize, request: Request) {
        let Some((place, ring)) = self.place(number) else {
            return;
        };
        if place.end.is_some() {
            return;
        }
        let way = place.way(request);
        match ring.receive(way.from.as_fd(), request.token(number)) {
            Ok(()) => {
                way.receiving = Receiving::Yes;
                place.requests += 1;
            }
            Err(_) => place.give_back(),
        }
    }

    /// Cancels what is not wanted any more; once nothing is under way, tells who waits, or
    /// forgets the place.
    fn settle(&mut self, number: usize) {
        let Some((place, ring)) = self.place(number) else {
            return;
        };
        let Some(end) = place.end else {
            return;
        };
        let mut all = true;
        for request in [Request::ReceiveOut, Request::ReceiveBack] {
            let way = place.way(request);
            if way.receiving != Receiving::Yes {
                continue;
            }
            let token = Request::Cancel.token(number);
            if ring.cancel(request.token(number), token).is_ok() {
                way.receiving = Receiving::Cancelled;
                place.requests += 1;
            } else {
                all = false;
            }
        }
        if place.requests > 0 {
            if !all {
                self.unsettled.push(number);
            }
            return;
        }
        match end {
            Ending::GiveBack => {
                if let Some(waker) = place.waker.take() {
                    waker.wake();
                }
            }
            Ending::Abandoned => drop(self.take(number)),
        }
    }

    /// Takes a connection out, with what was left of it.
    fn take(&mut self, number: usize) -> Option<Left> {
        let mut place = self.places.get_mut(number)?.take()?;
        self.free.push(number);
        let mut rest = |way: &mut Way| {
            for Received { buffer, length } in
                way.sending.take().into_iter().chain(way.waiting.drain(..))
            {
                way.rest
                    .bytes
                    .extend_from_slice(self.ring.bytes(&buffer, length));
                self.ring.give_back(buffer);
            }
            std::mem::take(&mut way.rest)
        };
        Some(Left {
            out: rest(&mut place.out),
            back: rest(&mut place.back),
        })
    }

    fn place(&mut self, number: usize) -> Option<(&mut Place, &mut Ring)> {
        let place = self.places.get_mut(number)?.as_mut()?;
        Some((place, &mut self.ring))
    }
}

impl Place {
    fn way(&mut self, request: Request) -> &mut Way {
        match request {
            Request::ReceiveBack | Request::SendBack => &mut self.back,
            _ => &mut self.out,
        }
    }

    fn count(&self, request: Request, length: usize) {
        match request {
            Request::ReceiveBack => self.endpoint.carried(0, length),
            _ => self.endpoint.carried(length, 0),
        }
    }

    /// The relay is to go on.
    fn give_back(&mut self) {
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
}

impl Carried {
    /// Waits until the relay is to go on, with what is left.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Left> {
        let mut state = self.driver.state.borrow_mut();
        let place = self.place.get().and_then(|number| {
            let place = state.places.get_mut(number)?.as_mut()?;
            Some((number, place))
        });
        let Some((number, place)) = place else {
            return Poll::Pending;
        };
        if place.end.is_none() || place.requests > 0 {
            if !place
                .waker
                .as_ref()
                .is_some_and(|w| w.will_wake(cx.waker()))
            {
                place.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        self.place.set(None);
        state.take(number).map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        let Some(number) = self.place.take() else {
            return;
        };
        let mut state = self.driver.state.borrow_mut();
        if let Some((place, _)) = state.place(number) {
            place.end = Some(Ending::Abandoned);
        }
        state.settle(number);
        // What is not submitted here is submitted later.
        let _ = state.ring.submit();
    }
}

#[cfg(test)]
mod tests;
