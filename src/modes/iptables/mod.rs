//! iptables mode: the KUBE-SVC chains.
//!
//! [`plan`] says what there is to be; here it is brought about. A change is
//! planned for the ServicePorts concerned, as they were and as they are, and
//! the difference is written. At the start, for repair and when something was
//! refused, the kernel is read and the difference to that is written. Either
//! way a table changes as a whole, and what keeps out comes before what lets
//! through.

mod chains;
mod cleanup;
mod counters;
mod family;
mod full;
mod held;
pub mod plan;
pub mod render;
mod tally;
#[cfg(test)]
mod tests;
mod unsupported;
mod watch;

use std::{sync::Arc, time::Duration};

use prometheus::Registry;
use tokio::time::{Instant, sleep_until};

pub use self::cleanup::{cleanup, cleanup_except, is_there, retire};
use self::{
    counters::Counters,
    family::FamilyRules,
    plan::{DispatchChoice, Options, is_large_cluster},
    tally::Done,
};
use super::{Asked, Mode, Outcomes, SyncError, SyncReport, Unsupported, stale::StaleFlows};
use crate::{
    config::{Effective, KubeProxyConfiguration},
    kernel::{
        netlink,
        probe::{Kernel, Setting},
        sysctl,
        xtables::{self, Engine, features::Features},
    },
    modes::Metrics,
    net::{Family, ModeName, PerFamily},
    node::NodePorts,
    services::{Changes, ServiceMap},
};

/// Without it the kernel takes packets between loopback and other links for
/// forged (`Documentation/networking/ip-sysctl.rst`).
const ROUTE_LOCALNET: &str = Setting::RouteLocalnet.name();

/// Whether connection tracking finds no packet outside a TCP window invalid
/// (`Documentation/networking/nf_conntrack-sysctl.rst`).
const TCP_BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

/// How often it is looked whether somebody disturbed our rules.
const LOOK: Duration = Duration::from_secs(1);

/// Why iptables mode cannot run or did not sync.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// iptables or ip6tables.
    #[error(transparent)]
    Xtables(#[from] xtables::Error),
    /// Counters of nfacct.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// A kernel setting.
    #[error(transparent)]
    Sysctl(#[from] sysctl::Error),
    /// Metrics.
    #[error("cannot show metrics of iptables mode: {0}")]
    Metrics(#[from] prometheus::Error),
    /// Something without which there is no iptables mode.
    #[error("{family}: iptables mode needs {what}: {remedy}")]
    Impossible {
        /// Of this family.
        family: Family,
        /// What, as iptables names it.
        what: &'static str,
        /// What for, and how to get it.
        remedy: &'static str,
    },
}

/// What iptables mode is told.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The configuration.
    pub configuration: KubeProxyConfiguration,
    /// What it means.
    pub configured: Effective,
    /// On which addresses node ports are served.
    pub node_ports: Arc<NodePorts>,
    /// `--iptables-dispatch`.
    pub dispatch: DispatchChoice,
    /// What takes the figures.
    pub metrics: Arc<dyn Metrics>,
}

/// iptables mode.
pub struct Iptables {
    setup: Setup,
    counters: Counters,
    families: Vec<FamilyState>,
    /// When to look next whether somebody disturbed our rules. Kept here, as
    /// whoever waits for it may stop and begin again at any time.
    look: Instant,
}

struct FamilyState {
    family: Family,
    rules: FamilyRules,
    /// Stale flows that could not be deleted yet.
    flows: StaleFlows,
    /// It was told that node ports are not served on loopback.
    told_of_loopback: bool,
}

impl Iptables {
    /// The mode on a `kernel` that was examined; changes nothing yet. A family
    /// that the kernel, or the node, cannot do is left out and told. Metrics
    /// are shown by `registry`.
    ///
    /// # Errors
    /// When neither family works: that of the first, which is the one that the
    /// configuration prefers.
    pub fn new(setup: Setup, kernel: &Kernel, registry: &Registry) -> Result<Iptables, SyncError> {
        let counters = Counters::register(registry).map_err(Error::from)?;
        let mut order = [Family::V4, Family::V6];
        if setup.configured.prefers_ipv6 {
            order.reverse();
        }
        let (mut families, mut errors) = (Vec::new(), Vec::new());
        for family in order {
            let tools = kernel.toolkit(family).map_err(Error::from);
            match tools.and_then(FamilyRules::open) {
                Ok(rules) => families.push(FamilyState {
                    family,
                    rules,
                    flows: StaleFlows::default(),
                    told_of_loopback: false,
                }),
                Err(error) => errors.push(error),
            }
        }
        if families.is_empty() && !errors.is_empty() {
            return Err(errors.swap_remove(0).into());
        }
        for error in errors {
            tracing::warn!("Services of one IP family are not served: {error}");
        }
        Ok(Iptables {
            setup,
            counters,
            families,
            look: Instant::now() + LOOK,
        })
    }

    /// What was found, for each family that is served.
    pub fn features(&self) -> impl Iterator<Item = (Family, Features)> {
        self.families.iter().map(|f| (f.family, f.rules.features))
    }
}

impl FamilyState {
    fn unsupported(&self, map: &ServiceMap, changes: &Changes) -> Vec<Unsupported> {
        let all = map.iter().filter(|_| changes.full);
        let named = changes.ports.iter().filter(|_| !changes.full);
        let ports = all.chain(named.filter_map(|name| map.get(name)));
        let served = ports.filter(|port| port.name.family == self.family);
        served
            .flat_map(|port| unsupported::of(port, self.rules.features))
            .collect()
    }

    /// What `done` leaves to be said.
    fn report(&self, map: &ServiceMap, changes: &Changes, done: &Done) -> SyncReport {
        let refused = self.rules.refused.iter();
        let unfinished = self.rules.unfinished.iter().cloned();
        SyncReport {
            examined: done.examined,
            failed: refused
                .map(|(name, why)| (name.clone(), why.clone()))
                .collect(),
            unfinished: unfinished.chain(self.flows.unfinished()).collect(),
            unsupported: self.unsupported(map, changes),
            ..SyncReport::default()
        }
    }

    /// Leaves out what takes a kernel setting that is not to be had here, and
    /// tells so once.
    fn without_unsettable(&mut self, options: &mut Options) {
        if options.serves_localhost()
            && let Err(error) = sysctl::settable(ROUTE_LOCALNET, "1")
        {
            options.localhost_node_ports = false;
            if !std::mem::replace(&mut self.told_of_loopback, true) {
                // A warning was given at start, from the probe.
                tracing::info!(
                    "node ports are not served on loopback addresses, which takes \
                     {ROUTE_LOCALNET}=1: {error}"
                );
            }
        }
    }

    /// Whether packets outside a TCP window are invalid, and so to be dropped, is
    /// what the kernel says, whatever was configured: an administrator may have
    /// set it, or nobody could. kube-proxy reads it at start
    /// (`conntrackTCPLiberal` of `pkg/proxy/iptables`); here it is read at each
    /// `full` sync.
    fn observe_liberality(&self, full: bool, options: &mut Options) {
        let applied = self.rules.options().map(|applied| applied.tcp_be_liberal);
        if let Some(applied) = applied {
            options.tcp_be_liberal = applied;
        }
        if !full && applied.is_some() {
            return;
        }
        match sysctl::read(TCP_BE_LIBERAL) {
            Ok(value) => options.tcp_be_liberal = value != "0",
            // Connection tracking is not loaded yet; it comes with this value.
            Err(error) if error.is_missing() => options.tcp_be_liberal = false,
            Err(error) => tracing::debug!("{}: {error}", self.family),
        }
    }

    async fn sync(
        &mut self,
        setup: &Setup,
        counters: &Counters,
        map: &ServiceMap,
        changes: &Changes,
    ) -> Result<Done, SyncError> {
        let (ports, endpoints) = self.rules.counts(map, &changes.ports);
        let mut options = setup.options(&self.rules, map, ports, endpoints);
        self.without_unsettable(&mut options);
        self.observe_liberality(changes.full, &mut options);
        let failed = |partial| counters.failed(self.family, partial);
        let synced = self.rules.sync(map, changes, options, failed).await;
        let done = synced?;
        counters.synced(self.family, done.total, done.written);
        self.flows
            .clear(self.family, map, changes, &*setup.metrics)
            .await;
        Ok(done)
    }
}

impl Setup {
    /// The options for so many ServicePorts and endpoints of a family.
    fn options(
        &self,
        rules: &FamilyRules,
        map: &ServiceMap,
        ports: usize,
        endpoints: usize,
    ) -> Options {
        let now = rules.options();
        let served = self.node_ports.served();
        let node = map.this_node().map(|node| &**node);
        let options = Options::new(
            &self.configuration,
            &self.configured,
            rules.family,
            node,
            &served,
            rules.features,
        );
        Options {
            large_cluster: is_large_cluster(endpoints, now.is_some_and(|o| o.large_cluster)),
            dispatch: self.dispatch.dispatch(ports, now.map(|o| o.dispatch)),
            ..options
        }
    }
}

impl Mode for Iptables {
    fn name(&self) -> ModeName {
        ModeName::Iptables
    }

    async fn prepare(&mut self) -> Result<(), SyncError> {
        for family in &mut self.families {
            let map = ServiceMap::default();
            let mut options = self.setup.options(&family.rules, &map, 0, 0);
            family.without_unsettable(&mut options);
            family.rules.open_loopback(&options).await?;
        }
        Ok(())
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let node = map.this_node().map(|node| &**node);
        self.setup.node_ports.update(node);
        let (setup, counters) = (&self.setup, &self.counters);
        let before: Vec<_> = self.families.iter_mut().map(|f| f.rules.before()).collect();
        let mut families = self.families.iter_mut();
        let sync = async |family: Option<&mut FamilyState>| {
            let family = family?;
            let changes = (*asked.get(family.family))?;
            Some(family.sync(setup, counters, map, changes).await)
        };
        // One that fails does not keep the other from being synced.
        let (one, other) = tokio::join!(sync(families.next()), sync(families.next()));
        let done = [one, other];
        // Of a family that failed it is not known; its count is then not what
        // is expected, and everything is read the next time.
        let made = done.iter().flatten().flatten();
        let made = made.map(|done| done.transactions).sum();
        // A family that is not served has nothing to do.
        let mut outcomes: Outcomes =
            PerFamily::each(|family| asked.get(family).map(|_| Ok(SyncReport::default())));
        let families = self.families.iter_mut().zip(before).zip(done);
        for ((family, before), done) in families {
            let idle = Done::default();
            if let Ok(done) = done.as_ref().unwrap_or(&Ok(idle)) {
                family.rules.after(before, made, done);
            }
            let outcome = done
                .zip(*asked.get(family.family))
                .map(|(done, changes)| done.map(|done| family.report(map, changes, &done)));
            *outcomes.get_mut(family.family) = outcome;
        }
        outcomes
    }

    async fn externally_modified(&mut self) {
        loop {
            sleep_until(self.look).await;
            self.look = Instant::now() + LOOK;
            for family in &mut self.families {
                if !family.rules.quiet() {
                    tracing::debug!("{}: somebody changed rules", family.family);
                    return;
                }
            }
        }
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        let families = self.families.iter();
        families
            .map(|state| (state.family, state.rules.engine()))
            .collect()
    }
}
