//! Faults: which calls fail, and how.

use nix::errno::Errno;
use simulated::{Call, Fault, ipset::LIST_SETS};
use testing::Random;

/// Reasons for which a kernel refuses; most of them are temporary.
const REASONS: [Errno; 6] = [
    Errno::EPERM,
    Errno::ENOBUFS,
    Errno::EBUSY,
    Errno::EAGAIN,
    Errno::ENOENT,
    Errno::ENOMEM,
];

/// Faults that are injected at present.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// How many calls in a thousand fail.
    pub(super) calls: usize,
    /// Before how many calls in a thousand another process changes something.
    pub(super) edits: usize,
    /// Whether it does so only once.
    pub(super) once: bool,
    /// At how many calls in a thousand the process is killed.
    pub(super) kills: usize,
    /// All calls are refused for this reason.
    pub(super) outage: Option<Errno>,
}

fn is_of_sets(call: Call) -> bool {
    matches!(call, Call::Dump(LIST_SETS) | Call::Members(_))
}

impl Faults {
    /// Chooses the fault of a call.
    pub(super) fn of(&self, call: Call, random: &mut Random) -> Fault {
        if call == Call::Notifications {
            let lost = self.outage.is_none() && random.chance(self.calls / 4);
            return if lost { Fault::Unanswered } else { Fault::None };
        }
        if let Some(errno) = self.outage {
            return Fault::Refused(errno, 0);
        }
        if random.chance(self.kills) {
            return random.one(&[Fault::KilledBefore, Fault::KilledAfter]);
        }
        if matches!(call, Call::Restore(_) | Call::Save(_)) {
            return self.of_program(call, random);
        }
        if !random.chance(self.calls) {
            return Fault::None;
        }
        let errno = match random.one(&REASONS) {
            // For a single deletion, ENOENT would mean that it is done already.
            Errno::ENOENT if matches!(call, Call::Requests(..) | Call::Question(_)) => Errno::EBUSY,
            // Likewise where only elements are deleted.
            Errno::ENOENT if call == Call::Transaction(3) => Errno::EBUSY,
            // For a set, ENOENT would mean that it does not exist.
            Errno::ENOENT if is_of_sets(call) => Errno::EBUSY,
            errno => errno,
        };
        match random.below(6) {
            0 => Fault::Unsent(random.one(&[Errno::ENOBUFS, Errno::ENOMEM])),
            1 => Fault::Unanswered,
            2 if matches!(call, Call::Dump(_) | Call::Members(_) | Call::Policy(..)) => {
                Fault::Interrupted
            }
            _ => Fault::Refused(errno, random.below(64)),
        }
    }

    /// Chooses the fault of a run of a program. There are fewer runs than other calls, so they fail
    /// twice as often.
    fn of_program(&self, call: Call, random: &mut Random) -> Fault {
        if !random.chance(2 * self.calls) {
            return Fault::None;
        }
        match random.below(10) {
            0 | 1 => Fault::Locked,
            2 | 3 if matches!(call, Call::Save(_)) => Fault::Interrupted,
            2 | 3 => Fault::Line(random.below(256)),
            4 if random.chance(250) => Fault::Hangs,
            4 | 5 => Fault::Ended(random.below(3)),
            6 => Fault::Unanswered,
            7 => Fault::Unsent(random.one(&[Errno::ENOENT, Errno::EAGAIN, Errno::ENOMEM])),
            _ => Fault::Refused(random.one(&REASONS), 0),
        }
    }
}
