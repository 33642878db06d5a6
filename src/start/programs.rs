//! Whether this process may start programs while it serves, and what it does if it may not and
//! would have to: it ends, to be started again.

use std::sync::Arc;

use tokio::sync::Notify;

/// Whether programs may be started.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs(Option<Arc<Notify>>);

impl Programs {
    /// None may be started, because the process has confined itself. [`Programs::default`] allows
    /// them.
    pub(super) fn forbidden() -> Programs {
        Programs(Some(Arc::default()))
    }

    pub(super) fn are_forbidden(&self) -> bool {
        self.0.is_some()
    }

    /// Has [`Programs::missed`] return, now or when it is called.
    pub(super) fn miss(&self) {
        if let Some(missed) = &self.0 {
            missed.notify_one();
        }
    }

    /// Waits until a program would be needed that may not be started. Returns the message to end
    /// with.
    pub(super) async fn missed(&self) -> &'static str {
        match &self.0 {
            Some(missed) => missed.notified().await,
            None => std::future::pending().await,
        }
        "there are rules of another mode, which iptables has to remove, and this process has given up \
         starting programs: ending, to be started again and remove them"
    }
}
