//! Connections whose short messages the worker's ring carries, many of them in one system
//! call.
//!
//! It carries what is received and sent at once. Whatever else happens to a connection (an
//! end, a reset, a receiver that takes nothing, much at once) ends that, and the relay goes
//! on from there: nothing of it is decided here.

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

use tokio::io::unix::AsyncFd;

use self::{
    connection::{Connection, Ending},
    state::State,
};
use super::super::backends::Endpoint;
use crate::kernel::io_uring::Ring;

/// Rounds through what has completed before the worker's other tasks get a turn.
const TURN: usize = 16;

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

/// A connection that the ring carries as long as this lives.
#[derive(Debug)]
pub struct Carried {
    driver: Rc<Driver>,
    number: Cell<Option<usize>>,
}

impl Driver {
    /// Returns the driver of `ring` for this thread, and what becomes readable for it.
    fn new(mut ring: Ring) -> io::Result<(Rc<Driver>, AsyncFd<OwnedFd>)> {
        ring.enable()?;
        let event = ring.event()?;
        let state = RefCell::new(State::new(ring));
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
        let number = state.begin(Connection::new(&client, &backend, endpoint));
        drop(state);
        Carried {
            driver: self,
            number: Cell::new(Some(number)),
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

impl Carried {
    /// Waits until the relay is to go on, with what is left.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Left> {
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

impl Drop for Carried {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else {
            return;
        };
        let mut state = self.driver.state.borrow_mut();
        if let Some((connection, _)) = state.connection(number) {
            connection.end = Some(Ending::Abandoned);
        }
        state.settle(number);
        // What is not submitted here is submitted later.
        let _ = state.ring.submit();
    }
}

#[cfg(test)]
mod tests;
