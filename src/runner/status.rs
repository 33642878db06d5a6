//! What others may read of the runner at any time: the ServicePorts, how syncs went, and what is
//! not in force as requested. Nothing here is computed before it is read: a sync stores a few
//! words.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use net::{Family, PerFamily};
use parking_lot::Mutex;

use super::history::History;
pub use super::{
    failures::Failures,
    history::{Extent, PastSync},
    unsupported::UnsupportedPreferences,
};
pub use crate::modes::{Done, Reason, progress::Position};
use crate::{
    modes::{Drain, progress::SyncProgress},
    services::{ServiceMap, ServicePortName, ServicePorts},
    trouble::Trouble,
};

/// The state of a runner at the moment in which it is read.
#[derive(Debug)]
pub struct Status {
    /// Weak, so that a change copies the table only while it is read; `None`: the objects
    /// are not known yet.
    ports: Mutex<Option<Weak<ServicePorts>>>,
    /// Why it matters that this node's object is not known; `None`: it is known, or nothing depends
    /// on it.
    node: Mutex<Option<Trouble>>,
    /// Whether this node has addresses of each family that serve node ports; `None`: not known.
    node_ports: Mutex<Option<PerFamily<bool>>>,
    families: Mutex<PerFamily<FamilyStatus>>,
    progress: PerFamily<SyncProgress>,
    history: Mutex<History>,
    unsupported: Arc<Mutex<UnsupportedPreferences>>,
}

/// The state of syncs of one family.
#[derive(Clone, Debug, Default)]
pub struct FamilyStatus {
    /// The last sync that took effect; `None`: none has.
    pub last: Option<SuccessfulSync>,
    /// The time at which the current sync began; `None`: no sync is running.
    pub under_way: Option<SystemTime>,
    /// How far that one is; `None`: nothing is planned yet, or none is under way.
    pub position: Option<Position>,
    /// Why syncs had no effect since the last one that took effect; `None`: none failed since.
    pub failure: Option<Trouble>,
    /// What is not in force as requested, as of the last sync that came in force.
    pub failures: Arc<Failures>,
}

impl FamilyStatus {
    /// Returns why `port`, which is of this `family`, is not in force as requested, or may not be;
    /// `None`: it is.
    pub fn failing(&self, family: Family, port: &ServicePortName) -> Option<String> {
        if let Some(why) = self.failures.ports.get(port) {
            return Some(why.clone());
        }
        if let Some(why) = self.not_served() {
            return Some(format!("{family} is not served: {why}"));
        }
        let why = &self.failure.as_ref()?.why;
        Some(if self.last.is_some() {
            format!("recent changes may not be applied, because syncs of {family} fail: {why}")
        } else {
            format!("nothing of {family} is applied: {why}")
        })
    }

    /// Returns why ServicePorts of the family are not served; `None`: they are, as far as known.
    pub fn not_served(&self) -> Option<&str> {
        self.last.as_ref()?.not_served.as_deref()
    }

    /// Returns whether the first sync has ended, in force or failed.
    pub fn first_sync_is_over(&self) -> bool {
        self.last.is_some() || self.failure.is_some()
    }
}

/// A sync that came in force.
#[derive(Clone, Debug)]
pub struct SuccessfulSync {
    /// The time at which it ended.
    pub ended: SystemTime,
    /// Duration of the sync.
    pub took: Duration,
    /// Whether everything was compared with the kernel.
    pub full: bool,
    /// Number of addresses and real servers that stay only for the connections that they have.
    pub draining: usize,
    /// The first addresses and endpoints that drain.
    pub drains: Arc<[Drain]>,
    /// Why ServicePorts of the family are not served, which is no failure; `None`: they are served.
    pub not_served: Option<String>,
    /// Whether there were no ServicePorts of the family.
    pub empty: bool,
}

impl Status {
    /// Returns the state of a runner that has not received any objects yet; its mode counts in
    /// `progress`.
    pub(super) fn new(
        unsupported: Arc<Mutex<UnsupportedPreferences>>,
        progress: PerFamily<SyncProgress>,
    ) -> Status {
        Status {
            ports: Mutex::default(),
            node: Mutex::default(),
            node_ports: Mutex::default(),
            families: Mutex::default(),
            progress,
            history: Mutex::default(),
            unsupported,
        }
    }

    /// Returns the ServicePorts that are to be served, which need not all be in force
    /// yet; `None`: they are not known.
    pub fn ports(&self) -> Option<Arc<ServicePorts>> {
        self.ports.lock().as_ref()?.upgrade()
    }

    /// Returns whether the objects were known once: until then nothing can be derived from them.
    pub fn knows_objects(&self) -> bool {
        self.ports.lock().is_some()
    }

    /// Returns what does not work because this node's object is not known, once the others
    /// are; `None`: it is known, or nothing depends on it.
    pub fn node(&self) -> Option<Trouble> {
        self.node.lock().clone()
    }

    /// Returns whether node ports of `family` are served at some address, as far as known.
    pub fn serves_node_ports(&self, family: Family) -> bool {
        let served = *self.node_ports.lock();
        served.is_none_or(|served| *served.get(family))
    }

    /// Returns the state of syncs of each family.
    pub fn families(&self) -> PerFamily<FamilyStatus> {
        let mut families = self.families.lock().clone();
        for (family, status) in families.iter_mut() {
            let counted = status.under_way.map(|_| self.progress.get(family));
            status.position = counted.and_then(SyncProgress::position);
        }
        families
    }

    /// Returns the last syncs of each family, the oldest first.
    pub fn history(&self) -> Vec<(Family, PastSync)> {
        self.history.lock().all()
    }

    /// Calls `read` with what Services request and the mode does not do. The runner waits
    /// meanwhile.
    pub fn unsupported<T>(&self, read: impl FnOnce(&UnsupportedPreferences) -> T) -> T {
        read(&self.unsupported.lock())
    }

    pub(super) fn set_ports(&self, map: &ServiceMap) {
        *self.ports.lock() = Some(Arc::downgrade(map.ports()));
    }

    pub(super) fn set_node(&self, why: Option<String>) {
        let mut node = self.node.lock();
        *node = why.map(|why| Trouble::now(node.take(), why));
    }

    pub(super) fn set_node_port_addresses(&self, addresses: &BTreeSet<IpAddr>) {
        let is_served = |family| addresses.iter().any(|ip| Family::of(ip) == family);
        *self.node_ports.lock() = Some(PerFamily::each(is_served));
    }

    pub(super) fn began(&self, family: Family) {
        self.progress.get(family).reset();
        self.families.lock().get_mut(family).under_way = Some(SystemTime::now());
    }

    pub(super) fn ended(&self, family: Family, sync: PastSync) {
        self.history.lock().push(family, sync);
    }

    pub(super) fn synced(&self, family: Family, sync: SuccessfulSync, failures: Arc<Failures>) {
        *self.families.lock().get_mut(family) = FamilyStatus {
            last: Some(sync),
            under_way: None,
            position: None,
            failure: None,
            failures,
        };
    }

    pub(super) fn failed(&self, family: Family, why: String) {
        let mut families = self.families.lock();
        let status = families.get_mut(family);
        status.under_way = None;
        status.failure = Some(Trouble::now(status.failure.take(), why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::service_port;

    #[test]
    fn what_is_not_known_to_be_in_force_is_failing() {
        let port = service_port("web", [10, 96, 0, 1]).name;
        let last = |not_served: Option<&str>| SuccessfulSync {
            ended: SystemTime::UNIX_EPOCH,
            took: Duration::ZERO,
            full: true,
            draining: 0,
            drains: [].into(),
            not_served: not_served.map(str::to_owned),
            empty: false,
        };
        let failure = || Trouble::now(None, "no lock".to_owned());
        for (last, failure, expected) in [
            (None, None, None),
            (Some(last(None)), None, None),
            (
                Some(last(Some("no ip6tables"))),
                None,
                Some("IPv4 is not served: no ip6tables"),
            ),
            (
                None,
                Some(failure()),
                Some("nothing of IPv4 is applied: no lock"),
            ),
            (
                Some(last(None)),
                Some(failure()),
                Some("recent changes may not be applied, because syncs of IPv4 fail: no lock"),
            ),
        ] {
            let status = FamilyStatus {
                last,
                failure,
                ..FamilyStatus::default()
            };
            let why = status.failing(Family::V4, &port);
            assert_eq!(why.as_deref(), expected);
        }
    }
}
