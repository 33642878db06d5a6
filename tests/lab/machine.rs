//! What tests may run at the same time: they share the processors, and some measure.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Whether a test may run while others do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Next to others.
    Beside,
    /// Next to other guests: each is a kernel with one processor, and keeps one busy.
    Guest,
    /// With the machine to itself, because it measures.
    Alone,
}

/// Those that run, and whose turn is next: first come, first served, so that one that must
/// be alone is not passed by for ever.
struct Machine {
    arrived: u64,
    admitted: u64,
    beside: usize,
    guests: usize,
    alone: bool,
}

impl Machine {
    fn has_room_for(&self, share: Share) -> bool {
        match share {
            Share::Beside => !self.alone && self.guests == 0,
            Share::Guest => !self.alone && self.beside == 0 && self.guests < processors(),
            Share::Alone => !self.alone && self.guests == 0 && self.beside == 0,
        }
    }

    fn count(&mut self, share: Share, change: impl Fn(usize) -> usize) {
        match share {
            Share::Beside => self.beside = change(self.beside),
            Share::Guest => self.guests = change(self.guests),
            Share::Alone => self.alone = change(0) > 0,
        }
    }
}

static MACHINE: Mutex<Machine> = Mutex::new(Machine {
    arrived: 0,
    admitted: 0,
    beside: 0,
    guests: 0,
    alone: false,
});
static CHANGED: Condvar = Condvar::new();

fn machine() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A share of the machine, until it is dropped.
#[derive(Debug)]
pub struct Held(Share);

/// Waits for `share` of the machine.
pub fn take(share: Share) -> Held {
    let mut now = machine();
    let turn = now.arrived;
    now.arrived += 1;
    let waits = |m: &mut Machine| m.admitted != turn || !m.has_room_for(share);
    let waited = CHANGED.wait_while(now, waits);
    let mut now = waited.unwrap_or_else(PoisonError::into_inner);
    now.admitted += 1;
    now.count(share, |n| n + 1);
    drop(now);
    CHANGED.notify_all();
    Held(share)
}

impl Drop for Held {
    fn drop(&mut self) {
        machine().count(self.0, |n| n.saturating_sub(1));
        CHANGED.notify_all();
    }
}
