//! UDP flows that an ended proxy passed on: sockets that are connected to endpoints. The holder
//! keeps them for the next proxy.

use std::{mem, os::fd::OwnedFd, time::Duration};

use tokio::time::Instant;

/// How long they are preserved: by then the proxy's own timeout of idle flows is over
/// (`--udp-timeout`, 30 s unless it is set). If that is longer, flows still end when no proxy takes
/// them for this long.
const LIFETIME: Duration = Duration::from_secs(300);

/// A flow, and what the next proxy must know of it, in the proxies' own format.
#[derive(Debug)]
pub(super) struct PassedFlow {
    pub(super) record: Vec<u8>,
    pub(super) socket: OwnedFd,
}

/// All passed flows that no proxy has taken yet.
#[derive(Debug, Default)]
pub(super) struct PassedFlows {
    all: Vec<PassedFlow>,
    /// When the last one was passed on.
    since: Option<Instant>,
}

impl PassedFlows {
    pub(super) fn add(&mut self, flow: PassedFlow) {
        self.all.push(flow);
        self.since = Some(Instant::now());
    }

    /// Returns them for a proxy.
    pub(super) fn take(&mut self) -> Vec<PassedFlow> {
        mem::take(self).all
    }

    /// Closes them if the last one was passed on [`LIFETIME`] ago.
    pub(super) fn expire(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= LIFETIME) {
            *self = PassedFlows::default();
        }
    }
}
