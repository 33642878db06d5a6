//! The state of the API server, shared by all kinds of objects.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info};

/// How long a kind waits for its turn, while a request of another one has no answer.
pub(super) const TURN: Duration = Duration::from_secs(30);
/// The server may be replaced by one that lists by watch: this is tried again after this time.
const STREAM_AGAIN: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub(super) struct Server {
    /// Held during a request while the server does not answer, and during the pause after it.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// When a streaming list failed last.
    no_stream: Mutex<Option<Instant>>,
}

impl Server {
    /// Returns whether to try a streaming list.
    pub(super) fn may_stream(&self) -> bool {
        self.no_stream
            .lock()
            .is_none_or(|failed| failed.elapsed() >= STREAM_AGAIN)
    }

    /// Records that the server does not list by watch. Older versions refuse to; others begin, and
    /// fail where their etcd lacks RequestWatchProgress.
    pub(super) fn does_not_stream(&self, why: &str) {
        let before = self.no_stream.lock().replace(Instant::now());
        if before.is_none() {
            info!("the API server has no streaming lists ({why}); listing in pages");
        } else {
            debug!("no streaming list ({why}); listing in pages");
        }
    }
}
