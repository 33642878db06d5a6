//! The interface through which the data path receives and sends.

use std::{io, sync::Arc};

use parking_lot::Mutex;

use crate::kernel::io_uring::Ring;

/// Argument of `--userspace-io`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// io_uring for connections that benefit from it, if the kernel allows it.
    #[default]
    Auto,
    /// One system call for each message that is received or sent.
    Epoll,
    /// Like `Auto`, but reports if the kernel does not allow it.
    Uring,
}

impl Io {
    /// Parses the argument.
    ///
    /// # Errors
    /// The allowed values.
    pub fn parse(word: &str) -> Result<Io, String> {
        match word {
            "auto" => Ok(Io::Auto),
            "epoll" => Ok(Io::Epoll),
            "uring" => Ok(Io::Uring),
            _ => Err("it must be auto, epoll or uring".to_owned()),
        }
    }
}

/// Rings for the workers, created before the process confines itself: afterwards it may not create
/// any.
#[derive(Clone, Debug, Default)]
pub struct Rings(Arc<Mutex<Vec<Ring>>>);

impl Rings {
    /// Creates a ring for each of `workers` workers.
    ///
    /// # Errors
    /// Errors of [`Ring::new`].
    pub fn make(workers: usize) -> io::Result<Rings> {
        let rings = (0..workers).map(|_| Ring::new());
        let rings: Vec<_> = rings.collect::<io::Result<_>>()?;
        Ok(Rings(Arc::new(Mutex::new(rings))))
    }

    /// Takes a ring that no worker uses; `None` if there is none left.
    pub fn take(&self) -> Option<Ring> {
        self.0.lock().pop()
    }

    /// Returns whether no ring is left.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
