//! nftables mode: rules of nf_tables that do not grow with Services, and maps that do.
//!
//! Each family has a table of its own. A change is planned for the ServicePorts concerned, as they
//! were and as they are, and the difference is one transaction. At the start, and when another
//! process changed the table, it is written again, in one transaction as well: rules that keep
//! clients out and rules that let them through take effect at the same moment.

mod applied;
mod cleanup;
mod compare;
mod diff;
mod execute;
pub(super) mod explain;
mod family;
mod observe;
pub mod plan;
mod refused_clients;
pub mod refused_on_loopback;
pub mod render;
mod stale_clients;
#[cfg(test)]
mod tests;
mod traffic;

use std::{io, iter, sync::Arc, time::Duration};

use net::{Family, PerFamily};
use nftables::Watcher;
use xtables::Engine;

use self::family::ServedFamily;
pub use self::{
    applied::TABLE,
    cleanup::{Installed, KUBE_PROXY, may_serve},
    traffic::{EndpointTraffic, OverLimit, Traffic},
};
use super::{
    Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError, checks::Checks,
    explain::Explain, not_served, progress::SyncProgress,
};
use crate::{
    config::{Effective, KubeProxyConfiguration, ModeName},
    kernel::probe::{Ability, Kernel, NftPart},
    log_once::LogOnce,
    modes::{Metrics, Unwritten, UnwrittenCounter},
    node::NodePorts,
    services::{Changes, Namespaces, ServiceMap},
};

/// Counters of this mode; the first two as in kube-proxy.
pub const UNWRITTEN: [UnwrittenCounter; 3] = [
    (
        Unwritten::Rules,
        "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
        "Changes that could not be written.",
    ),
    (
        Unwritten::Remnants,
        "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        "Failed removals of what is no longer needed.",
    ),
    (
        Unwritten::Clients,
        "tripod_nftables_affinity_refused_total",
        "New connections whose clients are not remembered, because the ServicePort has the maximum \
         number of remembered clients; the log names it.",
    ),
];

/// nftables mode needs all of these, and also either numgen or hash.
pub const REQUIRED: [NftPart; 5] = [
    NftPart::Tables,
    NftPart::Ct,
    NftPart::Nat,
    NftPart::Masquerade,
    NftPart::Ranges,
];

/// How often notifications of the kernel are read, clients forgotten whose endpoints are gone, and
/// clients counted for whom there was no room.
const CHECK: Duration = Duration::from_millis(250);

/// Why nftables mode cannot run or did not sync.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused something, or could not be asked.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// Others changed something during each attempt to write the table.
    #[error("other processes keep changing nf_tables, so that Tripod's table cannot be written")]
    Unstable,
}

/// Configuration of nftables mode.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration, as it was read.
    pub configuration: KubeProxyConfiguration,
    /// The effective settings, which follow from the configuration.
    pub configured: Effective,
    /// On which addresses node ports are served.
    pub node_ports: Arc<NodePorts>,
    /// Namespaces whose Services are counted.
    pub counted: Namespaces,
    /// Where figures of the mode are recorded.
    pub metrics: Arc<dyn Metrics>,
}

/// nftables mode, for the families that this kernel can serve.
pub struct Nftables {
    setup: Setup,
    /// An error: why this kernel cannot serve the family.
    families: PerFamily<Result<ServedFamily, String>>,
    watcher: Watcher,
    /// Logs why notifications could not be read.
    unread: LogOnce,
    /// When to check whether another process changed our tables.
    checks: Checks,
}

impl Nftables {
    /// Returns the mode on a `kernel` that was examined, for the families that it can
    /// serve; changes nothing yet.
    ///
    /// # Errors
    /// When the kernel's notifications cannot be received.
    pub fn new(setup: Setup, kernel: &Kernel) -> Result<Nftables, SyncError> {
        let mut own = Vec::new();
        let mut open = |family| match lacks(kernel, family) {
            Some(why) => Ok::<_, Error>(Err(why)),
            None => {
                let served = ServedFamily::open(kernel, family)?;
                own.push(served.table.port()?);
                Ok(Ok(served))
            }
        };
        let families = PerFamily {
            v4: open(Family::V4)?,
            v6: open(Family::V6)?,
        };
        let watcher = Watcher::open(&own).map_err(Error::from)?;
        Ok(Nftables {
            setup,
            families,
            watcher,
            unread: LogOnce::default(),
            checks: Checks::new(CHECK),
        })
    }

    /// Reads the changes of others; true if they concern a table of ours.
    ///
    /// # Errors
    /// When the socket fails: the changes of others are not known.
    fn read_notifications(&mut self, asked: Asked<'_>) -> io::Result<bool> {
        let changes = self.watcher.changes()?;
        let mut concerned = false;
        let none = Changes::default();
        for (family, served) in self.families.present_mut() {
            if changes.concern(family, TABLE) {
                concerned = true;
                let asked = asked.get(family).unwrap_or(&none);
                served.table.begin(asked);
                if *changes.missed.get(family) {
                    served.table.missed_changes();
                } else {
                    served.table.externally_modified();
                }
            }
        }
        Ok(concerned)
    }

    /// Makes full syncs write tables again that another process may have changed unnoticed.
    fn read_before_sync(&mut self, asked: Asked<'_>) {
        let read = self.read_notifications(asked);
        log_read(&mut self.unread, read.as_ref().err());
        if read.is_ok() {
            return;
        }
        for (family, served) in self.families.present_mut() {
            if asked.get(family).is_some_and(|changes| changes.full) {
                served.table.missed_changes();
            }
        }
    }

    /// Returns in which engine of each family it has rules. Does not change.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        let served = self.families.present();
        served
            .map(|(family, _)| (family, Engine::NfTables))
            .collect()
    }
}

/// Names the parts that `kernel` lacks for `family`; `None`: it can serve it.
fn lacks(kernel: &Kernel, family: Family) -> Option<String> {
    let required = REQUIRED.map(|part| Ability::Nftables(family, part));
    let mut all = iter::once(Ability::Sockets(family)).chain(required);
    all.find_map(|ability| {
        let why = kernel.why_unusable(&ability)?;
        let remedy = ability.remedy();
        Some(format!("this kernel lacks {ability} ({why}; {remedy})"))
    })
}

/// Logs the `error` of reading notifications once for as long as there is one, and when it is
/// over.
fn log_read(logged: &mut LogOnce, error: Option<&io::Error>) {
    match error {
        Some(error) if logged.differs(&error.to_string()) => tracing::warn!(
            "cannot read notifications of nf_tables, so that full syncs write Tripod's table \
             again; if this persists, restart Tripod: {error}"
        ),
        None if logged.end() => tracing::info!("notifications of nf_tables can be read again"),
        _ => {}
    }
}

impl Mode for Nftables {
    fn name(&self) -> ModeName {
        ModeName::Nftables
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let node = map.this_node();
        self.setup.node_ports.update(node);
        self.read_before_sync(asked);
        let mut outcomes = not_served(&self.families, map, asked);
        for (family, served) in self.families.present_mut() {
            if let Some(changes) = asked.get(family) {
                let outcome = served
                    .sync(&self.setup, map, changes, &mut self.watcher)
                    .await;
                *outcomes.get_mut(family) = Some(outcome);
            }
        }
        outcomes
    }

    fn observes(&self, asked: Asked<'_>) -> bool {
        // A table whose applied state is not known is written as a whole.
        let is_written = |(family, served): (Family, &ServedFamily)| {
            asked.get(family).is_some() && served.table.options().is_none()
        };
        self.families.present().any(is_written)
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        let setup = &self.setup;
        self.families.as_mut().map(|_, served| {
            let served = served.as_mut().ok()?;
            let options = served.options(setup, map, &Changes::default());
            let found = served.table.compare(map, options);
            Some(found.map_err(SyncError::from))
        })
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        Ok(self.explanation(map, packet)?)
    }

    async fn externally_modified(&mut self) {
        loop {
            self.checks.due().await;
            let mut were_late = false;
            for (_, served) in self.families.present_mut() {
                served.delete_stale_clients(&*self.setup.metrics);
                served.count_refused_clients(&*self.setup.metrics);
                were_late |= served.table.were_late();
            }
            if were_late {
                // A sync deletes the UDP flows of these clients.
                return;
            }
            // Where they cannot be read, the next sync says so.
            if self.read_notifications(Asked::default()).unwrap_or(false) {
                return;
            }
        }
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        let families = self.families.as_ref();
        families.map(|_, served| {
            let served = served.as_ref().map(|served| served.table.progress());
            served.unwrap_or_default()
        })
    }
}
