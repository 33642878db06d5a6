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

/// The running tests, and whose turn is next: first come, first served, so that one that
/// must be alone does not wait for ever.
struct Machine {
    arrived: u64,
    admitted: u64,
    beside: usize,
    alone: bool,
    /// The processors on which guests run.
    guests: Vec<usize>,
}

impl Machine {
    fn has_room_for(&self, share: Share) -> bool {
        match share {
            Share::Beside => !self.alone && self.guests.is_empty(),
            Share::Guest => !self.alone && self.beside == 0 && self.free_processor().is_some(),
            Share::Alone => !self.alone && self.guests.is_empty() && self.beside == 0,
        }
    }

    fn free_processor(&self) -> Option<usize> {
        let ours = sched_getaffinity(Pid::from_raw(0)).expect("the processors that we may use");
        let mut usable = (0..CpuSet::count()).filter(|n| ours.is_set(*n) == Ok(true));
        usable.find(|n| !self.guests.contains(n))
    }

    fn admit(&mut self, share: Share) -> Held {
        let mut processor = None;
        match share {
            Share::Beside => self.beside += 1,
            Share::Alone => self.alone = true,
            Share::Guest => {
                processor = self.free_processor();
                self.guests.extend(processor);
            }
        }
        self.admitted += 1;
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

static MACHINE: Mutex<Machine> = Mutex::new(Machine {
    arrived: 0,
    admitted: 0,
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
    let waits = |m: &mut Machine| m.admitted != turn || !m.has_room_for(share);
    let waited = CHANGED.wait_while(now, waits);
    let held = waited.unwrap_or_else(PoisonError::into_inner).admit(share);
    CHANGED.notify_all();
    held
}

impl Drop for Held {
    fn drop(&mut self) {
        machine().release(self);
        CHANGED.notify_all();
    }
}
