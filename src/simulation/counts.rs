//! How often what happened in a run.

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) changes: u64,
    pub(super) calls: u64,
    /// Calls that failed, but for those while all are refused.
    pub(super) faults: u64,
    pub(super) edits: u64,
    pub(super) kills: u64,
    pub(super) syncs: u64,
    pub(super) failed_syncs: u64,
    /// Packets that were led through the rules.
    pub(super) packets: u64,
}

impl Counts {
    /// Returns how much happened for which a sync may follow.
    pub(super) fn happened(&self) -> u64 {
        self.faults + self.edits + self.changes
    }
}
