//! Returns memory to the system that was needed for a moment.

use crate::services::Changes;

/// After so many changed ServicePorts memory is returned.
const MANY: usize = 2_000;

/// Counts what was synced since memory was returned last.
#[derive(Debug, Default)]
pub(super) struct Trimmer {
    changed: usize,
}

impl Trimmer {
    /// Has the allocator return what is free to the system, after a sync of `changes`
    /// with which a list of a large cluster came, or after many small ones. glibc
    /// keeps freed memory, which is right for what comes and goes; but those take
    /// more for a moment than all that follows.
    pub(super) fn synced(&mut self, changes: &Changes) {
        self.changed += changes.ports.len();
        if changes.full || self.changed >= MANY {
            self.changed = 0;
            trim();
        }
    }
}

fn trim() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: malloc_trim(3) takes no pointers and may be called at any
        // time, from any thread.
        unsafe { nix::libc::malloc_trim(0) };
    }
}
