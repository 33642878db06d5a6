//! One IP family: what is in force, and bringing it in step.

use std::{borrow::Borrow, collections::BTreeMap, hash::Hash, hash::Hasher, sync::Arc};

use hashbrown::{HashMap, HashSet};

use super::{
    Error,
    adopt::{self, Adoption},
    apply::{Refused, Writer},
    change::{self, Group, Op, Phase},
    counters::{COUNTED, Rules},
    plan::{self, Fixed, Options, ServiceRules, Step},
    watch::{Before, Watch},
};
use crate::{
    kernel::{
        Family, nfacct, sysctl,
        xtables::{Toolkit, features::Features, rule::Table, saved::Saved},
    },
    services::{ServiceMap, ServicePort, ServicePortName},
};

/// How many names of what was repaired are told.
const NAMED: usize = 5;

/// One family's rules.
pub struct FamilyRules {
    pub family: Family,
    pub features: Features,
    writer: Writer,
    watch: Watch,
    held: Option<Held>,
    /// ServicePorts that are not in force as asked, with the reason.
    pub refused: BTreeMap<ServicePortName, String>,
    /// A full sync has succeeded before.
    settled: bool,
}

/// What is in force. Nothing of the rules themselves is kept: they follow from
/// the ServicePort, which the service map holds anyway, and the options.
struct Held {
    options: Options,
    ports: HashSet<ByName>,
    /// How many ServicePorts take each step of the index.
    steps: HashMap<(Table, String), usize>,
    endpoints: usize,
    rules: Rules,
}

/// A ServicePort, found by its name.
struct ByName(Arc<ServicePort>);

impl Borrow<ServicePortName> for ByName {
    fn borrow(&self) -> &ServicePortName {
        &self.0.name
    }
}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for ByName {
    fn eq(&self, other: &ByName) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for ByName {}

/// What a sync did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// ServicePorts that were planned.
    pub examined: usize,
    /// Rules that there are.
    pub total: Rules,
    /// Rules that were written.
    pub written: Rules,
    /// Transactions that this took.
    pub transactions: u32,
    /// The kernel was read, and so is known to be right.
    pub read: bool,
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
            writer: Writer {
                xtables,
                engine,
                v6: family == Family::V6,
            },
            held: None,
            refused: BTreeMap::new(),
            settled: false,
        })
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
        Family::from(name.family) == self.family
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
        changed: &HashSet<ServicePortName>,
        full: bool,
        options: Options,
        failed: impl Fn(bool),
    ) -> Result<Done, Error> {
        let same = self.options() == Some(&options);
        let retried = changed.iter().any(|name| self.refused.contains_key(name));
        let read = !same || retried || full && !(self.refused.is_empty() && self.watch.untouched());
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
        let v6 = self.writer.v6;
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
        let (mut groups, mut moves) = (vec![Group::default()], Vec::new());
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
                rules.map_or_else(ServiceRules::default, |port| {
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
            let ops = change::between(&before, &after, v6);
            add(&mut done.written, written(&ops), 1);
            let owner = Some(name.clone());
            groups.push(Group { owner, ops });
            moves.push((old, new));
        }
        let (first, last) = step_ops(&mut held.steps, steps, v6);
        if let Some(group) = groups.first_mut() {
            group.ops = first;
        }
        groups.push(Group {
            owner: None,
            ops: last,
        });
        done.transactions = self.writer.at_once(&groups).await?;
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
        if options.serves_localhost() {
            let written = sysctl::write("net.ipv4.conf.all.route_localnet", "1");
            // Everything else works without, and this begins to when it is set.
            if let Err(error) = written
                && !self.settled
            {
                tracing::warn!("node ports on loopback addresses are not served: {error}");
            }
        }
        let (adoption, ops) = self.read(&fixed).await?;
        let mut full = Full {
            writer: &self.writer,
            map,
            family: self.family,
            adoption,
            options,
            steps: HashMap::new(),
            endpoints: 0,
            rules: fixed_rules(&fixed),
            refused: Vec::new(),
            done: Done {
                read: true,
                ..Done::default()
            },
            repaired: Vec::new(),
        };
        full.run(ops).await?;
        if repairs && !full.repaired.is_empty() {
            tracing::warn!(
                "{}: rules that somebody else had changed were restored: {}",
                self.family,
                full.repaired.join(", ")
            );
        }
        self.refused.clear();
        for Refused { owner, error } in full.refused {
            if let Some(owner) = owner {
                self.refused.insert(owner, error.to_string());
            } else {
                tracing::warn!("{}: {error}", self.family);
            }
        }
        let ports = map.iter().filter(|port| {
            Family::from(port.name.family) == self.family && !self.refused.contains_key(&port.name)
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

    /// What the kernel holds, and the steps that make the fixed parts right.
    async fn read(&self, fixed: &Fixed) -> Result<(Adoption, Vec<Op>), Error> {
        let (mut adoption, mut ops) = (Adoption::new(self.writer.v6), Vec::new());
        for table in Table::ALL {
            let mut saved = Saved::default();
            self.writer
                .xtables
                .read(table.name(), |line| saved.line(line, adopt::by_rule))
                .await?;
            ops.extend(adoption.table(table, saved, fixed));
        }
        Ok((adoption, ops))
    }
}

/// A full sync under way.
struct Full<'a> {
    writer: &'a Writer,
    map: &'a ServiceMap,
    family: Family,
    adoption: Adoption,
    options: Options,
    steps: HashMap<(Table, String), usize>,
    endpoints: usize,
    rules: Rules,
    refused: Vec<Refused>,
    done: Done,
    repaired: Vec<String>,
}

impl<'a> Full<'a> {
    fn ports(&self) -> impl Iterator<Item = &'a Arc<ServicePort>> + use<'a> {
        let family = self.family;
        let all = self.map.iter();
        all.filter(move |port| Family::from(port.name.family) == family)
    }

    /// What does not carry traffic comes first, for all Services; then traffic,
    /// some Services at a time; then what nobody needs goes.
    async fn run(&mut self, mut fixed: Vec<Op>) -> Result<(), Error> {
        let mut filter = Vec::new();
        for port in self.ports() {
            let rules = plan::service_port(port, &self.options);
            self.done.examined += 1;
            self.endpoints += port.endpoints.all.len();
            add(&mut self.rules, count(&rules), 1);
            for step in &rules.steps {
                let uses = self.steps.entry((step.table, step.to.clone())).or_default();
                if *uses == 0 {
                    fixed.extend(self.adoption.step(step));
                }
                *uses += 1;
            }
            let mut ops = self.adoption.port(Table::Filter, &rules);
            ops.extend(self.adoption.port(Table::Mangle, &rules));
            if !ops.is_empty() {
                let owner = Some(port.name.clone());
                filter.push(Group { owner, ops });
            }
        }
        let fixed = [Group {
            owner: None,
            ops: fixed,
        }];
        self.all_or_nothing(&fixed, Phase::Close).await?;
        for groups in filter.chunks(self.writer.chunk() * 4) {
            self.some(groups, Phase::Close).await?;
        }
        drop(filter);
        self.all_or_nothing(&fixed, Phase::Carry).await?;
        let mut chunk = Vec::new();
        for port in self.ports() {
            let rules = plan::service_port(port, &self.options);
            let ops = self.adoption.port(Table::Nat, &rules);
            let barred = |refused: &Refused| refused.owner.as_ref() == Some(&port.name);
            if ops.is_empty() || self.refused.iter().any(barred) {
                continue;
            }
            let owner = Some(port.name.clone());
            chunk.push(Group { owner, ops });
            if chunk.len() >= self.writer.chunk() {
                self.some(&chunk, Phase::Carry).await?;
                chunk.clear();
            }
        }
        self.some(&chunk, Phase::Carry).await?;
        let rest = [std::mem::take(&mut self.adoption).rest()];
        for phase in [Phase::Carry, Phase::Open] {
            self.some(&rest, phase).await?;
        }
        Ok(())
    }

    async fn some(&mut self, groups: &[Group], phase: Phase) -> Result<(), Error> {
        let refused = &mut self.refused;
        self.done.transactions += self.writer.phase(groups, phase, refused).await?;
        for group in groups {
            let due = group.ops.iter().filter(|op| op.phase() == phase);
            let due: Vec<&Op> = due.collect();
            add(&mut self.done.written, written(due.iter().copied()), 1);
            for op in due {
                self.note(op);
            }
        }
        Ok(())
    }

    async fn all_or_nothing(&mut self, groups: &[Group], phase: Phase) -> Result<(), Error> {
        self.some(groups, phase).await?;
        match self.refused.iter().position(|one| one.owner.is_none()) {
            Some(at) => Err(self.refused.swap_remove(at).error.into()),
            None => Ok(()),
        }
    }

    /// Notes by name what an operator may wonder about.
    fn note(&mut self, op: &Op) {
        let chain = match op {
            Op::Fill(chain) => &chain.name,
            Op::Insert(entry) | Op::Append(entry) => &entry.chain,
            Op::Remove { chain, .. } | Op::Delete { chain, .. } => chain,
        };
        if self.repaired.len() < NAMED && !self.repaired.contains(chain) {
            self.repaired.push(chain.clone());
        } else if self.repaired.len() == NAMED {
            self.repaired.push("and more".to_owned());
        }
    }
}

/// Counts steps, and gives what comes with the first and goes with the last
/// ServicePort that takes one.
fn step_ops(
    counts: &mut HashMap<(Table, String), usize>,
    changed: HashMap<(Table, String), (Step, isize)>,
    v6: bool,
) -> (Vec<Op>, Vec<Op>) {
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for (key, (step, difference)) in changed {
        let before = counts.get(&key).copied().unwrap_or(0);
        let after = before.saturating_add_signed(difference);
        if before == 0 && after > 0 {
            first.push(Op::Fill(plan::Chain {
                table: step.table,
                name: step.to.clone(),
                rules: Vec::new(),
            }));
            first.push(Op::Insert(adopt::entry(&step)));
        } else if before > 0 && after == 0 {
            last.push(change::remove(&adopt::entry(&step), v6));
            last.push(Op::Delete {
                table: step.table,
                chain: step.to.clone(),
            });
        }
        if after == 0 {
            counts.remove(&key);
        } else {
            counts.insert(key, after);
        }
    }
    (first, last)
}

fn place(table: Table) -> Option<usize> {
    COUNTED.iter().position(|counted| *counted == table)
}

fn count(rules: &ServiceRules) -> Rules {
    let chains = rules
        .chains
        .iter()
        .map(|chain| (chain.table, chain.rules.len()));
    let entries = rules.entries.iter().map(|entry| (entry.table, 1));
    sum(chains.chain(entries))
}

fn fixed_rules(fixed: &Fixed) -> Rules {
    let chains = fixed
        .chains
        .iter()
        .map(|chain| (chain.table, chain.rules.len()));
    let tails = fixed.tails.iter().map(|tail| (tail.table, 1));
    sum(chains.chain(tails))
}

fn written<'a>(ops: impl IntoIterator<Item = &'a Op>) -> Rules {
    sum(ops.into_iter().map(|op| match op {
        Op::Fill(chain) => (chain.table, chain.rules.len()),
        Op::Insert(entry) | Op::Append(entry) => (entry.table, 1),
        Op::Remove { table, .. } | Op::Delete { table, .. } => (*table, 0),
    }))
}

fn sum(counts: impl Iterator<Item = (Table, usize)>) -> Rules {
    let mut rules = Rules::default();
    for (table, count) in counts {
        if let Some(sum) = place(table).and_then(|at| rules.get_mut(at)) {
            *sum += count;
        }
    }
    rules
}

fn add(to: &mut Rules, rules: Rules, sign: isize) {
    for (to, rules) in to.iter_mut().zip(rules) {
        *to = to.saturating_add_signed(sign * rules as isize);
    }
}
