//! Limit on the number of clients with session affinity that are remembered.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use prometheus::IntCounter;

use crate::log_once::LoggedFlag;

/// Maximum number of pins of all ServicePorts together: as many as nftables mode has.
const MOST: usize = 1 << 18;

/// Number of pins that each ServicePort may have in any case, so that a flood of clients of one
/// Service leaves some to others.
pub(super) const OF_EACH: usize = 1024;

/// Maximum memory of a pin in bytes: includes its place in the order of expiry, in tables that
/// double as they grow.
const COST: u64 = 256;

/// Pins may take one part in this many of the memory limit.
const MEMORY_SHARE: u64 = 8;

/// The limit on the pins of all ServicePorts together.
#[derive(Debug)]
pub struct PinLimit {
    most: usize,
    taken: AtomicUsize,
    evicted: IntCounter,
    logged: LoggedFlag,
}

impl PinLimit {
    /// The limit of a process with a limit of `memory` bytes, if there is one. Pins that end early
    /// are counted in `evicted`.
    pub fn new(memory: Option<u64>, evicted: IntCounter) -> Self {
        let fit = memory.map(|memory| memory / MEMORY_SHARE / COST);
        let fit = fit.and_then(|fit| usize::try_from(fit).ok());
        PinLimit {
            most: fit.unwrap_or(MOST).min(MOST),
            taken: AtomicUsize::new(0),
            evicted,
            logged: LoggedFlag::default(),
        }
    }

    /// Returns whether the limit is reached.
    pub fn is_reached(&self) -> bool {
        self.taken.load(Relaxed) >= self.most
    }

    /// Takes another pin for a ServicePort that has this many; returns false if there are too many.
    pub(super) fn take(&self, has: usize) -> bool {
        let more = |taken| (taken < self.most || has < OF_EACH).then_some(taken + 1);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Releases `pins`, so that other clients may be remembered.
    pub(super) fn free(&self, pins: usize) {
        if pins > 0 {
            self.taken.fetch_sub(pins, Relaxed);
        }
    }

    /// Counts that a client of the ServicePort `label` was forgotten in favour of another one, and
    /// logs it once.
    pub(super) fn evicted(&self, label: &str) {
        self.evicted.inc();
        if self.logged.is_first() {
            tracing::warn!(
                service = %label,
                remembered = self.most,
                "the maximum number of clients with session affinity is remembered: each new one \
                 replaces the client that was silent longest, which may get another endpoint; \
                 shorten sessionAffinityConfig.clientIP.timeoutSeconds, or limit who may call \
                 (loadBalancerSourceRanges); tripod_userspace_affinity_evicted_total counts them"
            );
        }
    }
}

#[cfg(test)]
pub(super) fn of(most: usize) -> std::sync::Arc<PinLimit> {
    let evicted = IntCounter::new("evicted", "Forgotten clients.").expect("a counter");
    let memory = u64::try_from(most).expect("a number") * MEMORY_SHARE * COST;
    PinLimit::new(Some(memory), evicted).into()
}

#[cfg(test)]
impl PinLimit {
    /// Number of pins.
    pub(super) fn taken(&self) -> usize {
        self.taken.load(Relaxed)
    }

    /// Number of clients that were forgotten early.
    pub(super) fn all_evicted(&self) -> u64 {
        self.evicted.get()
    }
}
