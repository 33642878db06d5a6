//! State of the runner that may be read at any time: the ServicePorts, the results of syncs, and
//! everything that is not applied. It is computed only when it is read: a sync stores just a few
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

/// Current state of a runner.
#[derive(Debug)]
pub struct Status {
    /// Weak, so that a change copies the table only while it is being read. `None` if the objects
    /// are not known yet.
    ports: Mutex<Option<Weak<ServicePorts>>>,
    /// Why it matters that this node's object is not known; `None` if it is known, or nothing
    /// depends on it.
    node: Mutex<Option<Trouble>>,
    /// Whether this node has addresses of each family that serve node ports; `None` if not known.
    node_ports: Mutex<Option<PerFamily<bool>>>,
    families: Mutex<PerFamily<FamilyStatus>>,
    progress: PerFamily<SyncProgress>,
    history: Mutex<History>,
    pub(super) unsupported: Mutex<UnsupportedPreferences>,
}

/// The state of syncs of one family.
#[derive(Clone, Debug, Default)]
pub struct FamilyStatus {
    /// The last successful sync; `None` if there was none.
    pub last: Option<SuccessfulSync>,
    /// When the current sync began; `None` if no sync is running.
    pub under_way: Option<SystemTime>,
    /// Progress of the current sync; `None` if nothing is planned yet, or no sync is running.
    pub position: Option<Position>,
    /// Why syncs failed since the last successful one; `None` if none failed.
    pub failure: Option<Trouble>,
    /// Everything that was not applied by the last successful sync.
    pub failures: Arc<Failures>,
}

impl FamilyStatus {
    /// Why `port`, which is of this `family`, is not applied, or may not be; `None` if it is
    /// applied.
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

    /// Why ServicePorts of the family are not served; `None` if they are, as far as known.
    pub fn not_served(&self) -> Option<&str> {
        self.last.as_ref()?.not_served.as_deref()
    }

    /// Returns whether the first sync has ended, successfully or not.
    pub fn first_sync_is_over(&self) -> bool {
        self.last.is_some() || self.failure.is_some()
    }
}

/// A sync that succeeded.
#[derive(Clone, Debug)]
pub struct SuccessfulSync {
    /// The time at which it ended.
    pub ended: SystemTime,
    /// Duration of the sync.
    pub took: Duration,
    /// Whether everything was compared with the kernel.
    pub full: bool,
    /// Number of addresses and real servers that are kept only for their open connections.
    pub draining: usize,
    /// The first draining addresses and endpoints.
    pub drains: Arc<[Drain]>,
    /// Why ServicePorts of the family are not served, which is not a failure; `None` if they are
    /// served.
    pub not_served: Option<String>,
    /// Whether there were no ServicePorts of the family.
    pub empty: bool,
}

impl Status {
    /// State of a runner that has not received any objects yet. Its mode counts in `progress`.
    pub(super) fn new(progress: PerFamily<SyncProgress>) -> Status {
        Status {
            ports: Mutex::default(),
            node: Mutex::default(),
            node_ports: Mutex::default(),
            families: Mutex::default(),
            progress,
            history: Mutex::default(),
            unsupported: Mutex::default(),
        }
    }

    /// The desired ServicePorts, not all of which need be applied yet; `None` if they are not
    /// known.
    pub fn ports(&self) -> Option<Arc<ServicePorts>> {
        self.ports.lock().as_ref()?.upgrade()
    }

    /// Returns whether the objects have been known at least once: nothing can be derived from them
    /// before.
    pub fn knows_objects(&self) -> bool {
        self.ports.lock().is_some()
    }

    /// Consequences of not knowing this node's object although the other objects are known; `None`
    /// if it is known, or nothing depends on it.
    pub fn node(&self) -> Option<Trouble> {
        self.node.lock().clone()
    }

    /// Returns whether node ports of `family` are served at any address, as far as known.
    pub fn serves_node_ports(&self, family: Family) -> bool {
        let served = *self.node_ports.lock();
        served.is_none_or(|served| *served.get(family))
    }

    /// State of syncs of each family, including the progress of running ones.
    pub fn families(&self) -> PerFamily<FamilyStatus> {
        let mut families = self.families.lock().clone();
        for (family, status) in families.iter_mut() {
            let counted = status.under_way.map(|_| self.progress.get(family));
            status.position = counted.and_then(SyncProgress::position);
        }
        families
    }

    /// The most recent syncs of each family, oldest first.
    pub fn history(&self) -> Vec<(Family, PastSync)> {
        self.history.lock().all()
    }

    /// Calls `read` with the preferences that Services request and the mode does not support. The
    /// runner waits meanwhile.
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
