//! Whether this process may start programs while it serves. If it needs one and may not start it,
//! it exits, to be started again.

use std::{future::pending, sync::Arc};

use tokio::sync::SetOnce;

/// Whether programs may be started; holds the error to exit with, once one is needed that may not be
/// started.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs(Option<Arc<SetOnce<&'static str>>>);

/// The rules of another mode have to be removed.
pub(super) const REMOVAL: &str = "there are rules of another mode, which iptables has to remove, but \
     this process can no longer start programs: ending, so that the next process can remove them";

/// The credentials for the API server have to be renewed.
pub(super) const CREDENTIALS: &str = "the kubeconfig now names a credential plugin, but this process \
     can no longer start programs, because the kubeconfig named none at the start: ending, so that \
     the next process can run it";

impl Programs {
    /// No programs, because the process has confined itself. [`Programs::default`] allows them.
    pub(super) fn forbidden() -> Programs {
        Programs(Some(Arc::default()))
    }

    pub(super) fn are_forbidden(&self) -> bool {
        self.0.is_some()
    }

    /// Makes [`Programs::missed`] return `why`, now or when it is called.
    pub(super) fn miss(&self, why: &'static str) {
        if let Some(missed) = &self.0 {
            // The first one counts.
            let _ = missed.set(why);
        }
    }

    /// Waits until a program is needed that may not be started. Returns the error to exit with.
    pub(super) async fn missed(&self) -> &'static str {
        match &self.0 {
            Some(missed) => missed.wait().await,
            None => pending().await,
        }
    }
}
