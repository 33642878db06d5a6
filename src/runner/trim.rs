//! Returns memory that was needed only briefly to the system.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::services::Changes;

/// Number of changed ServicePorts after which memory is returned.
const MANY: usize = 2_000;
/// Time after which memory is returned a second time: reading the kernel after such a sync, or
/// decoding what others changed meanwhile, also needs memory briefly.
const SETTLED: Duration = Duration::from_secs(2);

/// Counts changes since memory was last returned.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    changed: usize,
    is_due: bool,
    again: Option<Instant>,
}

impl Trimmer {
    /// Records a sync of `changes`.
    pub(super) fn synced(&mut self, changes: &Changes) {
        self.changed += changes.ports.len();
        self.is_due |= changes.full || self.changed >= MANY;
    }

    /// Records that the mode's whole state was read from the kernel for an answer.
    pub(super) fn kernel_read(&mut self) {
        self.is_due = true;
    }

    /// Has the allocator return free memory to the system, after a sync of the whole list of a
    /// large cluster, or after many small ones. glibc keeps freed memory, which suits a steady
    /// load; but for a short time such syncs need more memory than all later ones.
    pub(super) fn trim(&mut self) {
        if std::mem::take(&mut self.is_due) {
            self.changed = 0;
            self.again = Some(Instant::now() + SETTLED);
            trim();
        }
    }

    /// Waits until memory should be returned a second time.
    pub(super) async fn settled(&self) {
        match self.again {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Returns memory a second time.
    pub(super) fn trim_again(&mut self) {
        self.again = None;
        trim();
    }
}

fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim(3) takes no pointers and may be called at any time, from any thread.
        unsafe { nix::libc::malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn after_a_full_sync_memory_is_returned_once_more() {
        let mut trimmer = Trimmer::default();
        let is_settled = async |trimmer: &Trimmer| {
            let waited = timeout(SETTLED * 2, trimmer.settled()).await;
            waited.is_ok()
        };
        trimmer.synced(&Changes::default());
        trimmer.trim();
        assert!(!is_settled(&trimmer).await, "little was synced");
        trimmer.synced(&Changes {
            full: true,
            ..Changes::default()
        });
        trimmer.trim();
        let begun = Instant::now();
        assert!(is_settled(&trimmer).await);
        assert_eq!(begun.elapsed(), SETTLED);
        trimmer.trim_again();
        assert!(!is_settled(&trimmer).await, "it was returned");
    }
}
