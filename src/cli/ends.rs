//! Ending a command that changes something until it ends.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a command. It undoes its changes first.
pub struct Ends {
    interrupted: Signal,
    terminated: Signal,
    hung_up: Signal,
}

impl Ends {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// When the system does not allow it.
    pub fn listen() -> io::Result<Ends> {
        Ok(Ends {
            interrupted: signal(SignalKind::interrupt())?,
            terminated: signal(SignalKind::terminate())?,
            hung_up: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one of them.
    pub async fn arrived(&mut self) {
        tokio::select! {
            _ = self.interrupted.recv() => {}
            _ = self.terminated.recv() => {}
            _ = self.hung_up.recv() => {}
        }
    }
}
