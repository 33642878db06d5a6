//! A full sync: the kernel was read, and what differs is written.

use std::sync::Arc;

use super::{
    Error,
    chains::distance,
    counters::Rules,
    held::Steps,
    plan::{self, Options},
    tally::{Done, add, count, written},
};
use crate::{
    kernel::xtables::{
        difference::{Comparison, missing},
        rule::Table,
        run::{Refused, Writer},
        transaction::{Group, Op, Phase},
    },
    net::Family,
    services::{ServiceMap, ServicePort, ServicePortName},
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
    pub comparison: Comparison,
    pub options: Options,
    pub steps: Steps,
    pub endpoints: usize,
    pub rules: Rules,
    pub refused: Vec<Refused<ServicePortName>>,
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
                    fixed.extend(self.comparison.step(step));
                }
                *uses += 1;
            }
            let tables = [Table::Filter, Table::Mangle];
            let ops = missing(&rules, &tables, &mut self.comparison);
            if !ops.is_empty() {
                filter.push(Group::of(port.name.clone(), ops));
            }
        }
        // Rules that lead to chains come last: each transaction has the kernel
        // follow all jumps from its own chains (`nft_chain_validate`).
        let (chains, leads) = fixed.into_iter().partition(|op| matches!(op, Op::Fill(_)));
        let [chains, leads] = [chains, leads].map(Group::common);
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
            let ops = missing(&rules, &[Table::Nat], &mut self.comparison);
            let barred = |refused: &Refused<_>| refused.owner.as_ref() == Some(&port.name);
            if ops.is_empty() || self.refused.iter().any(barred) {
                continue;
            }
            chunk.push(Group::of(port.name.clone(), ops));
            weight += chunk.last().map_or(0, Group::weight);
            if weight >= self.writer.chunk() {
                self.some(&chunk, Phase::Carry).await?;
                chunk.clear();
                weight = 0;
            }
        }
        chunk.push(leads);
        self.all_or_nothing(&chunk, Phase::Carry).await?;
        let rest = self.comparison.stale(distance, TOGETHER);
        for phase in [Phase::Carry, Phase::Open] {
            for groups in self.writer.chunks(&rest) {
                self.some(groups, phase).await?;
            }
        }
        Ok(())
    }

    async fn some(&mut self, groups: &[Group<ServicePortName>], phase: Phase) -> Result<(), Error> {
        let refused = &mut self.refused;
        self.done.transactions += self.writer.run_phase(groups, phase, refused).await?;
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

    async fn all_or_nothing(
        &mut self,
        groups: &[Group<ServicePortName>],
        phase: Phase,
    ) -> Result<(), Error> {
        self.some(groups, phase).await?;
        match self.refused.iter().position(|one| one.owner.is_none()) {
            Some(at) => Err(self.refused.swap_remove(at).error.into()),
            None => Ok(()),
        }
    }

    /// Notes by name what an operator may wonder about.
    fn note(&mut self, op: &Op) {
        let chain = op.chain().to_owned();
        if self.repaired.len() < NAMED && !self.repaired.contains(&chain) {
            self.repaired.push(chain);
        } else if self.repaired.len() == NAMED {
            self.repaired.push("and more".to_owned());
        }
    }
}
