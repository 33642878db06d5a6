//! What other processes mean for the groups.

use super::Executor;
use crate::modes::handover::OtherProcesses;

impl Executor {
    /// Sets the other processes that a sync acts on.
    pub fn set_others(&mut self, others: OtherProcesses) {
        self.others = others;
    }

    /// Returns whether another process serves the addresses from now on.
    pub fn yields(&self) -> bool {
        self.others.yields()
    }

    /// Returns whether a process that gave way still has connections.
    pub fn has_predecessor(&self) -> bool {
        self.others.has_predecessor()
    }
}
