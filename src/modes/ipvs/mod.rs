//! ipvs mode: virtual servers in the kernel's IPVS.
//!
//! [`plan`] says what each ServicePort needs, `desired` adds up the needs of all. A sync updates
//! the desired state; a full one also observes the kernel (`observe`). `diff` finds the steps from
//! the observed to the desired state, `execute` runs them in a safe order. A guard that is not
//! applied blocks only the frontends that it guards, and only while they are closed: see `blocked`.

mod blocked;
mod cleanup;
mod clients;
mod compare;
mod desired;
mod diff;
mod drain;
mod execute;
pub(super) mod explain;
mod family;
mod objects;
mod observe;
mod own_servers;
pub mod plan;
pub mod render;
mod rules;
mod saved;
mod settings;
mod steps;
mod taken_over;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use net::{Family, PerFamily};
use tokio::time::Instant;
use xtables::Engine;

pub use self::{
    cleanup::{Installed, chains, virtual_servers},
    own_servers::{NamedFrontends, OwnServers},
    plan::Options,
    saved::saved,
};
use self::{
    clients::Clients,
    compare::Comparison,
    desired::Desired,
    family::{Observation, ServedFamily, Shared, Work},
    observe::{Listing, RealServers},
    plan::{LINK, asked_scheduler, may_be_tried},
    rules::{FamilyRules, RuleWriter},
};
use super::{
    Asked, Compared, ExplainResult, Mode, Outcomes, Packet, SyncError, both_failed, checks::Checks,
    comparison, explain::Explain, progress::SyncProgress, state::CacheState,
};
use crate::{
    config::ModeName,
    kernel::probe::Kernel,
    log_once::LogOnce,
    modes::{Metrics, Unwritten, UnwrittenCounter, repairs::Repairs},
    node::{ActedOn, NodePorts},
    services::{ServiceMap, ServicePortName},
};

/// Counters of kube-proxy in this mode.
pub const UNWRITTEN: [UnwrittenCounter; 1] = [(
    Unwritten::Rules,
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "Rules that could not be written.",
)];

/// How often to check whether another process changed our objects.
const CHECK: Duration = Duration::from_secs(1);
/// For this many times as long as a sync took that read everything, rules are not
/// checked again: of legacy tables only the sizes are known, which others may change
/// all the time.
const PAUSE: u32 = 3;

/// Why ipvs mode as a whole failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// IPVS, ipset, links or addresses failed.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The rules around the virtual servers failed. Virtual servers that need them are not opened.
    #[error("{family} rules: {source}")]
    Rules {
        /// The family whose rules they are.
        family: Family,
        /// The error of the program.
        source: xtables::Error,
    },
    /// It is not known which chains are there.
    #[error(transparent)]
    Chains(xtables::Error),
}

/// The mode in which the kernel's IPVS forwards the traffic of Services.
pub struct Ipvs {
    options: Options,
    node_ports: Arc<NodePorts>,
    /// The node-port addresses that the mode has acted on.
    served: ActedOn,
    clients: Clients,
    desired: Desired,
    families: PerFamily<ServedFamily>,
    metrics: Arc<dyn Metrics>,
    /// Logs settings and timeouts that the kernel refused.
    logged: LogOnce,
    /// Why timeouts are not as configured.
    refused_timeouts: Vec<String>,
    /// How often another program took the dummy link away.
    repairs: Repairs,
    /// When to check whether another process changed our objects.
    checks: Checks,
    /// Rules are not checked before this time.
    next_check_of_rules: Instant,
    /// The last sync of a family failed: another one is due in any case.
    failed: PerFamily<bool>,
    /// How many members the sets had after the last sync, if that could be read.
    set_sizes: Option<BTreeMap<String, Option<u32>>>,
}

/// The names of sets that were missing, of each family that is due.
type MadeSets = PerFamily<Option<Result<Vec<&'static str>, netlink::Error>>>;

/// Observed state of each family that was due.
type Observations = PerFamily<Option<Result<Observation, netlink::Error>>>;

impl Ipvs {
    /// Returns the mode on a `kernel` that was examined; nothing of the kernel's state
    /// is changed yet.
    ///
    /// # Errors
    /// When this kernel lacks IPVS, ipset or iptables for the primary family.
    pub fn new(
        options: Options,
        kernel: &Kernel,
        node_ports: Arc<NodePorts>,
        metrics: Arc<dyn Metrics>,
    ) -> Result<Ipvs, SyncError> {
        let left_out = kernel.left_out_schedulers();
        let mut clients = Clients::open(left_out).map_err(Error::from)?;
        let start = |family| {
            let tools = kernel.toolkit(family);
            match tools.and_then(|tools| RuleWriter::start(family, tools)) {
                Ok(writer) => Ok(Ok(writer)),
                Err(source) if family == options.primary_family => {
                    Err(Error::Rules { family, source })
                }
                Err(error) => {
                    tracing::info!("{family} Services are not served: {error}");
                    Ok(Err(error.to_string()))
                }
            }
        };
        let writers = PerFamily {
            v4: start(Family::V4)?,
            v6: start(Family::V6)?,
        };
        let timeouts = clients.set_timeouts(&options.timeouts);
        let refused_timeouts = timeouts.map_err(Error::from)?;
        Ok(Ipvs {
            options,
            served: node_ports.acted_on(),
            node_ports,
            clients,
            desired: Desired::default(),
            families: writers
                .map(|family, writer| ServedFamily::new(family, FamilyRules::new(family, writer))),
            metrics,
            logged: LogOnce::default(),
            refused_timeouts,
            repairs: Repairs::default(),
            checks: Checks::new(CHECK),
            next_check_of_rules: Instant::now(),
            failed: PerFamily::default(),
            set_sizes: None,
        })
    }

    /// Writes the settings of the kernel that ipvs mode needs. Logs the settings and timeouts that
    /// the kernel refused.
    pub fn write_settings(&mut self) {
        let mut refused = settings::apply(&self.options);
        refused.extend(self.refused_timeouts.iter().cloned());
        self.logged.end_others(&refused);
        for new in self.logged.replace(refused) {
            tracing::warn!("{new}");
        }
    }

    /// Sets up the settings and the dummy link, which everything else needs. Detects the properties
    /// of the node that plans depend on, and forgets all ServicePorts if they have changed.
    fn update_node(&mut self, map: &ServiceMap) -> Result<(), netlink::Error> {
        // Before settings, which exist only with the module.
        if self.clients.was_loaded_again()? {
            tracing::warn!("the module of IPVS was reloaded: its virtual servers are gone");
            self.refused_timeouts = self.clients.set_timeouts(&self.options.timeouts)?;
        }
        self.write_settings();
        let is_known =
            |(_, family): (_, &ServedFamily)| family.state.cache() != CacheState::Unknown;
        let was_there = self.families.iter().any(is_known);
        let repaired = self.clients.ensure_link()? && was_there;
        let repaired = repaired.then(|| format!("link {LINK}"));
        self.repairs.log(repaired.as_slice());
        let served = self.node_ports.served();
        let mut node = observe::node_context(&mut self.clients, &self.options, &served, map)?;
        let default = &self.options.scheduler;
        let asked = map.iter().map(|port| asked_scheduler(port, default));
        let asked = asked.filter(|asked| may_be_tried(asked, default));
        let asked = asked.chain([Arc::clone(default)]);
        node.missing_schedulers = self.clients.missing_schedulers(asked.collect())?;
        if self.desired.set_node(node) {
            self.invalidate();
        }
        Ok(())
    }

    /// Makes the next sync observe the kernel.
    fn invalidate(&mut self) {
        for (_, family) in self.families.iter_mut() {
            family.state.invalidate();
        }
    }

    /// Returns which of the families that are `asked` for have to observe the kernel.
    fn must_observe(&self, asked: Asked<'_>) -> PerFamily<bool> {
        asked.map(|family, changes| {
            let state = &self.families.get(family).state;
            changes.is_some_and(|changes| state.must_observe(changes))
        })
    }

    /// Detects the properties that the plans of both families depend on, and updates the desired
    /// state of those that are `asked` for. Returns their work.
    fn update_desired(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
    ) -> Result<PerFamily<Option<Work>>, netlink::Error> {
        let node = map.this_node();
        self.node_ports.update(node);
        if self.served.differs(&self.node_ports) {
            self.invalidate();
        }
        let due = self.must_observe(asked);
        if due.v4 || due.v6 {
            self.update_node(map)?;
        } else {
            let names = asked.into_iter().filter_map(|(_, changes)| changes);
            let names = names.flat_map(|changes| &changes.ports);
            let ports = names.filter_map(|name| map.get(name));
            let default = &self.options.scheduler;
            let asked = ports.map(|port| asked_scheduler(port, default));
            // Whether the kernel has the default one is known already.
            let asked = asked.filter(|asked| asked != default && may_be_tried(asked, default));
            let missing = self.clients.missing_schedulers(asked.collect())?;
            self.desired.add_missing_schedulers(missing);
        }
        // The detected properties of the node may have changed.
        let due = self.must_observe(asked);
        Ok(asked.map(|family, changes| {
            let changes = changes?;
            let mut names: BTreeSet<ServicePortName> = changes.ports.iter().cloned().collect();
            if *due.get(family) {
                let all = map.iter().map(|port| &port.name);
                let all = all.chain(self.desired.names());
                names.extend(all.filter(|name| name.family == family).cloned());
            }
            let of_family = self.families.get_mut(family);
            let mut work = of_family.update(&mut self.desired, map, names);
            work.observes = *due.get(family);
            Some(work)
        }))
    }

    /// Creates the missing sets of the `due` families, and observes the kernel's state of the
    /// families whose sets are there.
    ///
    /// # Errors
    /// When objects of both families cannot be listed.
    fn ensure_and_observe(&mut self, due: PerFamily<bool>) -> Result<Observations, netlink::Error> {
        let made_sets = due.map(|family, due| {
            let of_family = self.families.get(family);
            due.then(|| of_family.ensure_sets(&mut self.clients, &self.desired))
        });
        let listing = Listing::read(&mut self.clients, &self.desired)?;
        if listing.has_trial {
            // Left by a process that was killed while it tried a scheduler.
            self.clients.ipvs.remove_trial()?;
        }
        Ok(self.observe(listing, made_sets))
    }

    /// Observes the families whose sets are there. Virtual servers and addresses were
    /// listed for both at once, sets are for each.
    fn observe(&mut self, mut listing: Listing, made_sets: MadeSets) -> Observations {
        let (clients, desired) = (&mut self.clients, &self.desired);
        let mut observations = made_sets.map(|family, made| {
            let of_family = self.families.get_mut(family);
            made.map(|made| of_family.observe(&mut listing, clients, desired, made?))
        });
        let servers = self.families.iter().map(|(_, family)| family.servers());
        let servers: usize = servers.sum();
        let any = |(_, found): (_, &Option<Result<_, _>>)| matches!(found, Some(Ok(_)));
        if servers > 0 && observations.iter().any(any) {
            let real_servers = Arc::new(RealServers::read(clients, servers));
            for (_, observation) in observations.iter_mut() {
                if let Some(Ok(observation)) = observation {
                    observation.set_real_servers(Arc::clone(&real_servers));
                }
            }
        }
        observations
    }

    /// Does the work of a sync.
    async fn sync_families(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let begun = Instant::now();
        let mut works = match self.update_desired(map, asked) {
            Ok(works) => works,
            Err(error) => return both_failed(asked, Error::from(error)),
        };
        let observes = |work: &Option<Work>| work.as_ref().is_some_and(|work| work.observes);
        let due = works.as_ref().map(|_, work| observes(work));
        let mut observations = PerFamily::default();
        if due.v4 || due.v6 {
            match self.ensure_and_observe(due) {
                Ok(found) => observations = found,
                Err(error) => {
                    for (_, family) in self.families.iter_mut() {
                        family.state.suspect();
                    }
                    return both_failed(asked, Error::from(error));
                }
            }
        }
        let mut outcomes = Outcomes::default();
        for (family, changes) in asked {
            let (Some(changes), Some(work)) = (changes, works.get_mut(family).take()) else {
                continue;
            };
            let observation = observations.get_mut(family).take();
            let shared = Shared {
                clients: &mut self.clients,
                desired: &self.desired,
                options: &self.options,
                metrics: &*self.metrics,
            };
            let of_family = self.families.get_mut(family);
            let synced = of_family.sync(work, observation, map, changes, shared);
            *outcomes.get_mut(family) = Some(synced.await.map_err(SyncError::from));
        }
        if due.v4 || due.v6 {
            self.next_check_of_rules = Instant::now() + begun.elapsed() * PAUSE;
        }
        self.set_sizes = self.clients.set_sizes().ok();
        outcomes
    }

    /// Returns in which engine of each family it has rules. Does not change.
    pub fn engines(&self) -> Vec<(Family, Engine)> {
        let families = self.families.iter();
        let found = families.filter_map(|(family, of_family)| {
            let engine = of_family.rules().engine()?;
            Some((family, engine))
        });
        found.collect()
    }

    /// Must be called `before` and after others in this process write rules.
    pub fn expect_changes(&mut self, before: bool) {
        for (_, of_family) in self.families.iter_mut() {
            of_family.expect_changes(before);
        }
    }
}

impl Mode for Ipvs {
    fn name(&self) -> ModeName {
        ModeName::Ipvs
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let outcomes = self.sync_families(map, asked).await;
        for (family, outcome) in outcomes.iter() {
            if let Some(outcome) = outcome {
                *self.failed.get_mut(family) = outcome.is_err();
            }
        }
        outcomes
    }

    fn observes(&self, asked: Asked<'_>) -> bool {
        let due = self.must_observe(asked);
        due.v4 || due.v6
    }

    async fn externally_modified(&mut self) {
        loop {
            self.checks.due().await;
            let sizes = self.clients.set_sizes().ok();
            if sizes.is_some() && self.set_sizes.is_some() && sizes != self.set_sizes {
                tracing::debug!("another process changed members of sets");
                return;
            }
            let is_due = Instant::now() >= self.next_check_of_rules;
            for (family, of_family) in self.families.iter_mut() {
                if *self.failed.get(family) {
                    continue;
                }
                let has_servers = of_family.has_virtual_servers(&mut self.clients);
                if !has_servers || is_due && !of_family.has_rules() {
                    tracing::debug!("{family}: another process changed rules or virtual servers");
                    return;
                }
            }
        }
    }

    async fn compare(&mut self, map: &ServiceMap) -> Compared {
        let desired = compare::desired(map, &self.desired);
        let mut listing = match Listing::read(&mut self.clients, &desired) {
            Ok(listing) => listing,
            Err(error) => return comparison::both_failed(Error::from(error)),
        };
        let mut compared = Compared::default();
        for (family, of_family) in self.families.iter_mut() {
            if of_family.rules().unserved().is_some() {
                continue;
            }
            let mut comparison = Comparison {
                family,
                clients: &mut self.clients,
                desired: &desired,
                options: &self.options,
            };
            let found = of_family.compare(&mut comparison, &mut listing).await;
            *compared.get_mut(family) = Some(found.map_err(SyncError::from));
        }
        compared
    }

    async fn explain(&mut self, map: &ServiceMap, packet: &Packet) -> ExplainResult {
        Ok(self.explanation(map, packet)?)
    }

    fn progress(&self) -> PerFamily<SyncProgress> {
        let families = self.families.as_ref();
        families.map(|_, of_family| of_family.progress())
    }
}
