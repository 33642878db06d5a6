//! Pipes for splice(2), pooled per worker: a flow holds one only while it has bytes in it.

use std::{
    any::Any,
    cell::RefCell,
    io,
    os::fd::{AsFd, OwnedFd},
};

use nix::{
    fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice},
    unistd::pipe2,
};

/// Capacity requested with F_SETPIPE_SZ, in bytes. A larger one would move a bulk flow with fewer
/// calls, but its bytes would have left the caches by the time they are read.
const CAPACITY: i32 = 256 * 1024;

/// Capacity of a pipe that was not resized (`pipe(7)`), in bytes.
const DEFAULT_CAPACITY: usize = 64 * 1024;

/// Empty pipes that a worker keeps for its next bulk flow.
const POOLED: usize = 32;

thread_local! {
    static POOL: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A pipe and how many bytes are in it.
#[derive(Debug)]
pub struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
    filled: usize,
    /// A reservation for its two descriptors, held as long as it is open.
    _descriptors: Box<dyn Any>,
}

impl Pipe {
    /// Takes an empty pipe from the worker's pool, or opens one, for whose two descriptors it holds
    /// the result of `descriptors`. `None` when descriptors are short: the flow then continues to
    /// copy.
    pub fn take<P: 'static>(descriptors: impl FnOnce() -> Option<P>) -> Option<Pipe> {
        if let Some(pipe) = POOL.with_borrow_mut(Vec::pop) {
            return Some(pipe);
        }
        let permits = descriptors()?;
        let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
        // Fails beyond the user's share of pipe memory (pipe(7),
        // pipe-user-pages-soft); the pipe then keeps its default size.
        let capacity = fcntl(&write, FcntlArg::F_SETPIPE_SZ(CAPACITY))
            .ok()
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(DEFAULT_CAPACITY);
        Some(Pipe {
            read,
            write,
            capacity,
            filled: 0,
            _descriptors: Box::new(permits),
        })
    }

    /// Gives the pipe back to the worker's pool. One with bytes in it is
    /// closed instead: no other flow may read them.
    pub fn put_back(self) {
        if self.filled == 0 {
            POOL.with_borrow_mut(|pool| {
                if pool.len() < POOLED {
                    pool.push(self);
                }
            });
        }
    }

    /// Number of bytes in the pipe.
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Moves bytes from a socket into this empty pipe; 0 at the stream's end.
    ///
    /// # Errors
    /// Those of splice(2); `WouldBlock` while the socket has nothing.
    pub fn fill_from(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let n = splice(
            socket,
            None,
            &self.write,
            None,
            self.capacity,
            SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK,
        )?;
        self.filled += n;
        Ok(n)
    }

    /// Moves the content of the pipe into a socket.
    ///
    /// # Errors
    /// Those of splice(2); `WouldBlock` while the socket takes nothing.
    pub fn drain_to(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let n = splice(
            &self.read,
            None,
            socket,
            None,
            self.filled,
            SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK,
        )?;
        self.filled -= n;
        Ok(n)
    }
}
