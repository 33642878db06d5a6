//! ipvs mode: virtual servers in the kernel's IPVS.
//!
//! [`plan`] says what each ServicePort needs, `wanted` what all of them need
//! together, `diff` how to get there. A sync *learns* what changed, on a full
//! sync *looks* at the kernel, and *applies* the difference: the endpoints of what
//! is open, then what closes and masquerades (sets, rules), then virtual servers
//! and addresses that come; removal goes the other way round. Nothing is flushed:
//! what is there already and right stays untouched, whoever put it there. What
//! guards something and is not in force holds back that alone, and only while it
//! is not open: see `held`.

mod apply;
mod cleanup;
mod diff;
mod doors;
mod drain;
mod held;
mod look;
mod own_servers;
pub mod plan;
pub mod render;
mod report;
mod rule_writer;
mod ruleset;
mod settings;
mod tables;
mod wanted;

use std::{collections::BTreeSet, sync::Arc, time::Instant};

use hashbrown::HashMap;

pub use self::{
    cleanup::{SHARED_CHAINS, cleanup, cleanup_except, cleanup_rules, is_there, retire},
    plan::Options,
};
use self::{
    doors::Doors,
    drain::{Drains, FIRST_PAUSE},
    held::Held,
    plan::{FAMILIES, Families, Frontend, ServicePlan, Site, Timeouts},
    report::Report,
    rule_writer::RuleWriter,
    wanted::{Touched, Wanted},
};
use super::{
    Asked, Mode, Outcomes, SyncError, SyncReport, Unhonoured, both_failed, stale::StaleFlows,
};
use crate::{
    kernel::{
        netlink,
        probe::Kernel,
        xtables::{self, Engine},
    },
    net::{Family, ModeName},
    node::NodePorts,
    runner::metrics::Metrics,
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
};

/// Why ipvs mode as a whole could not do what it was to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// IPVS, ipset, links or addresses.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// The rules around the virtual servers. What needs them is not opened.
    #[error("{family} rules: {source}")]
    Rules {
        /// Of this family.
        family: Family,
        /// What the program said.
        source: xtables::Error,
    },
}

/// ipvs mode.
pub struct Ipvs {
    options: Options,
    node_ports: Arc<NodePorts>,
    doors: Doors,
    /// The rules of each family; `None` where there are no programs for it.
    rules: Families<Option<RuleWriter>>,
    /// What of each family is not opened.
    held: Families<Held>,
    site: Site,
    /// What was last learned.
    ports: HashMap<ServicePortName, Arc<ServicePort>>,
    wanted: Wanted,
    /// Virtual servers in the kernel, each as a hash of its manner.
    servers: HashMap<Frontend, u64>,
    drains: Drains,
    /// What may differ from the kernel because a step failed.
    unsettled: Touched,
    /// Whether the kernel holds what we believe.
    belief: Belief,
    /// Stale flows that could not be deleted yet.
    flows: Families<StaleFlows>,
    metrics: Metrics,
    /// Troubles that were told and last.
    told: BTreeSet<String>,
}

/// Whether the kernel holds what we believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Belief {
    /// It was never looked at.
    None,
    /// Something said that it does not.
    Doubted,
    /// Nothing says otherwise.
    Held,
}

impl Ipvs {
    /// The mode on a `kernel` that was examined; nothing of the kernel's state is
    /// changed yet.
    ///
    /// # Errors
    /// When this kernel lacks IPVS, ipset or iptables for IPv4.
    pub fn new(
        options: Options,
        kernel: &Kernel,
        node_ports: Arc<NodePorts>,
        metrics: Metrics,
    ) -> Result<Ipvs, SyncError> {
        let left_out = kernel.left_out_schedulers();
        let doors = Doors::open(left_out).map_err(Error::from)?;
        let mut rules = Families::default();
        for family in FAMILIES {
            let writer = kernel.toolkit(family);
            match writer.and_then(|tools| RuleWriter::start(family, tools)) {
                Ok(writer) => *rules.of_mut(family) = Some(writer),
                Err(source) if family == Family::V4 => {
                    return Err(Error::Rules { family, source }.into());
                }
                Err(error) => tracing::info!("IPv6 Services are not served: {error}"),
            }
        }
        let mut mode = Ipvs {
            options,
            node_ports,
            doors,
            rules,
            held: Families::default(),
            site: Site::default(),
            ports: HashMap::new(),
            wanted: Wanted::default(),
            servers: HashMap::new(),
            drains: Drains::default(),
            unsettled: Touched::default(),
            belief: Belief::None,
            flows: Families::default(),
            metrics,
            told: BTreeSet::new(),
        };
        mode.set_timeouts().map_err(Error::from)?;
        Ok(mode)
    }

    fn set_timeouts(&mut self) -> Result<(), netlink::Error> {
        let Timeouts { tcp, tcp_fin, udp } = self.options.timeouts;
        if self.options.timeouts == Timeouts::default() {
            return Ok(());
        }
        self.doors.set_timeouts(tcp, tcp_fin, udp)
    }

    /// Takes in what `names` are in `map` now. Notes what is `touched` by that.
    fn learn(
        &mut self,
        map: &ServiceMap,
        names: BTreeSet<ServicePortName>,
        touched: &mut Touched,
        report: &mut Report,
    ) {
        for name in names {
            let plan = |port: Option<&Arc<ServicePort>>| {
                port.map_or_else(ServicePlan::default, |port| plan::plan(port, &self.site))
            };
            let (old, new) = (self.ports.get(&name), map.get(&name));
            let new_plan = plan(new);
            let same = old.zip(new).is_some_and(|(old, new)| Arc::ptr_eq(old, new));
            if !same {
                let old_plan = plan(old);
                self.wanted.replace(&name, &old_plan, &new_plan, touched);
            }
            match new {
                Some(new) => self.ports.insert(name.clone(), Arc::clone(new)),
                None => self.ports.remove(&name),
            };
            let unhonoured = new_plan.unhonoured.into_iter();
            report
                .unhonoured
                .extend(unhonoured.map(|(what, why)| Unhonoured {
                    port: name.clone(),
                    what,
                    why,
                }));
        }
    }

    async fn sync_both(
        &mut self,
        map: &ServiceMap,
        changes: &Changes,
    ) -> Result<SyncReport, SyncError> {
        let node = map.this_node().map(|node| &**node);
        let full = self.node_ports.learn(node) || changes.full || self.belief != Belief::Held;
        let mut report = Report::default();
        let mut names: BTreeSet<ServicePortName> = changes.ports.iter().cloned().collect();
        if full {
            self.survey(map).map_err(Error::from)?;
            names.extend(map.iter().map(|port| port.name.clone()));
            names.extend(self.ports.keys().cloned());
        } else {
            let asked = changes.ports.iter().filter_map(|name| map.get(name));
            let asked = asked.filter_map(|port| port.preferences().scheduler.clone());
            let lacking = self.doors.lacking(asked.collect()).map_err(Error::from)?;
            self.site.lacking.extend(lacking);
        }
        report.examined = names.len();
        let mut touched = Touched::default();
        self.learn(map, names, &mut touched, &mut report);
        touched.extend(std::mem::take(&mut self.unsettled));
        touched.frontends.extend(self.drains.due(Instant::now()));
        // Until all is applied, all of it may differ.
        self.unsettled = touched.clone();

        let applied = if full {
            self.repair(touched, &mut report).await
        } else {
            self.apply(&touched, None, &mut report).await
        };
        match applied {
            Ok(()) => {
                self.unsettled = std::mem::take(&mut report.unsettled);
                self.belief = match report.doubt {
                    true => Belief::Doubted,
                    false => Belief::Held,
                };
            }
            Err(error) => {
                if self.belief == Belief::Held {
                    self.belief = Belief::Doubted;
                }
                return Err(error.into());
            }
        }
        for family in FAMILIES {
            let flows = self.flows.of_mut(family);
            flows.clear(family, map, changes, &self.metrics).await;
            report.unfinished.extend(flows.unfinished());
        }
        // Where connections could not be counted, that is not tried again at once.
        let next = self.drains.next_due();
        let drained = next.map(|at| {
            at.saturating_duration_since(Instant::now())
                .max(FIRST_PAUSE)
        });
        let writers = FAMILIES.iter().filter_map(|f| self.rules.of(*f).as_ref());
        let rules = writers.filter_map(RuleWriter::look_again);
        let look_again = rules.chain(drained).min();
        Ok(report.into_sync_report(look_again))
    }

    /// Says each trouble once for as long as it lasts.
    fn tell(&mut self, troubles: Vec<String>) {
        let troubles: BTreeSet<String> = troubles.into_iter().collect();
        for new in troubles.difference(&self.told) {
            tracing::warn!("{new}");
        }
        self.told = troubles;
    }
}

impl Mode for Ipvs {
    fn name(&self) -> ModeName {
        ModeName::Ipvs
    }

    async fn prepare(&mut self) -> Result<(), SyncError> {
        let refused = settings::apply(&self.options);
        self.tell(refused);
        Ok(())
    }

    async fn sync(&mut self, map: &ServiceMap, asked: Asked<'_>) -> Outcomes {
        let mut changes = Changes::default();
        for (_, of_family) in asked {
            changes.merge(of_family.cloned().unwrap_or_default());
        }
        match self.sync_both(map, &changes).await {
            Ok(report) => asked.map(|family, asked| asked.map(|_| Ok(report.of(family)))),
            Err(error) => both_failed(asked, error),
        }
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        let families = FAMILIES.into_iter();
        let found = families.filter_map(|family| {
            let rules = self.rules.of(family).as_ref()?;
            Some((family, rules.engine()))
        });
        found.collect()
    }

    async fn cleanup(&mut self) -> Result<(), SyncError> {
        Ok(cleanup(&self.options.exclude).await?)
    }
}
