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
    look::Look,
    plan::{Frontend, ServicePlan, Site, Timeouts},
    report::Report,
    rule_writer::RuleWriter,
    wanted::{Touched, Wanted},
};
use super::{Asked, Mode, Outcomes, SyncError, SyncReport, both_failed, stale::StaleFlows};
use crate::{
    kernel::{
        netlink,
        probe::Kernel,
        xtables::{self, Engine},
    },
    modes::Metrics,
    net::{Family, ModeName, PerFamily},
    node::NodePorts,
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
    rules: PerFamily<Option<RuleWriter>>,
    /// What of each family is not opened.
    held: PerFamily<Held>,
    site: Site,
    /// What was last learned.
    ports: HashMap<ServicePortName, Arc<ServicePort>>,
    wanted: Wanted,
    /// Virtual servers in the kernel, each as a hash of its manner.
    servers: HashMap<Frontend, u64>,
    drains: Drains,
    /// What may differ from the kernel because a step failed.
    unsettled: PerFamily<Touched>,
    /// Whether the kernel holds what we believe.
    belief: PerFamily<Belief>,
    /// Stale flows that could not be deleted yet.
    flows: PerFamily<StaleFlows>,
    metrics: Arc<dyn Metrics>,
    /// Troubles that were told and last.
    told: BTreeSet<String>,
}

/// Whether the kernel holds what we believe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Belief {
    /// It was never looked at, or what was learned is forgotten.
    #[default]
    None,
    /// Something said that it does not.
    Doubted,
    /// Nothing says otherwise.
    Held,
}

/// What a sync of one family is to do.
#[derive(Debug, Default)]
struct Work {
    /// Everything is compared with the kernel.
    full: bool,
    touched: Touched,
    report: Report,
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
        metrics: Arc<dyn Metrics>,
    ) -> Result<Ipvs, SyncError> {
        let left_out = kernel.left_out_schedulers();
        let doors = Doors::open(left_out).map_err(Error::from)?;
        let mut rules = PerFamily::default();
        for family in Family::ALL {
            let writer = kernel.toolkit(family);
            match writer.and_then(|tools| RuleWriter::start(family, tools)) {
                Ok(writer) => *rules.get_mut(family) = Some(writer),
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
            held: PerFamily::default(),
            site: Site::default(),
            ports: HashMap::new(),
            wanted: Wanted::default(),
            servers: HashMap::new(),
            drains: Drains::default(),
            unsettled: PerFamily::default(),
            belief: PerFamily::default(),
            flows: PerFamily::default(),
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
            let unsupported = new_plan.unsupported.into_iter();
            report
                .unsupported
                .extend(unsupported.map(|reason| reason.at(&name)));
        }
    }

    /// Finds out what the plans of both families depend on, and learns what changed
    /// of those that are `asked` for.
    fn update_wanted(
        &mut self,
        map: &ServiceMap,
        asked: Asked<'_>,
    ) -> Result<PerFamily<Option<Work>>, netlink::Error> {
        let node = map.this_node().map(|node| &**node);
        if self.node_ports.update(node) {
            self.belief = PerFamily::default();
        }
        let full = |mode: &Ipvs| {
            asked.map(|family, changes| {
                changes.is_some_and(|changes| match mode.belief.get(family) {
                    Belief::None => true,
                    // Whoever doubted it has a retry scheduled.
                    Belief::Doubted => changes.full || changes.retry,
                    Belief::Held => changes.full,
                })
            })
        };
        let before = full(self);
        if before.v4 || before.v6 {
            self.survey(map)?;
        } else {
            let names = asked.into_iter().filter_map(|(_, changes)| changes);
            let names = names.flat_map(|changes| &changes.ports);
            let asked = names.filter_map(|name| map.get(name));
            let asked = asked.filter_map(|port| port.preferences().scheduler.clone());
            let lacking = self.doors.lacking(asked.collect())?;
            self.site.lacking.extend(lacking);
        }
        // The node may be another one now.
        let full = full(self);
        Ok(asked.map(|family, changes| {
            let changes = changes?;
            let full = *full.get(family);
            let mut work = Work {
                full,
                ..Work::default()
            };
            let mut names: BTreeSet<ServicePortName> = changes.ports.iter().cloned().collect();
            if full {
                let all = map.iter().map(|port| &port.name).chain(self.ports.keys());
                names.extend(all.filter(|name| name.family == family).cloned());
            }
            work.report.examined = names.len();
            self.learn(map, names, &mut work.touched, &mut work.report);
            let unsettled = self.unsettled.get_mut(family);
            work.touched.extend(std::mem::take(unsettled));
            let drained = self.drains.due(Instant::now());
            let drained = drained.filter(|at| Family::of(&at.address) == family);
            work.touched.frontends.extend(drained);
            // Until all is applied, all of it may differ.
            *unsettled = work.touched.clone();
            Some(work)
        }))
    }

    /// What is in the kernel of `family` may be something else than we believe.
    fn doubt(&mut self, family: Family) {
        let belief = self.belief.get_mut(family);
        if *belief == Belief::Held {
            *belief = Belief::Doubted;
        }
    }

    /// Brings the kernel in step in `family`.
    async fn sync_family(
        &mut self,
        family: Family,
        map: &ServiceMap,
        changes: &Changes,
        work: Work,
        look: Option<Result<Look, netlink::Error>>,
    ) -> Result<SyncReport, Error> {
        let Work {
            touched,
            mut report,
            ..
        } = work;
        let applied = match look {
            Some(Ok(look)) => self.repair(family, touched, look, &mut report).await,
            Some(Err(error)) => Err(error.into()),
            None => self.apply(family, &touched, None, &mut report).await,
        };
        match applied {
            Ok(()) => {
                *self.unsettled.get_mut(family) = std::mem::take(&mut report.unsettled);
                *self.belief.get_mut(family) = match report.doubt {
                    true => Belief::Doubted,
                    false => Belief::Held,
                };
            }
            Err(error) => {
                self.doubt(family);
                return Err(error);
            }
        }
        let flows = self.flows.get_mut(family);
        flows.clear(family, map, changes, &*self.metrics).await;
        report.unfinished.extend(flows.unfinished());
        // Where connections could not be counted, that is not tried again at once.
        let next = self.drains.next_due_of(family);
        let drained = next.map(|at| {
            at.saturating_duration_since(Instant::now())
                .max(FIRST_PAUSE)
        });
        let writer = self.rules.get(family).as_ref();
        let rules = writer.and_then(RuleWriter::look_again);
        let look_again = rules.into_iter().chain(drained).min();
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
        let mut works = match self.update_wanted(map, asked) {
            Ok(works) => works,
            Err(error) => return both_failed(asked, Error::from(error)),
        };
        let full = works
            .as_ref()
            .map(|_, work| work.as_ref().is_some_and(|work| work.full));
        let mut looks = PerFamily::default();
        if full.v4 || full.v6 {
            match self.look(full) {
                Ok(found) => looks = found,
                Err(error) => {
                    Family::ALL
                        .into_iter()
                        .for_each(|family| self.doubt(family));
                    return both_failed(asked, Error::from(error));
                }
            }
        }
        let mut outcomes = Outcomes::default();
        for (family, changes) in asked {
            let (Some(changes), Some(work)) = (changes, works.get_mut(family).take()) else {
                continue;
            };
            let look = looks.get_mut(family).take();
            let synced = self.sync_family(family, map, changes, work, look).await;
            *outcomes.get_mut(family) = Some(synced.map_err(SyncError::from));
        }
        outcomes
    }

    fn engines(&self) -> Vec<(Family, Engine)> {
        let families = Family::ALL.into_iter();
        let found = families.filter_map(|family| {
            let rules = self.rules.get(family).as_ref()?;
            Some((family, rules.engine()))
        });
        found.collect()
    }
}
