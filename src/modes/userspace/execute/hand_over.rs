//! Handing new connections to another process.

use super::Executor;
use crate::modes::{handover::OtherProcesses, userspace::capture::EarlierProcess};

impl Executor {
    /// Sets the other processes that a sync acts on.
    pub fn set_others(&mut self, others: OtherProcesses) {
        self.others = others;
    }

    /// Returns whether another process serves the addresses from now on.
    pub fn yields(&self) -> bool {
        self.others.yields_to().is_some()
    }

    /// Returns whether a process that gave way still has connections.
    pub fn earlier_process(&self) -> EarlierProcess {
        if self.others.has_predecessor() {
            EarlierProcess::Runs
        } else {
            EarlierProcess::Ended
        }
    }

    /// Makes new connections to all addresses go where they should while there are
    /// other processes: to the sockets of a successor, or to any.
    pub fn hand_over(&mut self) {
        if !self.others.has_predecessor() {
            let groups = self.groups.values_mut();
            groups.for_each(|group| group.reserve_local_port());
        }
        let theirs = self.others.yields_to();
        if theirs.is_none() && self.others.has_predecessor() {
            // Its sockets are its own to hand over.
            return;
        }
        // A successor is as short of descriptors as this process is: if some addresses
        // have one socket, the successor has no second one that could be chosen.
        let workers = self.workers.count();
        let short = self.groups.values().any(|group| group.is_short(workers));
        let theirs = theirs.map(|sockets| if short { 1 } else { sockets });
        let steered = self.groups.values().map(|group| group.hand_over(theirs));
        if let Err(error) = steered.fold(Ok(()), Result::and) {
            tracing::warn!(
                "while both processes run, this one still gets some of the new connections: \
                 {error}"
            );
        }
    }
}

impl Drop for Executor {
    /// Makes sure that nothing more arrives at sockets that close while another process has some
    /// at the same addresses: as one after the other closes, those of the other process change
    /// their numbers, by which connections are handed over.
    fn drop(&mut self) {
        if self.yields() {
            self.groups.values().for_each(|group| group.fall_silent());
        }
    }
}
