//! A listening socket on one worker.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use socket2::Socket;

use crate::hold::Listening;

/// A socket at which a worker accepts connections, or receives datagrams, for a `T`.
#[derive(Debug)]
pub struct Listener<T> {
    /// The socket, which is non-blocking.
    pub socket: Socket,
    /// What its connections or datagrams are for.
    pub of: T,
    /// Whether another process accepts or receives on this socket.
    is_left: AtomicBool,
}

impl<T> Listener<T> {
    /// A listener for `of`; `socket` is non-blocking.
    pub fn new(socket: Socket, of: T) -> Self {
        Listener {
            socket,
            of,
            is_left: AtomicBool::new(false),
        }
    }

    /// Returns whether another process accepts or receives on this socket.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Relaxed)
    }

    /// Its local address; `None` if the kernel does not return it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }
}

impl<T: Send + Sync> Listening for Listener<T> {
    fn leave(&self, to_another: bool) {
        self.is_left.store(to_another, Relaxed);
    }
}

impl<T> AsFd for Listener<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
