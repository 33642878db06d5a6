//! Noticing cheaply that another process changed our rules: no client should have to
//! wait for the next full sync because a firewall was restarted.
//!
//! nf_tables counts its changes. When the count is not what we left, our chains
//! are listed: how many rules each has and how many lead to it, which changes with
//! a flush, a deleted chain and a deleted jump, but not with what others do
//! elsewhere. The legacy engine shows the size of each table.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use super::{count::Done, observe::is_ours};
use crate::{
    kernel::{
        nftables::Rules,
        xtables::{
            Engine,
            info::{self, Size},
            rule::Table,
        },
    },
    net::Family,
};

/// Chains whose listing takes longer are listed less often: the kernel takes
/// time with the square of their number (2 s for 240,000).
const LONG: Duration = Duration::from_millis(200);
/// So many times as long as a long listing took, there is no other.
const PAUSE: u32 = 10;

/// Watches one family.
pub struct Watch {
    family: Family,
    record: Record,
}

/// What we left behind.
enum Record {
    Legacy(Option<[Option<Size>; 3]>),
    NfTables(Generations),
}

/// Counts of changes, and what was there then.
struct Generations {
    rules: Option<Rules>,
    /// The count at which all rules were known to be as we want them.
    right: Option<u32>,
    /// A later count, at which our chains still were.
    unmodified: Option<u32>,
    /// Our chains, at either.
    chains: Option<u64>,
    /// They are not listed before.
    next_listing: Option<Instant>,
}

impl Watch {
    /// Of a family, in the calling thread's network namespace.
    pub fn new(family: Family, engine: Engine) -> Watch {
        let record = match engine {
            Engine::Legacy => Record::Legacy(None),
            Engine::NfTables => Record::NfTables(Generations {
                rules: Rules::open().ok(),
                right: None,
                unmodified: None,
                chains: None,
                next_listing: None,
            }),
        };
        Watch { family, record }
    }

    /// Returns the count before a sync, where the engine counts. To be called before a
    /// sync of any family reads or writes anything.
    pub fn before(&mut self) -> Option<u32> {
        match &mut self.record {
            Record::NfTables(generations) => generations.now(),
            Record::Legacy(_) => None,
        }
    }

    /// To be called after a sync in which this family's was `done`, and the kernel
    /// made `all` transactions for all families: it counts those of both as one.
    pub fn after(&mut self, before: Option<u32>, all: u32, done: &Done) {
        match &mut self.record {
            Record::Legacy(left) => *left = Some(sizes(self.family)),
            Record::NfTables(generations) => generations.after(before, all, done),
        }
    }

    /// Returns true if no process changed any rules since a sync last knew all of ours
    /// to be right.
    pub fn is_unchanged(&mut self) -> bool {
        match &mut self.record {
            Record::Legacy(_) => false,
            Record::NfTables(generations) => {
                let now = generations.now();
                now.is_some() && generations.right == now
            }
        }
    }

    /// Returns true if our rules are as we left them, as far as that shows without
    /// reading them.
    pub fn is_unmodified(&mut self) -> bool {
        match &mut self.record {
            Record::Legacy(None) => true,
            Record::Legacy(Some(left)) => sizes(self.family) == *left,
            Record::NfTables(generations) => generations.is_unmodified(self.family),
        }
    }
}

impl Generations {
    fn now(&mut self) -> Option<u32> {
        self.rules.as_mut()?.generation().ok()
    }

    fn after(&mut self, before: Option<u32>, all: u32, done: &Done) {
        let now = self.now();
        let expected = before.map(|count| count.wrapping_add(all));
        let is_expected = now.is_some() && now == expected;
        let was = |count: Option<u32>| done.observed || before.is_some() && count == before;
        let (was_right, was_unmodified) = (was(self.right), was(self.unmodified));
        self.right = now.filter(|_| is_expected && was_right);
        self.unmodified = now.filter(|_| is_expected && was_unmodified);
        if done.transactions > 0 || self.unmodified.is_none() {
            self.chains = None;
        }
    }

    fn is_unmodified(&mut self, family: Family) -> bool {
        let now = self.now();
        let Some(rules) = self.rules.as_mut().filter(|_| now.is_some()) else {
            return true;
        };
        if self.unmodified == now && self.chains.is_some() {
            return true;
        }
        let begun = Instant::now();
        if self.next_listing.is_some_and(|next| begun < next) {
            return true;
        }
        let found = ours(rules, family);
        let took = begun.elapsed();
        self.next_listing = (took > LONG).then(|| begun + took * PAUSE);
        let is_same_moment = self.now() == now;
        let is_unmodified = match self.chains {
            Some(left) => found == Some(left),
            None => self.unmodified == now,
        };
        if is_unmodified && is_same_moment {
            (self.unmodified, self.chains) = (now, found);
        }
        is_unmodified
    }
}

fn sizes(family: Family) -> [Option<Size>; 3] {
    Table::ALL.map(|table| info::size(family, table.name()).ok())
}

/// Returns our chains of `family` in one number, whatever their order.
fn ours(rules: &mut Rules, family: Family) -> Option<u64> {
    let mut sum = 0u64;
    rules
        .chains(family, |listed| {
            let table = Table::named(&listed.table).is_some();
            if table && !listed.base && is_ours(&listed.chain.name) {
                let mut hasher = DefaultHasher::new();
                (listed.table, listed.chain.name, listed.handle, listed.uses).hash(&mut hasher);
                sum = sum.wrapping_add(hasher.finish());
            }
        })
        .ok()?;
    Some(sum)
}
