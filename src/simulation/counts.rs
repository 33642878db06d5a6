//! How often each kind of event happened in a run.

use std::time::Duration;

/// How often each kind of event happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// The number of steps of the run, known when it has ended.
    pub(super) steps: u64,
    pub(super) changes: u64,
    pub(super) calls: u64,
    /// Calls that failed, except those made while all are refused.
    pub(super) faults: u64,
    pub(super) edits: u64,
    pub(super) kills: u64,
    pub(super) syncs: u64,
    pub(super) failed_syncs: u64,
    /// Packets that were sent through the rules.
    pub(super) packets: u64,
}

impl Counts {
    /// Returns how many events there were that a sync may follow.
    pub(super) fn happened(&self) -> u64 {
        self.faults + self.edits + self.changes
    }

    /// Adds the counts of another run.
    pub(super) fn add(&mut self, run: Counts) {
        self.steps += run.steps;
        self.changes += run.changes;
        self.calls += run.calls;
        self.faults += run.faults;
        self.edits += run.edits;
        self.kills += run.kills;
        self.syncs += run.syncs;
        self.failed_syncs += run.failed_syncs;
        self.packets += run.packets;
    }

    /// Prints the counts as `make simulate` keeps them for docs/reliability.md: the figures
    /// of the mode `name`, for a run that took `took`.
    pub(super) fn print(&self, name: &str, took: Duration) {
        let figures = [
            ("steps", self.steps),
            ("seconds", took.as_secs()),
            ("changes", self.changes),
            ("calls", self.calls),
            ("faults", self.faults),
            ("edits", self.edits),
            ("kills", self.kills),
            ("syncs", self.syncs),
            ("failed_syncs", self.failed_syncs),
            ("packets", self.packets),
        ];
        for (figure, value) in figures {
            println!("FIGURE measured simulation,{name},{figure}: {value}");
        }
    }
}
