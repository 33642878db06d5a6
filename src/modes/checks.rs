//! When a mode next checks whether another process changed its objects.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Periodic checks. A caller may stop waiting for one and begin again at any time: that
/// does not put it off.
#[derive(Debug)]
pub struct Checks {
    every: Duration,
    next: Instant,
}

impl Checks {
    /// Returns checks of which the first is due after `every`.
    pub fn new(every: Duration) -> Checks {
        Checks {
            every,
            next: Instant::now() + every,
        }
    }

    /// Waits until one is due.
    pub async fn due(&mut self) {
        sleep_until(self.next).await;
        self.next = Instant::now() + self.every;
    }
}
