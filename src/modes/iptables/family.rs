//! One IP family: what is in force, and bringing it in step.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};

use super::{
    Error, ROUTE_LOCALNET, chains,
    full::Full,
    held::{ByName, Held, Steps, step_ops},
    plan::{self, Options},
    tally::{Done, add, count, fixed_rules, written},
    watch::{Before, Watch},
};
use crate::{
    kernel::{
        nfacct, sysctl,
        xtables::{
            Engine, Toolkit,
            desired::{OwnerRules, RuleSet, Step},
            difference::{Comparison, between},
            features::Features,
            rule::Table,
            run::{Refused, Writer},
            transaction::{Group, Op, Transaction},
        },
    },
    net::Family,
    services::{Changes, ServiceMap, ServicePort, ServicePortName},
};

/// One family's rules.
pub struct FamilyRules {
    pub family: Family,
    pub features: Features,
    writer: Writer,
    watch: Watch,
    held: Option<Held>,
    /// ServicePorts that are not in force as asked, with the reason.
    pub refused: BTreeMap<ServicePortName, String>,
    /// What else was refused, such as a removal, with the reason.
    pub unfinished: BTreeSet<String>,
    /// A full sync has succeeded before.
    settled: bool,
}

impl FamilyRules {
    /// With these tools.
    pub fn open(tools: Toolkit) -> Result<FamilyRules, Error> {
        let family = tools.family();
        let Toolkit {
            xtables,
            engine,
            features,
        } = tools;
        tracing::info!(
            "{family}: rules go to {engine:?} through {}",
            xtables.program()
        );
        if let Some(lack) = plan::impossible(&features).first() {
            return Err(Error::Impossible {
                family,
                what: lack.what,
                remedy: lack.remedy,
            });
        }
        Ok(FamilyRules {
            family,
            features,
            watch: Watch::new(family, engine),
            writer: Writer { xtables, engine },
            held: None,
            refused: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            settled: false,
        })
    }

    /// The engine that its rules are in.
    pub fn engine(&self) -> Engine {
        self.writer.engine
    }

    /// The options that are in force.
    pub fn options(&self) -> Option<&Options> {
        self.held.as_ref().map(|held| &held.options)
    }

    /// How many ServicePorts and endpoints there will be.
    pub fn counts(&self, map: &ServiceMap, changed: &HashSet<ServicePortName>) -> (usize, usize) {
        let endpoints = |port: &Arc<ServicePort>| port.endpoints.all.len();
        let Some(held) = &self.held else {
            let of_family = map.iter().filter(|port| self.is_of(&port.name));
            return of_family.fold((0, 0), |(n, e), port| (n + 1, e + endpoints(port)));
        };
        let (mut ports, mut all) = (held.ports.len(), held.endpoints);
        for name in changed.iter().filter(|name| self.is_of(name)) {
            if let Some(ByName(old)) = held.ports.get(name) {
                (ports, all) = (ports - 1, all.saturating_sub(endpoints(old)));
            }
            if let Some(new) = map.get(name) {
                (ports, all) = (ports + 1, all + endpoints(new));
            }
        }
        (ports, all)
    }

    fn is_of(&self, name: &ServicePortName) -> bool {
        name.family == self.family
    }

    /// Nothing of ours was disturbed, as far as can be told cheaply.
    pub fn quiet(&mut self) -> bool {
        self.held.is_none() || self.watch.quiet()
    }

    /// Nobody changed any rules, anywhere.
    #[cfg(test)]
    pub fn untouched(&mut self) -> bool {
        self.watch.untouched()
    }

    /// Brings the kernel in step with `map`.
    pub async fn sync(
        &mut self,
        map: &ServiceMap,
        changes: &Changes,
        options: Options,
        failed: impl Fn(bool),
    ) -> Result<Done, Error> {
        let Changes {
            ports: changed,
            full,
            retry,
            ..
        } = changes;
        let full = *full;
        let same = self.options() == Some(&options);
        let retried = changed.iter().any(|name| self.refused.contains_key(name));
        let is_refused = !(self.refused.is_empty() && self.unfinished.is_empty());
        let retried = retried || is_refused && (*retry || full);
        let read = !same || retried || full && !self.watch.untouched();
        if !read {
            match self.update(map, changed, full).await {
                Ok(done) => return Ok(done),
                Err(error) => {
                    failed(true);
                    tracing::debug!("{}: everything is compared after: {error}", self.family);
                }
            }
        }
        let repairs = self.settled && same && full;
        self.held = None;
        let outcome = self.rewrite(map, options, repairs).await;
        self.settled |= outcome.is_ok();
        outcome.inspect_err(|_| failed(false))
    }

    /// To be called before a sync of any family begins.
    pub fn before(&mut self) -> Before {
        self.watch.before()
    }

    /// To be called after syncs of all families, which made so many
    /// transactions between them: the kernel counts those of both as one.
    pub fn after(&mut self, before: Before, all: u32, own: &Done) {
        self.watch.after(before, all, own.transactions, own.read);
    }

    /// Applies what changed since the last sync; `Err` leaves `held` empty.
    async fn update(
        &mut self,
        map: &ServiceMap,
        changed: &HashSet<ServicePortName>,
        full: bool,
    ) -> Result<Done, Error> {
        let family = self.family;
        let Some(mut held) = self.held.take() else {
            return Ok(Done::default());
        };
        let mut names: Vec<&ServicePortName> = changed.iter().filter(|n| self.is_of(n)).collect();
        if full {
            // What a failed sync left behind is not named.
            names.extend(map.iter().map(|port| &port.name).filter(|n| self.is_of(n)));
            names.extend(held.ports.iter().map(|ByName(port)| &port.name));
            names.sort_unstable();
            names.dedup();
        }
        let (mut groups, mut moves) = (vec![Group::common(Vec::new())], Vec::new());
        let mut steps = HashMap::<(Table, String), (Step, isize)>::new();
        let mut done = Done::default();
        for name in names {
            let old = held.ports.get(name).map(|ByName(port)| Arc::clone(port));
            let new = map.get(name).cloned();
            let same = match (&old, &new) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (old, new) => old.is_none() && new.is_none(),
            };
            if same {
                continue;
            }
            done.examined += 1;
            let rules = |port: &Option<Arc<ServicePort>>| {
                let rules = port.as_ref();
                rules.map_or_else(OwnerRules::default, |port| {
                    plan::service_port(port, &held.options)
                })
            };
            let (before, after) = (rules(&old), rules(&new));
            for (rules, sign) in [(&before, -1), (&after, 1)] {
                add(&mut held.rules, count(rules), sign);
                for step in &rules.steps {
                    let key = (step.table, step.to.clone());
                    steps.entry(key).or_insert_with(|| (step.clone(), 0)).1 += sign;
                }
            }
            let ops = between(&before, &after, family);
            add(&mut done.written, written(&ops), 1);
            groups.push(Group::of(name.clone(), ops));
            moves.push((old, new));
        }
        let (first, last) = step_ops(&mut held.steps, steps, family);
        if let Some(group) = groups.first_mut() {
            group.ops = first;
        }
        groups.push(Group::common(last));
        let transaction = Transaction { family, groups };
        done.transactions = self.writer.run(&transaction).await?;
        for (old, new) in moves {
            if let Some(old) = old {
                held.endpoints = held.endpoints.saturating_sub(old.endpoints.all.len());
                held.ports.remove(&old.name);
            }
            if let Some(new) = new {
                held.endpoints += new.endpoints.all.len();
                held.ports.insert(ByName(new));
            }
        }
        done.total = held.rules;
        self.held = Some(held);
        Ok(done)
    }

    /// Lets loopback addresses serve node ports, if they are to: the setting,
    /// after the rule that keeps neighbours from what else listens there.
    pub async fn open_loopback(&self, options: &Options) -> Result<(), Error> {
        if !options.serves_localhost() {
            return Ok(());
        }
        let guard = plan::loopback_guard(options);
        let (_, ops) = self.read(&guard).await?;
        let transaction: Transaction<ServicePortName> = Transaction {
            family: self.family,
            groups: vec![Group::common(ops)],
        };
        self.writer.run(&transaction).await?;
        Ok(sysctl::write(ROUTE_LOCALNET, "1")?)
    }

    /// Reads the kernel and writes what differs.
    async fn rewrite(
        &mut self,
        map: &ServiceMap,
        options: Options,
        repairs: bool,
    ) -> Result<Done, Error> {
        let fixed = plan::fixed(&options);
        if !fixed.accounts.is_empty() {
            nfacct::create(&fixed.accounts)?;
        }
        let serves_localhost = options.serves_localhost();
        let (comparison, ops) = self.read(&fixed.rules).await?;
        let mut full = Full {
            writer: &self.writer,
            map,
            family: self.family,
            comparison,
            options,
            steps: Steps::new(),
            endpoints: 0,
            rules: fixed_rules(&fixed.rules),
            refused: Vec::new(),
            done: Done {
                read: true,
                ..Done::default()
            },
            repaired: Vec::new(),
        };
        full.run(ops).await?;
        // Now that the rule is there that keeps neighbours from loopback.
        if serves_localhost {
            sysctl::write(ROUTE_LOCALNET, "1")?;
        }
        if repairs && !full.repaired.is_empty() {
            tracing::warn!(
                "{}: rules that somebody else had changed were restored: {}",
                self.family,
                full.repaired.join(", ")
            );
        }
        self.refused.clear();
        self.unfinished.clear();
        for Refused { owner, error } in full.refused {
            if let Some(owner) = owner {
                self.refused.insert(owner, error.to_string());
            } else {
                self.unfinished.insert(error.to_string());
            }
        }
        let ports = map.iter().filter(|port| {
            port.name.family == self.family && !self.refused.contains_key(&port.name)
        });
        self.held = Some(Held {
            ports: ports.map(|port| ByName(Arc::clone(port))).collect(),
            options: full.options,
            steps: full.steps,
            endpoints: full.endpoints,
            rules: full.rules,
        });
        full.done.total = full.rules;
        Ok(full.done)
    }

    /// Returns what the kernel holds, and the steps that make right what does not
    /// depend on Services.
    async fn read(&self, fixed: &RuleSet) -> Result<(Comparison, Vec<Op>), Error> {
        let observed = self
            .writer
            .observe(chains::interest, &Table::ALL, |_, _| {});
        Ok(Comparison::begin(observed.await?, fixed, self.family))
    }
}
