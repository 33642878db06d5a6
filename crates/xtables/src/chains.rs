//! Noticing that another process changed chains of ours, without running a program: in
//! nf_tables by its notifications, whose cost depends on the number of changes, not of
//! chains; in the legacy engine by the sizes of its tables.

#[cfg(test)]
mod tests;

use net::Family;
use nftables::{ChangedChain, Event, Monitor, Rules};

use super::{
    info::{self, Size},
    observed::{Interest, InterestIn},
    rule::Table,
};

/// How often the notifications of a change that is just being made are read.
const ATTEMPTS: usize = 3;

/// Counts changes of our chains in the tables of iptables that nf_tables has, by any process.
pub struct ChainWatcher {
    rules: Rules,
    monitor: Monitor,
    chains: Chains,
    /// Notifications are received.
    receives: bool,
    /// The generation at the last check. Its notification has arrived by the next check.
    last: Option<u32>,
    record: Record,
}

/// Which chains are watched.
struct Chains {
    family: Family,
    interest: InterestIn,
}

/// How often our chains were changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The generation of all rules, which grows by one with each change of any.
    pub generation: u32,
    /// Whether all changes up to that generation are counted; if not, a change is just being made.
    pub is_complete: bool,
    /// The number of generations in which something of ours was changed, as far as was noticed.
    pub changed: u32,
    /// How often changes may have been missed: there were more notifications than the
    /// socket holds, or none were received for a time.
    pub missed: u32,
}

impl ChainWatcher {
    /// Watches the chains of `family` that are of `interest`, joint ones too, in the network
    /// namespace of the calling thread; `None` if no netlink socket can be opened.
    pub fn open(family: Family, interest: InterestIn) -> Option<ChainWatcher> {
        Some(ChainWatcher {
            rules: Rules::open().ok()?,
            monitor: Monitor::open().ok()?,
            chains: Chains { family, interest },
            receives: true,
            last: None,
            record: Record::default(),
        })
    }

    /// Receives no notifications until [`ChainWatcher::resume`]. If anybody receives them,
    /// the kernel makes one for each rule of a change: for a large change that takes long,
    /// and more room than the socket has.
    pub fn pause(&mut self) {
        self.receives &= self.monitor.pause().is_err();
    }

    /// Receives notifications again. Changes in between count as missed.
    pub fn resume(&mut self) {
        if !self.receives {
            self.receives = self.monitor.resume().is_ok();
            self.record.miss();
        }
    }

    /// Returns how often our chains were changed; `None` if the kernel does not say the
    /// generation.
    pub fn count(&mut self) -> Option<Count> {
        for _ in 0..ATTEMPTS {
            let count = self.count_once()?;
            if count.is_complete {
                return Some(count);
            }
        }
        self.count_once()
    }

    fn count_once(&mut self) -> Option<Count> {
        let (chains, record) = (&self.chains, &mut self.record);
        let drained = self.monitor.drain(|event| record.take_in(event, chains));
        if !drained.unwrap_or(false) {
            record.miss();
        }
        // The generation is read after the notifications: no counted change is later.
        let generation = self.rules.generation().ok()?;
        Some(record.count(generation))
    }

    /// Returns how often our chains were changed, as [`ChainWatcher::count`], for the check
    /// that is repeated all the time.
    pub fn check(&mut self) -> Option<Count> {
        let mut count = self.count()?;
        let last = self.last.replace(count.generation);
        if last.is_some_and(|last| self.record.is_before(last)) {
            self.record.miss();
            count = self.count()?;
        }
        Some(count)
    }
}

/// Changes that notifications have reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    /// The last generation that is counted, unless some were missed.
    known: Option<u32>,
    /// Something of ours was changed in a generation that was not named yet.
    is_changing: bool,
    changed: u32,
    missed: u32,
}

impl Record {
    fn take_in(&mut self, event: Event, chains: &Chains) {
        match event {
            Event::Changed(changed) => self.is_changing |= chains.contain(&changed),
            Event::Generation(named) => {
                let is_changed = std::mem::take(&mut self.is_changing);
                let Some(known) = self.known else {
                    return;
                };
                match distance(known, named) {
                    1 => {
                        self.known = Some(named);
                        self.changed += u32::from(is_changed);
                    }
                    // This generation is among those that were missed.
                    ..=0 => {}
                    _ => self.miss(),
                }
            }
        }
    }

    /// Notes that something may have been missed: counting starts again with the next reading.
    fn miss(&mut self) {
        self.known = None;
        self.missed += 1;
    }

    /// Returns true if `generation` is not counted.
    fn is_before(&self, generation: u32) -> bool {
        self.known
            .is_some_and(|known| distance(known, generation) > 0)
    }

    /// Counts up to `generation`, the one just read from the kernel.
    fn count(&mut self, generation: u32) -> Count {
        let known = *self.known.get_or_insert(generation);
        Count {
            generation,
            is_complete: known == generation,
            changed: self.changed,
            missed: self.missed,
        }
    }
}

/// Returns by how many generations `to` is later than `from`. Generations begin again after the
/// last number.
fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from) as i32
}

impl Chains {
    /// Returns true if a change concerns one of our chains: the chain, a rule in it, or a
    /// rule of others that jumps to it.
    fn contain(&self, changed: &ChangedChain) -> bool {
        let Some(table) = Table::named(&changed.table) else {
            return false;
        };
        let is_ours = |chain: &str| (self.interest)(table, chain) != Interest::Foreign;
        let leads_to_ours = || {
            let leads_to = changed.leads_to.as_ref();
            leads_to.is_none_or(|chains| chains.iter().any(|chain| is_ours(chain)))
        };
        changed.family == Some(self.family) && (is_ours(&changed.chain) || leads_to_ours())
    }
}

/// The size of each of `tables` of the legacy engine; `None` for a table that it does not have.
pub fn sizes(family: Family, tables: &[Table]) -> Vec<Option<Size>> {
    let tables = tables.iter();
    tables
        .map(|table| info::size(family, table.name()).ok())
        .collect()
}
