//! Delays the log of oddities that usually pass: a Service is created before its EndpointSlices and
//! deleted before them, hundreds of times an hour in some clusters.

use std::{collections::BTreeSet, time::Duration};

use hashbrown::HashMap;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info};

use super::{Oddity, ServiceName};

/// How long an oddity must last before it is logged.
pub(super) const LASTING: Duration = Duration::from_secs(10);
/// Time between two checks of the oddities: those that have lasted by then are logged together.
const AGAIN: Duration = Duration::from_secs(5);

/// Oddities that are not logged yet.
#[derive(Debug, Default)]
pub(super) struct Passing {
    /// Each with the time at which it last arose.
    since: HashMap<Oddity, Instant>,
    due: Option<Instant>,
}

impl Passing {
    /// Logs new oddities, if they are of a kind that does not pass.
    pub(super) fn log(&mut self, arisen: Vec<Oddity>) {
        for oddity in arisen {
            if oddity.passes().is_none() {
                info!("{oddity}");
                continue;
            }
            debug!("{oddity}");
            let now = Instant::now();
            self.since.insert(oddity, now);
            self.due.get_or_insert(now + LASTING);
        }
    }

    /// Waits until some may have lasted.
    pub(super) async fn due(&self) {
        match self.due {
            Some(due) => sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Logs the oddities that have lasted that long, and still hold; `None`: regardless of their
    /// age.
    pub(super) fn log_those(
        &mut self,
        lasting: Option<Duration>,
        holds: impl Fn(&ServiceName, &Oddity) -> bool,
    ) {
        let now = Instant::now();
        let old = self
            .since
            .extract_if(|_, since| lasting.is_none_or(|lasting| now - *since >= lasting));
        let lasting: BTreeSet<Oddity> = old
            .map(|(oddity, _)| oddity)
            .filter(|oddity| {
                oddity
                    .passes()
                    .is_some_and(|service| holds(service, oddity))
            })
            .collect();
        for sentence in Oddity::sentences(&lasting) {
            info!("{sentence}");
        }
        self.due = (!self.since.is_empty()).then(|| now + AGAIN);
        if self.since.is_empty() {
            // It is large after the first list.
            self.since = HashMap::new();
        }
    }
}
