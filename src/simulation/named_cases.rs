//! Common parts of named cases: a node with one mode, and calls that the kernel refuses.

use std::sync::Arc;

use net::Protocol;
use nix::errno::Errno;
use parking_lot::Mutex;
use prometheus::Registry;
use simulated::{Call, Fault, Kernel, Observer, State, packet::Packet};

use super::{stopped_clock, subject::Subject};
use crate::runner::metrics::Metrics;

/// Creates the mode of `subject`, as a process does when it starts.
pub(super) fn mode<S: Subject>(subject: S) -> S::Mode {
    let metrics = Metrics::register(&Registry::new()).expect("a registry of its own");
    subject.mode(&subject.kernel(), &metrics)
}

/// Runs `body` on a node with the mode of `subject`, whose kernel `observer` observes.
pub(super) fn on_a_node<S: Subject, T>(
    subject: S,
    observer: impl Observer + 'static,
    body: impl AsyncFnOnce(&Kernel, &mut S::Mode) -> T,
) -> T {
    stopped_clock().block_on(async {
        let kernel = Kernel::new(observer);
        let _entered = kernel.enter();
        kernel.change(|state| subject.prepare(state));
        body(&kernel, &mut mode(subject)).await
    })
}

/// Returns the first packet of a call over TCP from outside.
pub(super) fn from_outside(to: [u8; 4]) -> Packet {
    Packet {
        source: ([10, 9, 0, 1], 40_000).into(),
        destination: (to, 80).into(),
        protocol: Protocol::Tcp.number(),
        input: Some("eth0"),
        established: None,
    }
}

/// Refuses calls, when told to.
#[derive(Clone, Default)]
pub(super) struct Refusing(Arc<Mutex<Option<Refused>>>);

/// Which calls are refused.
struct Refused {
    is_one: Box<dyn Fn(Call) -> bool + Send>,
    /// How many are carried out before.
    passed: usize,
    /// How many are refused then.
    times: usize,
    /// The fault of those calls.
    fault: Fault,
}

impl Refusing {
    /// Of the calls that `is_one` selects, lets the next `passed` through and has the
    /// `times` after them refused.
    pub(super) fn refuse(
        &self,
        is_one: impl Fn(Call) -> bool + Send + 'static,
        passed: usize,
        times: usize,
    ) {
        *self.0.lock() = Some(Refused {
            is_one: Box::new(is_one),
            passed,
            times,
            fault: Fault::Refused(Errno::EBUSY, 0),
        });
    }

    /// Makes the next call that `is_one` selects lose its answer.
    pub(super) fn lose_answer(&self, is_one: impl Fn(Call) -> bool + Send + 'static) {
        self.refuse(is_one, 0, 1);
        if let Some(refused) = &mut *self.0.lock() {
            refused.fault = Fault::Unanswered;
        }
    }

    /// Stops refusing calls. Returns how many were still to be refused.
    pub(super) fn stop(&self) -> usize {
        self.0.lock().take().map_or(0, |refused| refused.times)
    }
}

impl Observer for Refusing {
    fn before(&mut self, call: Call, _: &mut State) -> Fault {
        let mut refused = self.0.lock();
        let Some(refused) = refused.as_mut().filter(|refused| (refused.is_one)(call)) else {
            return Fault::None;
        };
        if refused.passed > 0 {
            refused.passed -= 1;
            return Fault::None;
        }
        if refused.times == 0 {
            return Fault::None;
        }
        refused.times -= 1;
        refused.fault
    }

    fn after(&mut self, _: Call, _: &mut State) {}
}
