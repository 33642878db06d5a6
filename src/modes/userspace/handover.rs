//! Giving way to another process that takes over the service addresses, and
//! taking them back should it end early.
//!
//! A *successor* says that it is about to capture the addresses. From then on
//! this process writes no rules and routes, which would undo the successor's,
//! opens no further listener, and steers new connections of shared addresses to
//! the successor's sockets ([`super::steer`]). It still follows the cluster: a
//! connection that reaches it all the same finds the right endpoint. When the
//! last successor is gone, it writes and opens everything again.

use std::{sync::Arc, time::Duration};

use prometheus::IntGauge;
use tokio::{
    sync::{Mutex, MutexGuard, watch},
    time::timeout,
};

/// How long a successor waits for the sync that steers connections to it.
const SYNC: Duration = Duration::from_secs(2);

/// What processes beside this one mean for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Successors that are there.
    successors: usize,
    /// Those of them whose listeners are open.
    serving: usize,
    /// Sockets that the latest successor opens for an address.
    sockets: u32,
    /// Processes that gave way to this one and have not ended.
    predecessors: usize,
}

impl Standing {
    /// How many sockets the successor has for an address that new connections
    /// are to be steered to; `None`: this process serves them itself.
    pub(super) fn yields_to(&self) -> Option<u32> {
        (self.successors > 0).then_some(self.sockets)
    }

    /// Whether a process that gave way has not ended yet.
    pub(super) fn has_predecessor(&self) -> bool {
        self.predecessors > 0
    }

    /// What decides about sockets and rules.
    fn effect(&self) -> (Option<u32>, usize) {
        (self.yields_to(), self.predecessors)
    }
}

#[derive(Debug)]
struct State {
    standing: watch::Sender<Standing>,
    /// What the last sync acted on; `None`: there was none.
    applied: watch::Sender<Option<Standing>>,
    /// Held while rules and routes are written.
    capturing: Mutex<()>,
    connections: IntGauge,
}

/// Shared by the mode and by who talks to other processes.
#[derive(Clone, Debug)]
pub struct Handover(Arc<State>);

impl Handover {
    /// For a process whose open TCP connections `connections` counts.
    pub fn new(connections: IntGauge) -> Self {
        Handover(Arc::new(State {
            standing: watch::Sender::default(),
            applied: watch::Sender::default(),
            capturing: Mutex::default(),
            connections,
        }))
    }

    /// Connections that would end with this process.
    pub fn carried(&self) -> usize {
        usize::try_from(self.0.connections.get()).unwrap_or(0)
    }

    /// Whether a successor's listeners are open.
    pub fn is_succeeded(&self) -> bool {
        self.0.standing.borrow().serving > 0
    }

    /// Whether this process has served at all.
    pub fn has_served(&self) -> bool {
        self.0.applied.borrow().is_some()
    }

    /// Gives way to a successor with `sockets` for an address. Returns when no
    /// rule is being written any more and new connections are steered to it.
    pub async fn give_way(&self, sockets: u32) -> Successor {
        let mut applied = self.0.applied.subscribe();
        {
            let _capturing = self.0.capturing.lock().await;
            self.0.standing.send_modify(|standing| {
                standing.successors += 1;
                standing.sockets = sockets;
            });
        }
        let successor = Successor {
            handover: self.clone(),
            serves: false,
        };
        // Without a first sync there is nothing to steer. A sync that fails keeps
        // nobody from taking over.
        let done = |applied: &Option<Standing>| {
            applied.is_none_or(|applied| applied.yields_to().is_some())
        };
        let _ = timeout(SYNC, applied.wait_for(done)).await;
        successor
    }

    /// Notes that a process gave way to this one.
    pub fn follows(&self) -> Predecessor {
        let standing = &self.0.standing;
        standing.send_modify(|standing| standing.predecessors += 1);
        Predecessor(self.clone())
    }

    /// What holds now.
    pub(super) fn standing(&self) -> Standing {
        *self.0.standing.borrow()
    }

    /// What the last sync acted on differs in effect from `standing`.
    pub(super) fn differs(&self, standing: &Standing) -> bool {
        let applied = self.0.applied.borrow().unwrap_or_default();
        applied.effect() != standing.effect()
    }

    /// The right to write rules and routes, while it is held; `None`: a
    /// successor has it.
    pub(super) async fn capturing(&self) -> Option<MutexGuard<'_, ()>> {
        let capturing = self.0.capturing.lock().await;
        let yields = self.standing().yields_to().is_some();
        (!yields).then_some(capturing)
    }

    /// A sync has acted on `standing`.
    pub(super) fn acted_on(&self, standing: Standing) {
        self.0.applied.send_replace(Some(standing));
    }

    /// Waits until what the last sync acted on does not hold any more, beside what
    /// was `noticed` already. Returns what holds then.
    pub(super) async fn changed(&self, noticed: Standing) -> Standing {
        let mut standing = self.0.standing.subscribe();
        let new = |now: &Standing| self.differs(now) && now.effect() != noticed.effect();
        // Fails only if the sender is gone, which `self` holds.
        match standing.wait_for(new).await {
            Ok(now) => *now,
            Err(_) => noticed,
        }
    }
}

/// A process that takes over, until this is dropped.
#[derive(Debug)]
pub struct Successor {
    handover: Handover,
    serves: bool,
}

impl Successor {
    /// Its listeners are open and its rules are in force.
    pub fn serves(&mut self) {
        if !std::mem::replace(&mut self.serves, true) {
            let standing = &self.handover.0.standing;
            standing.send_modify(|standing| standing.serving += 1);
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.handover.0.standing.send_modify(|standing| {
            standing.successors = standing.successors.saturating_sub(1);
            let serving = usize::from(self.serves);
            standing.serving = standing.serving.saturating_sub(serving);
        });
    }
}

/// A process that gave way, until this is dropped.
#[derive(Debug)]
pub struct Predecessor(Handover);

impl Drop for Predecessor {
    fn drop(&mut self) {
        self.0.0.standing.send_modify(|standing| {
            standing.predecessors = standing.predecessors.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover() -> Handover {
        Handover::new(IntGauge::new("connections", "open").unwrap())
    }

    #[tokio::test]
    async fn who_gave_way_writes_again_when_the_successor_is_gone() {
        let ours = handover();
        assert!(ours.capturing().await.is_some());
        // Nothing to steer before a first sync.
        let mut successor = ours.give_way(3).await;
        assert_eq!(ours.standing().yields_to(), Some(3));
        assert!(ours.capturing().await.is_none());
        assert!(!ours.is_succeeded());
        ours.changed(Standing::default()).await;
        ours.acted_on(ours.standing());
        successor.serves();
        assert!(ours.is_succeeded());
        assert!(!ours.differs(&ours.standing()), "nothing to be done for it");
        drop(successor);
        assert!(!ours.is_succeeded());
        ours.changed(ours.0.applied.borrow().unwrap()).await;
        assert!(ours.capturing().await.is_some());
    }

    #[tokio::test]
    async fn a_successor_is_answered_when_a_sync_has_acted() {
        let ours = handover();
        ours.acted_on(ours.standing());
        let other = ours.clone();
        let coming = tokio::spawn(async move { other.give_way(1).await });
        ours.changed(Standing::default()).await;
        assert!(!coming.is_finished());
        ours.acted_on(ours.standing());
        coming.await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_predecessor_is_acted_on() {
        let ours = handover();
        let predecessor = ours.follows();
        ours.acted_on(ours.standing());
        let noticed = ours.standing();
        drop(predecessor);
        ours.changed(noticed).await;
    }
}
