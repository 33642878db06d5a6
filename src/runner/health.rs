//! Health of syncing, for probes, load balancers and metrics.
//!
//! A family is unhealthy when something has waited for a sync of it longer than the timeout.
//! Waiting for the first objects is not the proxy's fault, so a proxy that starts is healthy; but
//! no load balancer should send to a node that does not know yet what it serves (kube-proxy serves
//! `/healthz` only after it has read the node's object). A family that was never synced does not
//! count if the other one was: the node may not be able to serve it, and restarting the proxy would
//! interrupt the other family. Nor does a family count whose Services this node cannot serve, as
//! reported by the mode: kube-proxy does not start to serve such a family. kube-proxy's
//! `pkg/proxy/healthcheck` follows the same rules with one exception: there, a proxy that has never
//! synced successfully stays healthy.

use std::time::{Duration, SystemTime};

use net::{Family, PerFamily};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::services::Node;

/// Health of syncing, recorded by the runner and read by probes.
#[derive(Debug)]
pub struct Health {
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    syncs: PerFamily<Syncs>,
    /// Whether the objects of the cluster have been read at least once.
    are_objects_known: bool,
    /// Whether the node was deleted, is being deleted or is about to be deleted, so that load
    /// balancers should not send to it. False for a node that never had an object, for example with
    /// a folder of manifests.
    is_node_leaving: bool,
}

#[derive(Debug, Default)]
struct Syncs {
    /// The time at which a sync last succeeded.
    updated: Option<SystemTime>,
    /// Since when something has waited for a sync.
    waiting: Option<Instant>,
    /// Whether the last sync found that this node cannot serve the family.
    is_unserved: bool,
}

/// The health at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether no family is overdue, apart from a family that was never synced although the other
    /// one was.
    pub healthy: bool,
    /// Whether load balancers should send to this node: the objects of the cluster were read, and
    /// as far as the Node object is known, the node was not deleted, is not being deleted and is
    /// not about to be.
    pub node_eligible: bool,
    /// Time of the last successful sync of either family; `None` if there was none.
    pub last_updated: Option<SystemTime>,
    /// Families that were synced, are overdue, or cannot be served.
    pub families: Vec<(Family, FamilyHealth)>,
}

/// Health of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyHealth {
    /// Time of the last successful sync; `None` if there was none.
    pub last_updated: Option<SystemTime>,
    /// Whether its Services are served, and nothing has waited for a sync longer than the timeout.
    pub healthy: bool,
    /// False if this node cannot serve its Services.
    pub is_served: bool,
}

impl Snapshot {
    /// Returns whether `family` is served and not overdue.
    pub fn is_healthy(&self, family: Family) -> bool {
        let mut families = self.families.iter();
        families.all(|(of, health)| *of != family || health.healthy)
    }

    /// Returns whether the `concerned` families are healthy: none of them is overdue, apart from
    /// those left out, and at least one is not left out.
    pub fn is_healthy_for(&self, concerned: PerFamily<bool>) -> bool {
        let concerned = concerned.iter().filter(|(_, is_concerned)| **is_concerned);
        let mut counted = concerned
            .map(|(family, _)| family)
            .filter(|family| !self.is_left_out(*family))
            .peekable();
        counted.peek().is_some() && counted.all(|family| self.is_healthy(family))
    }

    /// Returns true if this node cannot serve `family`, or if `family` was never synced although
    /// the other one was.
    fn is_left_out(&self, family: Family) -> bool {
        let serves_any = self.last_updated.is_some();
        self.families.iter().any(|(of, health)| {
            let was_never = serves_any && health.last_updated.is_none();
            *of == family && (was_never || !health.is_served)
        })
    }
}

impl Health {
    /// Health of a proxy that starts. `timeout` is how long a change may wait for a successful
    /// sync; kube-proxy takes twice its sync period.
    pub fn new(timeout: Duration) -> Health {
        Health {
            timeout,
            state: Mutex::default(),
        }
    }

    /// Records that something waits for a sync of `family`.
    pub fn queued(&self, family: Family) {
        let mut state = self.state();
        let waiting = &mut state.syncs.get_mut(family).waiting;
        *waiting = Some(waiting.unwrap_or_else(Instant::now));
    }

    /// Records that a sync of `family` succeeded and nothing is waiting.
    pub fn updated(&self, family: Family) {
        *self.state().syncs.get_mut(family) = Syncs {
            updated: Some(SystemTime::now()),
            ..Syncs::default()
        };
    }

    /// Records that this node cannot serve `family`, so that nothing is waiting for it.
    pub fn not_served(&self, family: Family) {
        *self.state().syncs.get_mut(family) = Syncs {
            is_unserved: true,
            ..Syncs::default()
        };
    }

    /// Returns false if the last sync found that this node cannot serve `family`.
    pub fn is_served(&self, family: Family) -> bool {
        !self.state().syncs.get(family).is_unserved
    }

    /// Records that the objects of the cluster were read for the first time.
    pub fn objects_known(&self) {
        self.state().are_objects_known = true;
    }

    /// Records the state of this node's object, or its last state before it was deleted.
    pub fn set_node(&self, node: &Node, is_deleted: bool) {
        self.state().is_node_leaving = node.deleting || node.to_be_deleted || is_deleted;
    }

    /// The current health of both families.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.state();
        let now = Instant::now();
        let mut families = Vec::with_capacity(Family::ALL.len());
        for (family, syncs) in state.syncs.iter() {
            let overdue = syncs
                .waiting
                .is_some_and(|since| now.saturating_duration_since(since) >= self.timeout);
            let is_served = !syncs.is_unserved;
            if overdue || syncs.updated.is_some() || !is_served {
                let health = FamilyHealth {
                    last_updated: syncs.updated,
                    healthy: is_served && !overdue,
                    is_served,
                };
                families.push((family, health));
            }
        }
        let mut snapshot = Snapshot {
            healthy: true,
            node_eligible: state.are_objects_known && !state.is_node_leaving,
            last_updated: families.iter().filter_map(|(_, h)| h.last_updated).max(),
            families,
        };
        snapshot.healthy = snapshot.is_healthy_for(PerFamily::each(|_| true));
        snapshot
    }

    /// How long something has waited for a sync of each family; zero if nothing is waiting.
    pub fn waiting(&self) -> PerFamily<Duration> {
        let (state, now) = (self.state(), Instant::now());
        PerFamily::each(|family| {
            let since = state.syncs.get(family).waiting;
            since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is a single assignment, so a panic cannot leave the state half changed.
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::advance;

    use super::*;
    use crate::services::Names;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn node(object: serde_json::Value) -> Node {
        let object = serde_json::from_value(object).expect("a Node");
        Node::reduce(&object, &mut Names::default())
            .expect("a good Node")
            .object
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_waits_for_its_first_objects_is_healthy() {
        let health = Health::new(TIMEOUT);
        advance(10 * TIMEOUT).await;
        let snapshot = health.snapshot();
        assert!(snapshot.healthy && !snapshot.node_eligible);
        assert_eq!((snapshot.last_updated, snapshot.families.len()), (None, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_may_wait_for_the_timeout_and_no_longer() {
        let health = Health::new(TIMEOUT);
        health.updated(Family::V4);
        health.updated(Family::V6);
        advance(10 * TIMEOUT).await;
        assert!(health.snapshot().healthy, "nothing waits");

        health.queued(Family::V6);
        advance(TIMEOUT / 2).await;
        // The first change counts, not the latest.
        health.queued(Family::V6);
        advance(TIMEOUT / 2 - Duration::from_millis(1)).await;
        assert!(health.snapshot().healthy);
        advance(Duration::from_millis(1)).await;
        let (v4, v6) = (Duration::ZERO, TIMEOUT);
        assert_eq!(health.waiting(), PerFamily { v4, v6 });
        let snapshot = health.snapshot();
        assert!(!snapshot.healthy);
        let families: Vec<_> = snapshot
            .families
            .iter()
            .map(|(f, h)| (*f, h.healthy))
            .collect();
        assert_eq!(families, [(Family::V4, true), (Family::V6, false)]);

        health.updated(Family::V4);
        assert!(!health.snapshot().healthy, "the other family is no help");
        health.updated(Family::V6);
        assert!(health.snapshot().healthy);
        assert_eq!(health.waiting(), PerFamily::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_sync_that_never_succeeds_is_a_fault() {
        let health = Health::new(TIMEOUT);
        health.queued(Family::V4);
        assert!(health.snapshot().families.is_empty());
        advance(TIMEOUT).await;
        let snapshot = health.snapshot();
        assert!(!snapshot.healthy);
        let overdue = FamilyHealth {
            last_updated: None,
            healthy: false,
            is_served: true,
        };
        assert_eq!(snapshot.families, [(Family::V4, overdue)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_that_the_node_cannot_serve_is_unhealthy_and_does_not_count() {
        let health = Health::new(TIMEOUT);
        let of = |v4, v6| health.snapshot().is_healthy_for(PerFamily { v4, v6 });
        health.queued(Family::V4);
        health.not_served(Family::V6);
        assert!(health.snapshot().healthy, "the first sync of IPv4 may last");
        health.updated(Family::V4);
        let check = || {
            let snapshot = health.snapshot();
            assert!(snapshot.healthy);
            let named = snapshot.families.iter().map(|(f, h)| (*f, h.healthy));
            assert!(named.eq([(Family::V4, true), (Family::V6, false)]));
            assert!(of(true, true) && of(true, false) && !of(false, true));
        };
        check();
        health.queued(Family::V6);
        advance(TIMEOUT).await;
        check();
        health.updated(Family::V6);
        assert!(of(false, true), "it is served now");
        health.not_served(Family::V6);
        check();
        health.not_served(Family::V4);
        assert!(!health.snapshot().healthy, "nothing is served");
    }

    #[tokio::test(start_paused = true)]
    async fn a_family_that_was_never_in_force_does_not_count_while_the_other_is() {
        let health = Health::new(TIMEOUT);
        let of = |v4, v6| health.snapshot().is_healthy_for(PerFamily { v4, v6 });
        for family in Family::ALL {
            health.queued(family);
        }
        advance(TIMEOUT).await;
        assert!(!health.snapshot().healthy, "nothing is served");
        assert!(!of(true, true) && !of(true, false) && !of(false, true));

        health.updated(Family::V4);
        let snapshot = health.snapshot();
        assert!(snapshot.healthy && !snapshot.is_healthy(Family::V6));
        let named = snapshot.families.iter().map(|(f, h)| (*f, h.healthy));
        assert!(named.eq([(Family::V4, true), (Family::V6, false)]));
        assert!(of(true, true) && of(true, false) && !of(false, true));

        health.queued(Family::V4);
        advance(TIMEOUT).await;
        assert!(
            !health.snapshot().healthy,
            "the family that is served counts"
        );
        health.updated(Family::V4);
        health.updated(Family::V6);
        health.queued(Family::V6);
        advance(TIMEOUT).await;
        assert!(!health.snapshot().healthy, "it was applied once");
        assert!(!of(true, true) && of(true, false) && !of(false, true));
    }

    #[test]
    fn a_node_that_goes_is_not_eligible() {
        let health = Health::new(TIMEOUT);
        let good = node(json!({"metadata": {"name": "n"}}));
        let deleted = json!({"name": "n", "deletionTimestamp": "2026-11-20T12:00:00Z"});
        let deleted = node(json!({ "metadata": deleted }));
        let taint = json!({"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"});
        let tainted = node(json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]}}));
        assert!(!health.snapshot().node_eligible, "no object is known");
        health.objects_known();
        assert!(health.snapshot().node_eligible, "this node has no object");
        for (object, is_deleted, eligible) in [
            (&good, false, true),
            (&deleted, false, false),
            (&tainted, false, false),
            (&good, true, false),
            (&good, false, true),
        ] {
            health.set_node(object, is_deleted);
            let snapshot = health.snapshot();
            assert_eq!(snapshot.node_eligible, eligible, "{object:?}");
            assert!(snapshot.healthy, "which is no matter of syncs");
        }
    }
}
