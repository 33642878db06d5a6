//! Connections whose short messages are moved by the worker's ring, many of them in one system
//! call.
//!
//! The ring moves bytes that are received and can be sent at once. Any other event (an end, a
//! reset, a receiver that accepts nothing, large amounts of data) gives the connection back to the
//! relay, which makes all decisions.

mod connection;
mod state;

use std::{
    cell::{Cell, RefCell},
    io,
    net::TcpStream,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::unix::AsyncFd,
    task::yield_now,
    time::{sleep, timeout},
};

use self::{
    connection::{Connection, Ending},
    state::State,
};
use crate::{kernel::io_uring::Ring, sched::RealServer};

/// Number of rounds through completed requests before the worker's other tasks get a turn.
const TURN: usize = 16;

/// How long to wait after a system call that failed for lack of memory, and, at first, before
/// checking for completions that the kernel may have put off.
const PAUSE: Duration = Duration::from_millis(10);

/// Interval between checks for completions that the kernel did not report: on architectures other
/// than x86-64 nothing orders its mark of a completion before its check whether to report it
/// (`io_req_local_work_add` in io_uring/io_uring.c).
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

thread_local! {
    static OWN: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// The driver of this worker; `None` if it has no ring.
pub fn of_this_worker() -> Option<Rc<Driver>> {
    OWN.with_borrow(Clone::clone)
}

/// A worker's ring, and the connections that it moves.
#[derive(Debug)]
pub struct Driver {
    state: RefCell<State>,
}

/// Remaining state of a connection that the ring gave back.
#[derive(Debug)]
pub struct Remainder {
    /// The direction from the client to the backend.
    pub out: Rest,
    /// The direction from the backend to the client.
    pub back: Rest,
    /// Whether it was given back because nothing was received for a while.
    pub idle: bool,
}

/// Remaining state of a direction that the ring gave back.
#[derive(Debug, Default)]
pub struct Rest {
    /// Bytes that were received but not sent.
    pub bytes: Vec<u8>,
    /// Why the receiver accepts nothing more.
    pub refused: Option<io::ErrorKind>,
    /// Whether the sender's connection failed after those bytes.
    pub failed: bool,
}

/// A connection that the ring moves until this is dropped.
#[derive(Debug)]
pub struct RingConnection {
    driver: Rc<Driver>,
    number: Cell<Option<usize>>,
}

impl Driver {
    /// The driver of `ring` for this thread, and the descriptor that becomes readable when requests
    /// have completed.
    fn new(mut ring: Ring) -> io::Result<(Rc<Driver>, AsyncFd<OwnedFd>)> {
        ring.enable()?;
        let event = ring.event()?;
        let state = RefCell::new(State::new(ring));
        Ok((Rc::new(Driver { state }), event))
    }

    /// Moves messages between a client and its `endpoint`. Nothing else may read or write their
    /// sockets meanwhile.
    pub fn forward(
        self: Rc<Self>,
        client: Rc<TcpStream>,
        backend: Rc<TcpStream>,
        endpoint: RealServer,
    ) -> RingConnection {
        let mut state = self.state.borrow_mut();
        let number = state.begin(Connection::new(&client, &backend, endpoint));
        drop(state);
        RingConnection {
            driver: self,
            number: Cell::new(Some(number)),
        }
    }

    /// Does all outstanding work, in turns with the worker's other tasks.
    async fn serve(&self) -> io::Result<()> {
        loop {
            {
                let mut state = self.state.borrow_mut();
                state.ring.awake();
                let advanced = state.advance();
                let more = state.ring.rest();
                advanced?;
                if !more? && !state.has_work() {
                    return Ok(());
                }
            }
            yield_now().await;
        }
    }

    /// Maximum time to wait for the next event: `patience` if there may be one already.
    fn limit(&self, patience: Duration) -> Option<Duration> {
        let mut state = self.state.borrow_mut();
        if !state.is_used() {
            return None;
        }
        if state.ring.may_have_put_off() {
            return Some(patience);
        }
        let is_ordered = cfg!(target_arch = "x86_64");
        (!is_ordered).then_some(CHECK_INTERVAL)
    }
}

/// Serves connections of this worker with `ring`, for ever. Runs inside its runtime.
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
            tracing::warn!("a worker runs without io_uring: {error}");
            return;
        }
    };
    OWN.set(Some(Rc::clone(&driver)));
    let _own = Own;
    let mut patience = PAUSE;
    loop {
        let ready = async {
            let mut ready = event.readable().await?;
            ready.clear_ready();
            io::Result::Ok(())
        };
        let ready = match driver.limit(patience) {
            None => Ok(ready.await),
            Some(limit) => timeout(limit, ready).await,
        };
        match ready {
            Ok(Ok(())) => patience = PAUSE,
            // The runtime is ending.
            Ok(Err(_)) => return,
            Err(_) => patience = (2 * patience).min(CHECK_INTERVAL),
        }
        while let Err(error) = driver.serve().await {
            // No more connections are given to it.
            if OWN.take().is_some() {
                tracing::warn!("a worker continues without io_uring: {error}");
            }
            sleep(PAUSE).await;
        }
    }
}

impl RingConnection {
    /// Waits until the relay must continue. Returns what is left.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Remainder> {
        let mut state = self.driver.state.borrow_mut();
        let Some(number) = self.number.get() else {
            return Poll::Pending;
        };
        let Some((connection, _)) = state.connection(number) else {
            return Poll::Pending;
        };
        if connection.end.is_none() || connection.requests > 0 {
            if !connection
                .waker
                .as_ref()
                .is_some_and(|w| w.will_wake(cx.waker()))
            {
                connection.waker = Some(cx.waker().clone());
            }
            return Poll::Pending;
        }
        self.number.set(None);
        state.take(number).map_or(Poll::Pending, Poll::Ready)
    }
}

impl RingConnection {
    /// Gives the connection back to the relay if nothing was received since the last call.
    pub fn give_back_if_idle(&self) {
        let Some(number) = self.number.get() else {
            return;
        };
        let mut state = self.driver.state.borrow_mut();
        if let Some((connection, _)) = state.connection(number)
            && !std::mem::take(&mut connection.active)
        {
            connection.end.get_or_insert(Ending::Idle);
            state.settle(number);
            state.submit();
        }
    }
}

impl Drop for RingConnection {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else {
            return;
        };
        let mut state = self.driver.state.borrow_mut();
        if let Some((connection, _)) = state.connection(number) {
            connection.end = Some(Ending::Abandoned);
        }
        state.settle(number);
        state.submit();
    }
}

#[cfg(test)]
mod tests;
