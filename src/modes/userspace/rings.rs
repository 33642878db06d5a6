//! How the data path asks the kernel to receive and send.

use std::{io, sync::Arc};

use parking_lot::Mutex;

use crate::kernel::io_uring::Ring;

/// What `--userspace-io` asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// io_uring for connections that gain by it, where the kernel allows it.
    #[default]
    Auto,
    /// One system call for each message that is received or sent.
    Epoll,
    /// The same as `Auto`; it is reported if the kernel does not allow it.
    Uring,
}

impl Io {
    /// Returns what `word` asks for.
    ///
    /// # Errors
    /// The words that there are.
    pub fn parse(word: &str) -> Result<Io, String> {
        match word {
            "auto" => Ok(Io::Auto),
            "epoll" => Ok(Io::Epoll),
            "uring" => Ok(Io::Uring),
            _ => Err("it must be auto, epoll or uring".to_owned()),
        }
    }
}

/// Rings for the workers, made before the process confines itself: later it is not allowed to make
/// any.
#[derive(Clone, Debug, Default)]
pub struct Rings(Arc<Mutex<Vec<Ring>>>);

impl Rings {
    /// Makes a ring for each of `workers` workers.
    ///
    /// # Errors
    /// Those of [`Ring::new`].
    pub fn make(workers: usize) -> io::Result<Rings> {
        let rings = (0..workers).map(|_| Ring::new());
        let rings: Vec<_> = rings.collect::<io::Result<_>>()?;
        Ok(Rings(Arc::new(Mutex::new(rings))))
    }

    /// Returns a ring that no worker has; `None`: there is none left, or there never was any.
    pub fn take(&self) -> Option<Ring> {
        self.0.lock().pop()
    }

    /// Returns whether there is none left.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
