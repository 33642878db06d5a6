//! Whether this process may start programs while it serves. If it needs one and may not start it,
//! it exits, to be started again.

use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// Whether programs may be started.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs(Option<Arc<Missed>>);

/// Purpose of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Need {
    /// Removing the rules of another mode.
    Removal,
    /// The credentials for the API server.
    Credentials,
}

#[derive(Debug, Default)]
struct Missed {
    told: Notify,
    need: OnceLock<Need>,
}

impl Programs {
    /// No programs, because the process has confined itself. [`Programs::default`] allows them.
    pub(super) fn forbidden() -> Programs {
        Programs(Some(Arc::default()))
    }

    pub(super) fn are_forbidden(&self) -> bool {
        self.0.is_some()
    }

    /// Makes [`Programs::missed`] return, now or when it is called.
    pub(super) fn miss(&self, need: Need) {
        if let Some(missed) = &self.0 {
            // The first one counts.
            let _ = missed.need.set(need);
            missed.told.notify_one();
        }
    }

    /// Waits until a program is needed that may not be started. Returns the error to exit with.
    pub(super) async fn missed(&self) -> &'static str {
        let Some(missed) = &self.0 else {
            return std::future::pending().await;
        };
        missed.told.notified().await;
        match missed.need.get() {
            Some(Need::Credentials) => {
                "the kubeconfig now names a credential plugin, but this process can no longer \
                 start programs, because the kubeconfig named none at the start: ending, so that \
                 the next process can run it"
            }
            Some(Need::Removal) | None => {
                "there are rules of another mode, which iptables has to remove, but this process \
                 can no longer start programs: ending, so that the next process can remove them"
            }
        }
    }
}
