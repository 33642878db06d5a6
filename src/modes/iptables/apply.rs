//! Putting steps in force.

use std::time::Duration;

use super::change::{CHAIN, Group, Phase, text};
use crate::{
    kernel::xtables::{Engine, Error, Xtables},
    net::Family,
    services::ServicePortName,
};

/// How often a transaction that failed for a passing reason is tried.
const ATTEMPTS: u32 = 6;
/// The first pause between two attempts; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(20);

/// The writer of one family.
#[derive(Clone, Debug)]
pub struct Writer {
    pub xtables: Xtables,
    pub engine: Engine,
    pub family: Family,
}

/// A group that the kernel, or the program, does not take.
#[derive(Debug)]
pub struct Refused {
    /// Whose it was.
    pub owner: Option<ServicePortName>,
    /// Why.
    pub error: Error,
}

impl Writer {
    /// How much [weight](Group::weight) makes a transaction. The time that
    /// iptables-nft-restore takes grows with the square of the number of chains
    /// in one, and each costs the kernel the time in which it lists all chains
    /// of the table; the legacy program and kernel rewrite the whole table each
    /// time.
    pub fn chunk(&self) -> usize {
        match self.engine {
            Engine::NfTables => 700 * CHAIN,
            Engine::Legacy => 20_000 * CHAIN,
        }
    }

    /// Neighbours that go together in a transaction.
    pub fn chunks<'a>(&self, mut groups: &'a [Group]) -> impl Iterator<Item = &'a [Group]> {
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

    /// Everything in the order of phases: in one run of the program, or, after
    /// a storm of changes, in one for each [`Writer::chunk`] of them. Answers
    /// with how many transactions that were.
    ///
    /// # Errors
    /// What the program said; a part may have taken effect.
    pub async fn at_once(&self, groups: &[Group]) -> Result<u32, Error> {
        let runs: Vec<String> = match self.chunks(groups).nth(1).is_none() {
            true => vec![
                Phase::ALL
                    .map(|phase| text(groups, phase, self.family))
                    .concat(),
            ],
            false => Phase::ALL
                .into_iter()
                .flat_map(|phase| self.chunks(groups).map(move |some| (some, phase)))
                .map(|(some, phase)| text(some, phase, self.family))
                .collect(),
        };
        let mut made = 0;
        for run in runs.iter().filter(|run| !run.is_empty()) {
            self.xtables.restore(run).await?;
            made += transactions(run);
        }
        Ok(made)
    }

    /// One phase of `groups`. When it is refused, finds out whose fault it is,
    /// and puts all others in force.
    ///
    /// # Errors
    /// When the program does not run, or its lock is not to be had.
    pub async fn phase(
        &self,
        groups: &[Group],
        phase: Phase,
        refused: &mut Vec<Refused>,
    ) -> Result<u32, Error> {
        let batch = text(groups, phase, self.family);
        if batch.is_empty() {
            return Ok(0);
        }
        let error = match self.patiently(&batch).await {
            Ok(()) => return Ok(transactions(&batch)),
            Err(error) => error,
        };
        if !matches!(error, Error::Failed { .. }) || error.is_permission() || error.is_passing() {
            return Err(error);
        }
        match groups {
            [] => Ok(0),
            [group] => {
                let owner = group.owner.clone();
                refused.push(Refused { owner, error });
                Ok(0)
            }
            _ => {
                let (one, other) = groups.split_at(groups.len() / 2);
                let one = Box::pin(self.phase(one, phase, refused)).await?;
                let other = Box::pin(self.phase(other, phase, refused)).await?;
                Ok(one + other)
            }
        }
    }

    async fn patiently(&self, batch: &str) -> Result<(), Error> {
        let mut pause = PAUSE;
        for _ in 1..ATTEMPTS {
            match self.xtables.restore(batch).await {
                Err(error) if error.is_passing() => {
                    tracing::debug!("tried again in {pause:?}: {error}");
                }
                done => return done,
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.xtables.restore(batch).await
    }
}

fn transactions(batch: &str) -> u32 {
    batch.lines().filter(|line| *line == "COMMIT").count() as u32
}
