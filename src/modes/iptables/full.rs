//! A full sync: the kernel was read, and what differs is written.

use std::sync::Arc;

use super::{
    Error,
    adopt::Adoption,
    apply::{Refused, Writer},
    change::{Group, Op, Phase},
    counters::Rules,
    held::Steps,
    plan::{self, Options},
    tally::{Done, add, count, written},
};
use crate::{
    kernel::xtables::rule::Table,
    net::Family,
    services::{ServiceMap, ServicePort},
};

/// How many names of what was repaired are told.
const NAMED: usize = 5;
/// Chains that go in one group: what is refused keeps its neighbours.
const TOGETHER: usize = 50;

/// A full sync under way.
pub struct Full<'a> {
    pub writer: &'a Writer,
    pub map: &'a ServiceMap,
    pub family: Family,
    pub adoption: Adoption,
    pub options: Options,
    pub steps: Steps,
    pub endpoints: usize,
    pub rules: Rules,
    pub refused: Vec<Refused>,
    pub done: Done,
    pub repaired: Vec<String>,
}

impl<'a> Full<'a> {
    fn ports(&self) -> impl Iterator<Item = &'a Arc<ServicePort>> + use<'a> {
        let family = self.family;
        let all = self.map.iter();
        all.filter(move |port| port.name.family == family)
    }

    /// What does not carry traffic comes first, for all Services; then traffic,
    /// some Services at a time; then what nobody needs goes.
    pub async fn run(&mut self, mut fixed: Vec<Op>) -> Result<(), Error> {
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
        // Rules that lead to chains come last: each transaction has the kernel
        // follow all jumps from its own chains (`nft_chain_validate`).
        let (chains, leads) = fixed.into_iter().partition(|op| matches!(op, Op::Fill(_)));
        let [chains, leads] = [chains, leads].map(|ops| Group { owner: None, ops });
        let fixed = [chains, leads];
        self.all_or_nothing(&fixed, Phase::Close).await?;
        for groups in self.writer.chunks(&filter) {
            self.some(groups, Phase::Close).await?;
        }
        drop(filter);
        let [chains, leads] = fixed;
        self.all_or_nothing(&[chains], Phase::Carry).await?;
        let (mut chunk, mut weight) = (Vec::new(), 0);
        for port in self.ports() {
            let rules = plan::service_port(port, &self.options);
            let ops = self.adoption.port(Table::Nat, &rules);
            let barred = |refused: &Refused| refused.owner.as_ref() == Some(&port.name);
            if ops.is_empty() || self.refused.iter().any(barred) {
                continue;
            }
            let owner = Some(port.name.clone());
            chunk.push(Group { owner, ops });
            weight += chunk.last().map_or(0, Group::weight);
            if weight >= self.writer.chunk() {
                self.some(&chunk, Phase::Carry).await?;
                chunk.clear();
                weight = 0;
            }
        }
        chunk.push(leads);
        self.all_or_nothing(&chunk, Phase::Carry).await?;
        let nothing = Adoption::new(self.family);
        let rest = std::mem::replace(&mut self.adoption, nothing).rest(TOGETHER);
        for phase in [Phase::Carry, Phase::Open] {
            for groups in self.writer.chunks(&rest) {
                self.some(groups, phase).await?;
            }
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
            Op::Insert(entry) | Op::Raise(entry) | Op::Append(entry) => &entry.chain,
            Op::Remove { chain, .. } | Op::Delete { chain, .. } => chain,
        };
        if self.repaired.len() < NAMED && !self.repaired.contains(chain) {
            self.repaired.push(chain.clone());
        } else if self.repaired.len() == NAMED {
            self.repaired.push("and more".to_owned());
        }
    }
}
