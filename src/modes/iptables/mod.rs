//! iptables mode: the KUBE-SVC chains.
//!
//! [`plan`] says which rules are desired, `diff` finds the steps to them, and `execute` runs the
//! steps. A change is planned for the ServicePorts concerned, as they were and as they are, and the
//! difference is written. At the start, for repair and after a refusal, the kernel is read
//! (`observe`), and the difference from that is written. Either way a table changes as a whole, and
//! rules that keep clients out are written before those that let them through.

mod accounts;
mod applied;
mod cleanup;
mod count;
mod counters;
mod diff;
mod execute;
pub(super) mod explain;
mod family;
mod large;
mod observe;
pub mod plan;
pub mod render;
mod setup;
#[cfg(test)]
mod tests;
mod traffic;

use std::time::Duration;

use net::{Family, PerFamily};
use netlink::sysctl;
use prometheus::Registry;
use xtables::Engine;

pub use self::{
    cleanup::{Installed, chains, is_kubelets, may_serve},
    counters::UNWRITTEN,
    observe::interest,
    setup::Setup,
    traffic::{Counts, Traffic},
};
use self::{count::Done, counters::Counters, family::ServedFamily};
use super::{
    Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError, SyncReport, checks::Checks,
    explain::Explain, not_served, progress::SyncProgress,
};
use crate::{
    config::ModeName,
    kernel::probe::Kernel,
    services::{Namespaces, ServiceMap},
};

/// How often it is checked whether another process changed our rules.
const CHECK: Duration = Duration::from_secs(1);

/// Why iptables mode cannot run or did not sync.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// iptables or ip6tables.
    #[error(transparent)]
    Xtables(#[from] xtables::Error),
    /// A kernel setting.
    #[error(transparent)]
    Sysctl(#[from] sysctl::Error),
    /// A metric of the same name is registered already.
    #[error("cannot show metrics of iptables mode: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Something without which there is no iptables mode.
    #[error("{family}: iptables mode needs {what}: {remedy}")]
    Impossible {
        /// The family that is not served.
        family: Family,
        /// The missing feature, as iptables names it.
        what: String,
        /// Why the mode needs it, and how to get it.
        remedy: &'static str,
    },
}

/// iptables mode: its options, and the state of each family.
pub struct Iptables {
    setup: Setup,
    counters: Counters,
    /// An error: why the family is not served.
    families: PerFamily<Result<ServedFamily, Error>>,
    /// When to check whether another process changed our rules.
    checks: Checks,
}

impl Iptables {
    /// Opens the mode on a `kernel` that was examined; changes nothing yet. A family that the
    /// kernel, or the node, does not support is left out, with a warning. Metrics are shown by
    /// `registry`.
    ///
    /// # Errors
    /// When neither family works: with the error of the first, which the configuration prefers.
    pub fn new(setup: Setup, kernel: &Kernel, registry: &Registry) -> Result<Iptables, SyncError> {
        let counters = Counters::register(registry).map_err(Error::from)?;
        let families = PerFamily::each(|family| {
            let tools = kernel.toolkit(family).map_err(Error::from);
            tools.and_then(ServedFamily::open)
        });
        let families = match families {
            PerFamily {
                v4: Err(v4),
                v6: Err(v6),
            } => {
                let of_primary = match setup.configured.primary_family {
                    Family::V4 => v4,
                    Family::V6 => v6,
                };
                return Err(of_primary.into());
            }
            some => some,
        };
        for (_, family) in families.iter() {
            if let Err(error) = family {
                tracing::warn!("Services of one IP family are not served: {error}");
            }
        }
        Ok(Iptables {
            setup,
            counters,
            families,
            checks: Checks::new(CHECK),
        })
    }

    /// A reader of how many connections endpoints of Services in the namespaces `counted` got.
    pub fn traffic(&self, counted: Namespaces) -> Traffic {
        let served = self.families.present();
        let writers = served.map(|(_, rules)| rules.writer.clone());
        Traffic::new(writers.collect(), counted)
    }

    /// Makes loopback serve node ports, if that is configured, for a process that will run without
    /// privileges.
    ///
    /// # Errors
    /// When the kernel or an iptables program refuses.
    pub async fn prepare(&mut self) -> Result<(), SyncError> {
        for (_, rules) in self.families.present_mut() {
            rules.prepare(&self.setup).await?;
        }
        Ok(())
    }

    /// Returns in which engine of each family it has rules. Does not change.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        let served = self.families.present();
        served
            .map(|(family, rules)| (family, rules.writer.engine))
            .collect()
    }
}

impl Iptables {
    /// Must be called `before` and after others in this process write rules.
    pub fn expect_changes(&mut self, before: bool) {
        for (_, rules) in self.families.present_mut() {
            rules.watch.expect_changes(before);
        }
    }
}

impl Mode for Iptables {
    fn name(&self) -> ModeName {
        ModeName::Iptables
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let node = map.this_node();
        self.setup.node_ports.update(node);
        let (setup, counters) = (&self.setup, &self.counters);
        let mut before = PerFamily::default();
        for (family, rules) in self.families.present_mut() {
            *before.get_mut(family) = rules.watch.before();
        }
        let sync = async |rules: &mut Result<ServedFamily, Error>| {
            let rules = rules.as_mut().ok()?;
            let changes = (*asked.get(rules.family))?;
            Some(rules.sync(setup, counters, map, changes).await)
        };
        // One that fails does not keep the other from being synced.
        let PerFamily { v4, v6 } = &mut self.families;
        let (v4, v6) = tokio::join!(sync(v4), sync(v6));
        let mut synced = PerFamily { v4, v6 };
        // For a family that failed, the number is not known; its count then differs from the
        // expected one, and everything is read the next time.
        let made = [&synced.v4, &synced.v6].into_iter().flatten().flatten();
        let made = made.map(|(done, _)| done.transactions).sum();
        let mut outcomes = not_served(&self.families, map, asked);
        for (family, rules) in self.families.present_mut() {
            let synced = synced.get_mut(family).take();
            let before = *before.get(family);
            let nothing = Ok((Done::default(), SyncReport::default()));
            if let Ok((done, _)) = synced.as_ref().unwrap_or(&nothing) {
                rules.watch.after(before, made, done.into());
            }
            let outcome = synced.map(|synced| Ok(synced?.1));
            *outcomes.get_mut(family) = outcome;
        }
        outcomes
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        let mut compared = Compared::default();
        for (family, rules) in self.families.present_mut() {
            let found = rules.compare(&self.setup, map).await;
            *compared.get_mut(family) = Some(found.map_err(SyncError::from));
        }
        compared
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        Ok(self.explanation(map, packet)?)
    }

    async fn externally_modified(&mut self) {
        loop {
            self.checks.due().await;
            for (family, rules) in self.families.present_mut() {
                if !rules.is_unmodified() {
                    tracing::debug!("{family}: another process changed rules");
                    return;
                }
            }
        }
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        let families = self.families.as_ref();
        families.map(|_, rules| {
            let served = rules.as_ref().ok().map(ServedFamily::progress);
            served.unwrap_or_default()
        })
    }
}
