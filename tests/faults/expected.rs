//! The functions that continue, and those that wait for the failing part.

use super::{
    fault::{Fault, Mode},
    questions::Question,
};
use crate::lab::ProgramFault;

/// The expected answer to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    GoesOn,
    /// It depends on the failing part.
    Waits(Why),
    /// The question does not apply.
    NotApplicable,
}

/// Why something waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    Kernel,
    Rules,
    Guard,
    Unknown,
    LastSync,
    Members,
}

impl Why {
    pub const ALL: [Why; 6] = [
        Why::Kernel,
        Why::Rules,
        Why::Guard,
        Why::Unknown,
        Why::LastSync,
        Why::Members,
    ];

    pub fn text(self) -> &'static str {
        match self {
            Why::Kernel => "it needs a change that the kernel does not take",
            Why::Rules => "it needs a rule that must be written",
            Why::Guard => "the rule that blocks other callers is written first",
            Why::Unknown => "only the API server knows about it",
            Why::LastSync => "it shows the state after the last successful sync",
            Why::Members => "its source ranges must become members of the full set",
        }
    }
}

/// Returns the answer that is asserted, and documented.
pub fn answer(mode: Mode, fault: Fault, question: Question) -> Answer {
    use Answer::{GoesOn, NotApplicable, Waits};
    match question {
        Question::Open | Question::New | Question::Livez | Question::Repaired => return GoesOn,
        Question::OtherFamily if fault.family().is_none() => return NotApplicable,
        Question::OtherFamily => return GoesOn,
        _ => {}
    }
    match fault {
        Fault::ApiSlow => GoesOn,
        Fault::ApiDown => Waits(Why::Unknown),
        Fault::Netlink => of_netlink(mode, question),
        Fault::FullSet => match question {
            Question::Guarded => Waits(Why::Members),
            _ => GoesOn,
        },
        Fault::Programs(programs) => of_programs(mode, programs, question),
    }
}

fn of_netlink(mode: Mode, question: Question) -> Answer {
    use Answer::{GoesOn, Waits};
    match (mode, question) {
        (Mode::Iptables | Mode::Redirect, _) => GoesOn,
        (Mode::Local, Question::Endpoints | Question::Closes) => GoesOn,
        (_, Question::Health) => Waits(Why::LastSync),
        _ => Waits(Why::Kernel),
    }
}

fn of_programs(mode: Mode, fault: ProgramFault, question: Question) -> Answer {
    use Answer::{GoesOn, Waits};
    // Only full syncs, and the start, read rules.
    let reading = fault == ProgramFault::SaveFails;
    // Failures that are known for some ServicePorts are reported for those.
    let named = matches!(fault, ProgramFault::RestoreFails | ProgramFault::Family(_));
    match (mode, question) {
        (Mode::Local | Mode::Nftables, _) => GoesOn,
        (Mode::Ipvs, Question::Guarded) => Waits(Why::Guard),
        (Mode::Ipvs, _) => GoesOn,
        (Mode::Iptables | Mode::Redirect, _) if reading => GoesOn,
        (Mode::Redirect, Question::Endpoints) => GoesOn,
        (Mode::Redirect, Question::Health) if matches!(fault, ProgramFault::Family(_)) => GoesOn,
        (Mode::Iptables, Question::Health) if named => GoesOn,
        (Mode::Iptables | Mode::Redirect, Question::Health) => Waits(Why::LastSync),
        (Mode::Iptables | Mode::Redirect, _) => Waits(Why::Rules),
    }
}
