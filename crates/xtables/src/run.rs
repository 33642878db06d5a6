//! Applies transactions.

use net::Family;

use super::{
    Attempts, Engine, Error, Xtables,
    observed::{InterestIn, Observed},
    rule::Table,
    transaction::{Action, CHAIN, Group, Op, Phase, Transaction, text, text_of},
};

/// Lines of a part of a change that is made in several: iptables-nft-restore takes about 4 KiB for
/// each.
const PART: usize = 500;

/// Reads and writes the rules of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The programs that read and write.
    pub xtables: Xtables,
    /// The engine that they speak to.
    pub engine: Engine,
}

/// A group that the kernel, or the program, does not take.
#[derive(Debug)]
pub struct Refused<O> {
    /// Its owner; `None`: it has none.
    pub owner: Option<O>,
    /// The error with which the program or the kernel refused it.
    pub error: Error,
}

/// Outcome of groups that were run one after the other.
#[derive(Debug)]
pub struct Refusals<O> {
    /// The groups that were refused.
    pub refused: Vec<Refused<O>>,
    /// Steps were made that may have been made before: by a program that was killed, or in
    /// one of several tables of a batch that was refused. Rules may be there twice.
    pub may_repeat: bool,
}

impl<O> Default for Refusals<O> {
    fn default() -> Refusals<O> {
        Refusals {
            refused: Vec::new(),
            may_repeat: false,
        }
    }
}

/// Steps of a batch that may already have been carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// Some of them may have been.
    Some,
}

impl Writer {
    /// The family of the rules.
    pub fn family(&self) -> Family {
        self.xtables.family()
    }

    /// Returns the file name of the program that writes.
    pub fn program(&self) -> &str {
        self.xtables.program()
    }

    /// Reads the chains in `tables` that are of `interest`. Every line is also shown to `also`.
    ///
    /// # Errors
    /// With the message of the program.
    pub async fn observe(
        &self,
        interest: InterestIn,
        tables: &[Table],
        mut also: impl FnMut(Table, &str),
    ) -> Result<Observed, Error> {
        let mut observed = Observed::new(interest);
        let mut line = |table, line: &str| {
            also(table, line);
            observed.line(table, line);
        };
        // Its program takes all tables from the kernel to print one.
        if self.engine == Engine::NfTables && tables == Table::ALL {
            let mut current = None;
            let each = |text: &str| match (text.strip_prefix('*'), current) {
                (Some(name), _) => current = Table::named(name),
                (None, Some(table)) => line(table, text),
                (None, None) => {}
            };
            self.xtables.read(None, each).await?;
        } else {
            for &table in tables {
                let each = |text: &str| line(table, text);
                self.xtables.read(Some(table.name()), each).await?;
            }
        }
        Ok(observed)
    }

    /// As [`observe`](Self::observe), without table mangle if that cannot be read: no packet of a
    /// Service depends on it, so the other tables are compared all the same. Also returns why.
    ///
    /// # Errors
    /// With the message of the program.
    pub async fn observe_readable(
        &self,
        interest: InterestIn,
        tables: &[Table],
        mut also: impl FnMut(Table, &str),
    ) -> Result<(Observed, Option<Error>), Error> {
        match self.observe(interest, tables, &mut also).await {
            Err(unread) if unread.is_about_mangle() => {
                let others = tables.iter().copied();
                let others: Vec<_> = others.filter(|table| *table != Table::Mangle).collect();
                let observed = self.observe(interest, &others, also).await?;
                Ok((observed, Some(unread)))
            }
            observed => Ok((observed?, None)),
        }
    }

    /// Returns the most [weight](Group::weight) of a transaction. The time that
    /// iptables-nft-restore takes grows with the square of the number of chains in one,
    /// and each costs the kernel the time that it takes to list all chains of the
    /// table; the legacy program and kernel rewrite the whole table each time.
    pub fn chunk(&self) -> usize {
        match self.engine {
            Engine::NfTables => 700 * CHAIN,
            Engine::Legacy => 20_000 * CHAIN,
        }
    }

    /// Returns neighbours that go together in a transaction.
    pub fn chunks<'a, O>(
        &self,
        mut groups: &'a [Group<O>],
    ) -> impl Iterator<Item = &'a [Group<O>]> {
        let limit = self.chunk();
        std::iter::from_fn(move || {
            let mut weight = 0;
            let full = groups.iter().position(|group| {
                weight += group.weight();
                weight >= limit
            });
            let (chunk, rest) = groups.split_at(full.map_or(groups.len(), |at| at + 1));
            groups = rest;
            (!chunk.is_empty()).then_some(chunk)
        })
    }

    /// Makes the whole change in the order of phases: in one run of the program,
    /// or, after a storm of changes, in one for each [`Writer::chunk`] of them.
    /// Returns how many transactions of the kernel's that took.
    ///
    /// # Errors
    /// With the message of the program; a part may have taken effect.
    pub async fn run<O>(&self, transaction: &Transaction<O>) -> Result<u32, Error> {
        self.run_phases(transaction, &Phase::ALL).await
    }

    /// Makes the part of the change that is due in these `phases`, as [`Writer::run`] does.
    ///
    /// # Errors
    /// With the message of the program; a part may have taken effect.
    pub async fn run_phases<O>(
        &self,
        transaction: &Transaction<O>,
        phases: &[Phase],
    ) -> Result<u32, Error> {
        let (groups, family) = (&*transaction.groups, transaction.family);
        let phases = phases.iter().copied();
        let runs: Vec<String> = if self.chunks(groups).nth(1).is_none() {
            vec![phases.map(|phase| text(groups, phase, family)).collect()]
        } else {
            phases
                .flat_map(|phase| self.chunks(groups).map(move |some| (some, phase)))
                .map(|(some, phase)| text(some, phase, family))
                .collect()
        };
        let mut made = 0;
        for run in runs.iter().filter(|run| !run.is_empty()) {
            self.xtables.restore(run).await?;
            made += transactions(run);
        }
        Ok(made)
    }

    /// Makes the change as [`Writer::run`] does; a large one in several runs of the program, each
    /// with some of its chains, so that it needs little memory. Chains that are filled must be named
    /// before those that jump to them.
    ///
    /// # Errors
    /// The same.
    pub async fn run_in_parts<O>(&self, transaction: &Transaction<O>) -> Result<u32, Error> {
        let ops = || transaction.groups.iter().flat_map(|group| &group.ops);
        if ops().map(Op::lines).sum::<usize>() <= PART {
            return self.run(transaction).await;
        }
        let mut made = 0;
        for phase in Phase::ALL {
            let is_due = |op: &&Op| op.phase() == phase;
            let fills = |op: &&Op| matches!(op.action, Action::Fill(_) | Action::FillLast(_));
            let mut part: Vec<&Op> = Vec::new();
            let mut lines = 0;
            for op in ops().filter(is_due).filter(fills) {
                if lines + op.lines() > PART {
                    made += self.run_part(&part, phase).await?;
                    part.clear();
                    lines = 0;
                }
                lines += op.lines();
                part.push(op);
            }
            // A chain can be deleted when no chain jumps to it, not even one that is deleted, too.
            part.extend(ops().filter(is_due).filter(|op| !fills(op)));
            made += self.run_part(&part, phase).await?;
        }
        Ok(made)
    }

    async fn run_part(&self, ops: &[&Op], phase: Phase) -> Result<u32, Error> {
        let text = text_of(ops, phase, self.family());
        if text.is_empty() {
            return Ok(0);
        }
        self.xtables.restore(&text).await?;
        Ok(transactions(&text))
    }

    /// Makes one phase of `groups`. If it is refused, finds the groups that are refused, and
    /// applies all others: neighbours of one owner together, unless one of them is refused. Returns
    /// the number of kernel transactions.
    ///
    /// # Errors
    /// When the program does not run, or cannot get its lock.
    pub async fn run_phase<O: Clone + PartialEq>(
        &self,
        groups: &[Group<O>],
        phase: Phase,
        refusals: &mut Refusals<O>,
    ) -> Result<u32, Error> {
        self.run_some(groups, phase, refusals, Before::Nothing)
            .await
    }

    /// As [`run_phase`](Self::run_phase), where `before` was made of it.
    async fn run_some<O: Clone + PartialEq>(
        &self,
        groups: &[Group<O>],
        phase: Phase,
        refusals: &mut Refusals<O>,
        mut before: Before,
    ) -> Result<u32, Error> {
        let batch = text(groups, phase, self.family());
        if batch.is_empty() {
            return Ok(0);
        }
        let error = match self.try_to_restore(&batch, &mut before).await {
            Ok(()) => {
                refusals.may_repeat |= before == Before::Some;
                return Ok(transactions(&batch));
            }
            Err(error) => error,
        };
        if !matches!(error, Error::Failed { .. }) || error.is_permission() || error.is_passing() {
            return Err(error);
        }
        match groups {
            [] => Ok(0),
            [group] => {
                let owner = group.owner.clone();
                refusals.refused.push(Refused { owner, error });
                Ok(0)
            }
            _ => {
                let (one, other) = groups.split_at(middle(groups));
                let one = Box::pin(self.run_some(one, phase, refusals, before)).await?;
                let other = Box::pin(self.run_some(other, phase, refusals, before)).await?;
                Ok(one + other)
            }
        }
    }

    /// Applies a batch, several times if it fails for a temporary reason. A failed attempt may have
    /// taken effect in part, as each table is a transaction of its own: `before` says so.
    async fn try_to_restore(&self, batch: &str, before: &mut Before) -> Result<(), Error> {
        let mut attempts = Attempts::new();
        loop {
            let outcome = self.xtables.restore(batch).await;
            if let Err(error) = &outcome
                && (error.is_killed() || transactions(batch) > 1)
            {
                *before = Before::Some;
            }
            match outcome {
                Err(error) if error.is_passing() => attempts.again(error).await?,
                done => return done,
            }
        }
    }
}

/// Returns where `groups`, of which there are several, are divided: as near to the middle as may
/// be, but between neighbours of one owner only if all are that owner's. Otherwise some time would
/// pass between the removal of an owner's old rules and the addition of its new ones.
fn middle<O: PartialEq>(groups: &[Group<O>]) -> usize {
    let middle = groups.len() / 2;
    let may_divide = |at: &usize| match (&groups[at - 1].owner, &groups[*at].owner) {
        (Some(one), Some(other)) => one != other,
        _ => true,
    };
    let after = (middle..groups.len()).find(may_divide);
    after
        .or_else(|| (1..middle).rev().find(may_divide))
        .unwrap_or(middle)
}

fn transactions(batch: &str) -> u32 {
    batch.lines().filter(|line| *line == "COMMIT").count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_owner_are_divided_last() {
        let cases: [(&[Option<u8>], usize); 7] = [
            (&[Some(1), Some(2)], 1),
            (&[Some(1), Some(2), Some(2)], 1),
            (&[Some(1), Some(1), Some(2)], 2),
            (&[Some(1), Some(2), Some(2), Some(2)], 1),
            (&[Some(1), Some(1), Some(2), Some(2), Some(3)], 2),
            (&[Some(1), Some(1)], 1),
            (&[None, None, None, None], 2),
        ];
        for (owners, expected) in cases {
            let groups = owners.iter().map(|owner| Group {
                owner: *owner,
                ops: Vec::new(),
            });
            let groups: Vec<_> = groups.collect();
            assert_eq!(middle(&groups), expected, "{owners:?}");
        }
    }
}
