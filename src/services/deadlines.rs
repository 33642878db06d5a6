//! When Services are built again although no object changes.

use std::time::Duration;

use hashbrown::HashMap;
use tokio::time::{Instant, sleep_until};

use super::ServiceName;

/// The least time between two looks at what is due, which limits what Services with many deadlines
/// cost.
const LEAST_PAUSE: Duration = Duration::from_millis(100);

/// The next deadline of each Service that has one.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    of: HashMap<ServiceName, Instant>,
    /// When to look; no later than the first of them, or `LEAST_PAUSE` after the last look.
    look: Option<Instant>,
}

impl Deadlines {
    /// Sets when `service` is due; `None`: never.
    pub(super) fn set(&mut self, service: &ServiceName, at: Option<Instant>) {
        match at {
            Some(at) => {
                self.of.insert(service.clone(), at);
                self.look = Some(self.look.map_or(at, |look| look.min(at)));
            }
            None => {
                self.of.remove(service);
                self.look = self.look.filter(|_| !self.of.is_empty());
            }
        }
    }

    /// Waits until some Service may be due.
    pub(super) async fn due(&self) {
        match self.look {
            Some(look) => sleep_until(look).await,
            None => std::future::pending().await,
        }
    }

    /// Takes the Services that are due.
    pub(super) fn take_due(&mut self) -> Vec<ServiceName> {
        let now = Instant::now();
        let due = self.of.extract_if(|_, at| *at <= now);
        let due = due.map(|(service, _)| service).collect();
        let next = self.of.values().min();
        self.look = next.map(|next| (*next).max(now + LEAST_PAUSE));
        due
    }
}
