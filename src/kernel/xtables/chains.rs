//! Chains of ours as they show without running a program: what is different there was
//! changed by another process, if not by us.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use super::{
    info::{self, Size},
    rule::Table,
};
use crate::{kernel::nftables::Rules, net::Family};

/// Chains whose listing takes longer are listed less often: the kernel takes
/// time with the square of their number (2 s for 240,000).
const LONG: Duration = Duration::from_millis(200);
/// So many times as long as a long listing took, there is no other.
const PAUSE: u32 = 10;

/// Lists chains of ours in the tables of iptables that nf_tables has.
pub struct ChainLister {
    family: Family,
    rules: Rules,
    is_ours: fn(Table, &str) -> bool,
    /// They are not listed before.
    next: Option<Instant>,
}

impl ChainLister {
    /// Returns what lists chains of `family` whose names are ours, in the network
    /// namespace of the calling thread; `None` where no netlink socket can be had.
    pub fn open(family: Family, is_ours: fn(Table, &str) -> bool) -> Option<ChainLister> {
        Some(ChainLister {
            family,
            rules: Rules::open().ok()?,
            is_ours,
            next: None,
        })
    }

    /// Returns a number that grows by one with each change of any rules; `None` if the
    /// kernel does not say it.
    pub fn generation(&mut self) -> Option<u32> {
        self.rules.generation().ok()
    }

    /// Returns whether chains may be listed again, after a listing that took long.
    pub fn is_due(&self) -> bool {
        self.next.is_none_or(|next| Instant::now() >= next)
    }

    /// Returns our chains in one number, whatever their order: how many rules each has
    /// and how many lead to it, which changes with a flush, a deleted chain and a deleted
    /// jump, but not with what others do elsewhere.
    pub fn list(&mut self) -> Option<u64> {
        let begun = Instant::now();
        let (mut sum, is_ours) = (0u64, self.is_ours);
        let listed = self.rules.chains(self.family, |listed| {
            let table = Table::named(&listed.table);
            let is_ours = table.is_some_and(|table| is_ours(table, &listed.chain.name));
            if is_ours && !listed.base {
                let mut hasher = DefaultHasher::new();
                (listed.table, listed.chain.name, listed.handle, listed.uses).hash(&mut hasher);
                sum = sum.wrapping_add(hasher.finish());
            }
        });
        let took = begun.elapsed();
        self.next = (took > LONG).then(|| begun + took * PAUSE);
        listed.ok().map(|()| sum)
    }
}

/// Returns the size of each of `tables` of the legacy engine, where there is one.
pub fn sizes(family: Family, tables: &[Table]) -> Vec<Option<Size>> {
    let tables = tables.iter();
    tables
        .map(|table| info::size(family, table.name()).ok())
        .collect()
}
