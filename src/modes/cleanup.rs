//! The objects that modes install, by any process, and their removal, also while another mode runs.

use std::sync::{Arc, OnceLock};

use ipnet::IpNet;
use net::Family;
use netlink::{Protocol, Socket, conntrack::flows};
use tokio::sync::{Mutex, MutexGuard};
use xtables::{Engine, remove::Preserved, rule::Table};

use super::SyncError;
use crate::config::ModeName;

/// Chains that ipvs and iptables mode have by the same names.
const SHARED_CHAINS: [(Table, &str); 5] = [
    (Table::Filter, "KUBE-FORWARD"),
    (Table::Filter, "KUBE-PROXY-FIREWALL"),
    (Table::Nat, "KUBE-SERVICES"),
    (Table::Nat, "KUBE-POSTROUTING"),
    (Table::Nat, "KUBE-MARK-MASQ"),
];

/// Everything that a mode ever installs, including remains of an earlier process or of kube-proxy,
/// except objects that `running` uses. Of the running mode itself, these are only rules in another
/// engine, and remains of another way of capture.
pub trait Cleanup {
    /// Returns whether some of it is there. Cheap.
    ///
    /// # Errors
    /// When that is not known.
    fn is_there(&self, running: &Running) -> impl Future<Output = Result<bool, SyncError>>;

    /// Has it take no new connections. Returns the number of those that still depend on it, which
    /// would break if it were removed now.
    ///
    /// # Errors
    /// When that cannot be done or counted.
    fn retire(&self, running: &Running) -> impl Future<Output = Result<usize, SyncError>>;

    /// Removes it. Missing objects are no error, nor is a second call; nothing of others is
    /// changed.
    ///
    /// # Errors
    /// The first removal that failed, after all others were tried.
    fn cleanup(&self, running: &Running) -> impl Future<Output = Result<(), SyncError>>;

    /// Returns whether there may be rules of it that only programs can remove. Starts none.
    fn may_need_programs(&self) -> bool;
}

/// The mode that runs while remains of others are removed.
#[derive(Clone, Debug, Default)]
pub struct Running {
    /// Its name; `None`: none runs.
    pub mode: Option<ModeName>,
    /// In which engine of each family it has rules.
    pub engines: Vec<(Family, Engine)>,
    /// What userspace mode has next to a mode of the kernel.
    pub captures: Arc<Captures>,
    /// Virtual servers with addresses in these networks belong to other programs.
    pub exclude: Arc<[IpNet]>,
}

/// Capture by userspace mode for some Services, next to a mode of the kernel.
#[derive(Debug, Default)]
pub struct Captures {
    /// In which engine of each family it has rules; unset until it serves some.
    engines: OnceLock<Vec<(Family, Engine)>>,
    /// Held while remains of userspace mode are removed.
    removing: Mutex<()>,
}

impl Captures {
    /// Records that it serves some from now on. Returns when nothing of it is removed any more.
    pub async fn begin(&self, engines: Vec<(Family, Engine)>) {
        let _removing = self.removing.lock().await;
        let _ = self.engines.set(engines);
    }

    /// Returns the right to remove remains of userspace mode.
    pub(super) async fn removing(&self) -> MutexGuard<'_, ()> {
        self.removing.lock().await
    }
}

impl Running {
    /// Returns true if this mode runs.
    pub(super) fn is(&self, mode: ModeName) -> bool {
        self.mode == Some(mode)
    }

    /// Returns the families in which it has no rules: stale state may have the last rules there
    /// that need connection tracking.
    pub(super) fn without_rules(&self) -> Vec<Family> {
        let without = |family: &Family| !self.has_rules(*family);
        Family::ALL.into_iter().filter(without).collect()
    }

    /// The engines in which userspace mode has rules, for all Services or for some; `None`: it
    /// serves none.
    fn capturing(&self) -> Option<&[(Family, Engine)]> {
        match self.is(ModeName::Userspace) {
            true => Some(&self.engines),
            false => self.captures.engines.get().map(Vec::as_slice),
        }
    }

    /// Returns whether userspace mode serves all Services, or some next to another mode.
    pub(super) fn captures(&self) -> bool {
        self.capturing().is_some()
    }

    /// Returns the families in which userspace mode captures by rules.
    pub(super) fn captured_by_rules(&self) -> Vec<Family> {
        let engines = self.capturing().unwrap_or_default();
        engines.iter().map(|(family, _)| *family).collect()
    }

    /// Returns the families in which rules of userspace mode may be retired: it does not use them,
    /// and the running mode has none.
    pub(super) fn without_captured_rules(&self) -> Vec<Family> {
        let captured = self.captured_by_rules();
        let mut without = self.without_rules();
        without.retain(|family| !captured.contains(family));
        without
    }

    /// Returns the families in which it neither captures by routes, as userspace mode does
    /// where it has no rules, nor has service addresses at this node, as ipvs mode does.
    /// There open connections of a process that captured by routes can be kept.
    pub(super) fn without_local_capture(&self) -> Vec<Family> {
        match self.mode {
            Some(ModeName::Ipvs) => Vec::new(),
            _ if self.captures() => self.captured_by_rules(),
            _ => Family::ALL.to_vec(),
        }
    }

    /// Returns the families in which userspace mode captures by routes.
    pub(super) fn with_local_capture(&self) -> Vec<Family> {
        let by_rules = self.captured_by_rules();
        let mut families = Family::ALL.to_vec();
        families.retain(|family| self.captures() && !by_rules.contains(family));
        families
    }

    fn has_rules(&self, family: Family) -> bool {
        self.engines.iter().any(|(of, _)| *of == family)
    }

    /// Returns which of the rules that `mode` installs belong to the running mode, too.
    pub(super) fn preserved(&self, mode: ModeName) -> Preserved {
        let engines = self.engines.clone();
        match (mode, self.mode) {
            (ModeName::Userspace, _) => match self.capturing() {
                Some(engines) => Preserved::all(engines.to_vec()),
                None => Preserved::nothing(),
            },
            (mode, Some(running)) if mode == running => Preserved::all(engines),
            (ModeName::Iptables, Some(ModeName::Ipvs))
            | (ModeName::Ipvs, Some(ModeName::Iptables)) => {
                Preserved::chains(engines, &SHARED_CHAINS)
            }
            _ => Preserved::nothing(),
        }
    }
}

/// Counts the connections of these families that the kernel translates.
///
/// # Errors
/// When they cannot be listed.
pub(super) fn translated(families: &[Family]) -> Result<usize, netlink::Error> {
    let counts = families.iter().map(|&family| {
        let mut socket = Socket::open(Protocol::Netfilter)?;
        flows::translated(&mut socket, family)
    });
    counts.sum()
}
