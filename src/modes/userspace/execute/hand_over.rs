//! What other processes mean for the groups.

use super::Executor;
use crate::modes::{handover::OtherProcesses, userspace::capture::EarlierProcess};

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
    pub fn earlier_process(&self) -> EarlierProcess {
        if self.others.has_predecessor() {
            EarlierProcess::Runs
        } else {
            EarlierProcess::Ended
        }
    }
}
