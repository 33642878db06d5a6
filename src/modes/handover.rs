//! Giving way to another process that takes over the service addresses, and taking them back should
//! it end early.
//!
//! A *successor*, in whichever mode, says that it is about to capture the addresses. From
//! then on this process writes no rules and routes, which would undo the successor's, and opens no
//! further listener. The successor is given the sockets, on which it accepts once it serves; until
//! then this process does. It follows the cluster as long as it runs. When the last successor is
//! gone, it accepts on its sockets, and writes and opens everything again.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use hashbrown::HashSet;
use net::Family;
use prometheus::IntGauge;
use tokio::{
    sync::{Mutex, MutexGuard, watch},
    time::timeout,
};

use super::userspace::assignments::{Assignments, FlowToPass};
use crate::hold::{Holding, InheritedSocket, Others};

/// How long a successor waits for the sync that hands connections to it.
const SYNC: Duration = Duration::from_secs(2);

/// Other processes of Tripod on this node, from the view of this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherProcesses {
    /// Successors that are there.
    successors: usize,
    /// Those of them whose first sync is applied.
    serving: usize,
    /// Processes that gave way to this one and have not ended.
    predecessors: usize,
    /// Those of them that may still accept connections.
    accepting: usize,
}

impl OtherProcesses {
    /// Returns whether a successor is there, which writes rules in place of this process.
    pub(super) fn yields(&self) -> bool {
        self.successors > 0
    }

    /// Returns whether a process that gave way has not ended yet.
    pub(super) fn has_predecessor(&self) -> bool {
        self.predecessors > 0
    }

    /// Returns which of them accept connections.
    fn accept(&self) -> Others {
        Others {
            predecessors: self.accepting > 0,
            successors: self.serving > 0,
        }
    }

    /// Returns whether `others` require a different treatment of sockets and rules.
    pub(super) fn differs(&self, others: &OtherProcesses) -> bool {
        self.effect() != others.effect()
    }

    /// Returns what decides about sockets and rules.
    fn effect(&self) -> (bool, bool) {
        (self.yields(), self.has_predecessor())
    }
}

#[derive(Debug)]
struct State {
    others: watch::Sender<OtherProcesses>,
    /// The state that the last sync acted on; `None`: there was none.
    applied: watch::Sender<Option<OtherProcesses>>,
    /// Held while rules and routes are written.
    capturing: Mutex<()>,
    /// Open TCP connections; unset until something is relayed.
    connections: OnceLock<IntGauge>,
    holding: Holding,
    assignments: Arc<Assignments>,
    /// Numbers of the UDP flows that the holder has for the next process.
    passed: parking_lot::Mutex<HashSet<u64>>,
    /// Whether everything that this process should serve has been applied.
    serves: AtomicBool,
}

/// Shared by the mode and the code that talks to other processes.
#[derive(Clone, Debug)]
pub struct Handover(Arc<State>);

impl Default for Handover {
    /// The state of a process without a holder.
    fn default() -> Self {
        Handover::new(Holding::default())
    }
}

impl Handover {
    /// The shared state of a process whose sockets `holding` keeps while no process runs. It may
    /// have none, as long as the kernel forwards all connections.
    pub fn new(holding: Holding) -> Self {
        Handover(Arc::new(State {
            others: watch::Sender::default(),
            applied: watch::Sender::default(),
            capturing: Mutex::default(),
            connections: OnceLock::new(),
            holding,
            assignments: Arc::default(),
            passed: parking_lot::Mutex::default(),
            serves: AtomicBool::default(),
        }))
    }

    /// Returns how many connections would end with this process.
    pub fn active_connections(&self) -> usize {
        let open = self.0.connections.get().map_or(0, IntGauge::get);
        usize::try_from(open).unwrap_or(0)
    }

    /// Has `connections` count the open TCP connections of this process.
    pub fn count(&self, connections: IntGauge) {
        // All that relay in this process share their counters.
        let _ = self.0.connections.set(connections);
    }

    /// The keeper of its sockets while no process runs.
    pub fn holding(&self) -> &Holding {
        &self.0.holding
    }

    /// Returns which endpoint each client is assigned to, as far as the kernel does not know.
    pub fn assignments(&self) -> &Arc<Assignments> {
        &self.0.assignments
    }

    /// Closes the sockets and drops the assignments that other processes gave, as nothing is relayed
    /// here, or only node ports on `loopback` addresses.
    pub fn refuse(&self, loopback: bool) {
        let State {
            holding,
            assignments,
            ..
        } = &*self.0;
        let inherited =
            holding.take_inherited(|at| !(loopback && at.bound.address.ip().is_loopback()));
        inherited.into_iter().for_each(InheritedSocket::close);
        drop(holding.take_flows());
        drop(holding.take_notes());
        for family in Family::ALL {
            assignments.drop_inherited(family);
        }
    }

    /// Leaves new packets and connections to the holder, for the next process, which continues with
    /// the assigned endpoints. Must be called again until this process ends: a worker that is in
    /// the middle of receiving may begin flows, which are passed on then.
    pub fn leave(&self) {
        let State {
            holding,
            assignments,
            ..
        } = &*self.0;
        if !holding.is_left() {
            holding.leave();
            holding.note(assignments.records());
        }
        let mut passed = self.0.passed.lock();
        let new = assignments.flows_to_pass(|number| passed.contains(&number));
        passed.extend(new.iter().map(|one| one.flow.number()));
        let new = new.into_iter();
        holding.pass(new.map(|FlowToPass { flow, record }| (record, flow as _)));
    }

    /// Leaves the sockets to the successor as they are, at the end of this process.
    pub fn leave_to_successor(&self) {
        self.holding().leave();
    }

    /// Changes what is known of other processes, and with it which process accepts.
    fn change(&self, change: impl FnOnce(&mut OtherProcesses)) {
        self.0.others.send_modify(|others| {
            change(others);
            self.holding().set_turns(others.accept());
        });
    }

    /// Returns whether connections that come in while no process runs wait for the next
    /// one: the holder has all sockets, and there is no successor.
    pub fn is_held(&self) -> bool {
        self.holding().is_complete() && !self.has_successor()
    }

    /// Returns whether a successor's listeners are open.
    pub fn is_succeeded(&self) -> bool {
        self.0.others.borrow().serving > 0
    }

    /// Returns whether a process that takes over is there.
    pub fn has_successor(&self) -> bool {
        self.other_processes().yields()
    }

    /// Records that everything that this process should serve has been applied.
    pub fn serves(&self) {
        self.0.serves.store(true, Relaxed);
    }

    /// Returns whether a process that gave way may still have to take everything back,
    /// as this one has not served yet.
    pub(super) fn is_on_trial(&self) -> bool {
        self.other_processes().has_predecessor() && !self.0.serves.load(Relaxed)
    }

    /// Waits until a process that takes over is there.
    pub(super) async fn until_yielding(&self) {
        self.until(|now| now.yields()).await;
    }

    /// Waits until no process that takes over is there.
    pub(super) async fn until_not_yielding(&self) {
        self.until(|now| !now.yields()).await;
    }

    async fn until(&self, is: impl FnMut(&OtherProcesses) -> bool) {
        let mut others = self.0.others.subscribe();
        // Fails only if the sender is gone, which `self` holds.
        let _ = others.wait_for(is).await;
    }

    /// Returns whether the sockets of this process have ever been open.
    pub fn has_served(&self) -> bool {
        self.0.applied.borrow().is_some()
    }

    /// Gives way to a successor. Returns when no rule is being written any more and no further
    /// listener is opened.
    pub async fn give_way(&self) -> Successor {
        let mut applied = self.0.applied.subscribe();
        {
            let _capturing = self.0.capturing.lock().await;
            self.change(|others| others.successors += 1);
        }
        let successor = Successor {
            handover: self.clone(),
            serves: false,
        };
        // Without a first sync there is nothing to hand over. A sync that fails
        // keeps no process from taking over.
        let done =
            |applied: &Option<OtherProcesses>| applied.is_none_or(|applied| applied.yields());
        let _ = timeout(SYNC, applied.wait_for(done)).await;
        successor
    }

    /// Records that a process gave way to this one, and still accepts connections.
    pub fn follows(&self) -> Predecessor {
        self.change(|others| {
            others.predecessors += 1;
            others.accepting += 1;
        });
        Predecessor {
            handover: self.clone(),
            accepts: true,
        }
    }

    /// Returns a receiver that tells when other processes come, serve or go.
    #[cfg(test)]
    pub fn watch(&self) -> watch::Receiver<OtherProcesses> {
        self.0.others.subscribe()
    }

    /// Returns the other processes as they are now.
    pub(super) fn other_processes(&self) -> OtherProcesses {
        *self.0.others.borrow()
    }

    /// Returns whether the state that the last sync acted on differs in effect from `others`.
    pub(super) fn differs(&self, others: &OtherProcesses) -> bool {
        self.0.applied.borrow().unwrap_or_default().differs(others)
    }

    /// Returns the right to write rules and routes, while it is kept; `None`: a
    /// successor has it.
    pub async fn capturing(&self) -> Option<MutexGuard<'_, ()>> {
        let capturing = self.0.capturing.lock().await;
        let yields = self.other_processes().yields();
        (!yields).then_some(capturing)
    }

    /// Records that a sync has acted on `others`.
    pub(super) fn acted_on(&self, others: OtherProcesses) {
        self.0.applied.send_replace(Some(others));
    }

    /// Waits until the state that the last sync acted on has changed, apart from changes `reported`
    /// already. Returns the new state.
    pub(super) async fn changed(&self, reported: OtherProcesses) -> OtherProcesses {
        let mut others = self.0.others.subscribe();
        let new = |now: &OtherProcesses| self.differs(now) && now.effect() != reported.effect();
        // Fails only if the sender is gone, which `self` holds.
        match others.wait_for(new).await {
            Ok(now) => *now,
            Err(_) => reported,
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
    /// Records that its first sync is applied: it accepts from now on.
    pub fn serves(&mut self) {
        if !std::mem::replace(&mut self.serves, true) {
            self.handover.change(|others| others.serving += 1);
        }
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        self.handover.change(|others| {
            others.successors = others.successors.saturating_sub(1);
            let serving = usize::from(self.serves);
            others.serving = others.serving.saturating_sub(serving);
        });
    }
}

/// A process that gave way, until this is dropped.
#[derive(Debug)]
pub struct Predecessor {
    handover: Handover,
    accepts: bool,
}

impl Predecessor {
    /// Whether it may still accept connections.
    pub fn accepts(&self) -> bool {
        self.accepts
    }

    /// Records that it accepts no connections any more.
    pub fn stopped(&mut self) {
        if std::mem::replace(&mut self.accepts, false) {
            let handover = &self.handover;
            handover.change(|others| others.accepting = others.accepting.saturating_sub(1));
        }
    }
}

impl Drop for Predecessor {
    fn drop(&mut self) {
        self.stopped();
        self.handover.change(|others| {
            others.predecessors = others.predecessors.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handover() -> Handover {
        Handover::default()
    }

    #[tokio::test]
    async fn who_gave_way_writes_again_when_the_successor_is_gone() {
        let ours = handover();
        assert!(ours.capturing().await.is_some());
        // Nothing to hand over before a first sync.
        let mut successor = ours.give_way().await;
        assert!(ours.other_processes().yields());
        assert!(ours.capturing().await.is_none());
        assert!(!ours.is_succeeded());
        ours.changed(OtherProcesses::default()).await;
        ours.acted_on(ours.other_processes());
        successor.serves();
        assert!(ours.is_succeeded());
        assert!(
            !ours.differs(&ours.other_processes()),
            "nothing to be done for it"
        );
        drop(successor);
        assert!(!ours.is_succeeded());
        ours.changed(ours.0.applied.borrow().unwrap()).await;
        assert!(ours.capturing().await.is_some());
    }

    #[tokio::test]
    async fn a_successor_is_answered_when_a_sync_has_acted() {
        let ours = handover();
        ours.acted_on(ours.other_processes());
        let other = ours.clone();
        let coming = tokio::spawn(async move { other.give_way().await });
        ours.changed(OtherProcesses::default()).await;
        assert!(!coming.is_finished());
        ours.acted_on(ours.other_processes());
        coming.await.unwrap();
    }

    #[tokio::test]
    async fn the_end_of_a_predecessor_is_acted_on() {
        let ours = handover();
        let predecessor = ours.follows();
        ours.acted_on(ours.other_processes());
        let reported = ours.other_processes();
        drop(predecessor);
        ours.changed(reported).await;
    }
}
