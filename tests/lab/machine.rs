//! Which tests may run at the same time: they share the processors, and some measure.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// Whether a test may run while others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// At the same time as others.
    Beside,
    /// At the same time as other guests, each on a processor of its own.
    Guest,
    /// Alone on the machine, because it measures.
    Alone,
}

/// How many tests run at the same time beside others on two processors: most of the time they
/// wait for time limits.
const BESIDE_ON_TWO: usize = 3;
/// How many waiting tests of other kinds one passes, so that tests of a kind run in groups:
/// a change of kind waits until the last test of the other kind ended.
const MOST_PASSED: usize = 4;

/// The running tests, and those that wait, in the order in which they came.
struct Machine {
    arrived: u64,
    waiting: Vec<(u64, Share)>,
    beside: usize,
    alone: bool,
    /// The processors on which guests run.
    guests: Vec<usize>,
}

impl Machine {
    fn has_room_for(&self, share: Share) -> bool {
        match share {
            Share::Beside => {
                let most = (processors().len() * BESIDE_ON_TWO).div_ceil(2);
                !self.alone && self.guests.is_empty() && self.beside < most
            }
            Share::Guest => !self.alone && self.beside == 0 && self.free_processor().is_some(),
            Share::Alone => !self.alone && self.guests.is_empty() && self.beside == 0,
        }
    }

    /// Whether it is the turn of the test that came as number `turn`.
    fn admits(&self, turn: u64, share: Share) -> bool {
        let earlier = self.waiting.iter().filter(|(other, _)| *other < turn);
        let (same, others): (Vec<_>, Vec<_>) = earlier.partition(|(_, other)| *other == share);
        same.is_empty()
            && others.len() <= MOST_PASSED
            && !others.iter().any(|(_, other)| self.has_room_for(*other))
            && self.has_room_for(share)
    }

    fn free_processor(&self) -> Option<usize> {
        let mut usable = processors().into_iter();
        usable.find(|n| !self.guests.contains(n))
    }

    fn admit(&mut self, turn: u64, share: Share) -> Held {
        self.waiting.retain(|(other, _)| *other != turn);
        let mut processor = None;
        match share {
            Share::Beside => self.beside += 1,
            Share::Alone => self.alone = true,
            Share::Guest => {
                processor = self.free_processor();
                self.guests.extend(processor);
            }
        }
        Held { share, processor }
    }

    fn release(&mut self, held: &Held) {
        match held.share {
            Share::Beside => self.beside -= 1,
            Share::Alone => self.alone = false,
            Share::Guest => self.guests.retain(|n| Some(*n) != held.processor),
        }
    }
}

/// The processors that the tests may use.
fn processors() -> Vec<usize> {
    let ours = sched_getaffinity(Pid::from_raw(0)).expect("the processors that we may use");
    let usable = (0..CpuSet::count()).filter(|n| ours.is_set(*n) == Ok(true));
    usable.collect()
}

static MACHINE: Mutex<Machine> = Mutex::new(Machine {
    arrived: 0,
    waiting: Vec::new(),
    beside: 0,
    alone: false,
    guests: Vec::new(),
});
static CHANGED: Condvar = Condvar::new();

fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A share of the machine, until it is dropped.
#[derive(Debug)]
pub struct Held {
    share: Share,
    /// The processor that a guest is to run on.
    pub processor: Option<usize>,
}

/// Waits for `share` of the machine.
pub fn take(share: Share) -> Held {
    let mut now = machine();
    let turn = now.arrived;
    now.arrived += 1;
    now.waiting.push((turn, share));
    let waited = CHANGED.wait_while(now, |m: &mut Machine| !m.admits(turn, share));
    let mut admitted = waited.unwrap_or_else(PoisonError::into_inner);
    let held = admitted.admit(turn, share);
    CHANGED.notify_all();
    held
}

impl Drop for Held {
    fn drop(&mut self) {
        machine().release(self);
        CHANGED.notify_all();
    }
}
