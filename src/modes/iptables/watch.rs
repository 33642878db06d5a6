//! Noticing that somebody disturbed our rules, cheaply: nobody should have to
//! wait for the next full sync because a firewall was restarted.
//!
//! nf_tables counts its changes. When the count is not what we left, our chains
//! are looked at: how many rules each has and how many lead to it, which
//! changes with a flush, a deleted chain and a deleted jump, but not with what
//! others do elsewhere. The legacy engine tells the size of each table.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

use super::chains::is_ours;
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
const REST: u32 = 10;

/// Watches one family.
pub struct Watch {
    family: Family,
    left: Left,
}

/// What we left behind.
enum Left {
    Legacy(Option<[Option<Size>; 3]>),
    NfTables {
        rules: Option<Rules>,
        /// The count at which all rules were known to be as we want them.
        known: Option<u32>,
        /// A later count, at which our chains still were.
        seen: Option<u32>,
        /// Our chains, at either.
        chains: Option<u64>,
        /// They are not listed before.
        rests: Option<Instant>,
    },
}

/// What the engine said before a sync.
#[derive(Clone, Copy, Debug)]
pub struct Before(Option<u32>);

impl Watch {
    /// Of a family, in the calling thread's network namespace.
    pub fn new(family: Family, engine: Engine) -> Watch {
        let left = match engine {
            Engine::Legacy => Left::Legacy(None),
            Engine::NfTables => Left::NfTables {
                rules: Rules::open().ok(),
                known: None,
                seen: None,
                chains: None,
                rests: None,
            },
        };
        Watch { family, left }
    }

    /// To be called before a sync reads or writes anything.
    pub fn before(&mut self) -> Before {
        match &mut self.left {
            Left::NfTables { rules, .. } => Before(generation(rules)),
            Left::Legacy(_) => Before(None),
        }
    }

    /// To be called after a sync in which all families made `all` transactions,
    /// this one `own`; `read`: it began with reading everything.
    pub fn after(&mut self, before: Before, all: u32, own: u32, read: bool) {
        match &mut self.left {
            Left::Legacy(left) => *left = Some(sizes(self.family)),
            Left::NfTables {
                rules,
                known,
                seen,
                chains,
                ..
            } => {
                let now = generation(rules);
                let ours = before.0.map(|count| count.wrapping_add(all));
                let before_known = read || before.0.is_some() && *known == before.0;
                let before_seen = read || before.0.is_some() && *seen == before.0;
                let undisturbed = now.is_some() && now == ours;
                *known = now.filter(|_| undisturbed && before_known);
                *seen = now.filter(|_| undisturbed && before_seen);
                if own > 0 || seen.is_none() {
                    *chains = None;
                }
            }
        }
    }

    /// Nobody changed anything since a sync last knew everything to be right.
    pub fn untouched(&mut self) -> bool {
        match &mut self.left {
            Left::Legacy(_) => false,
            Left::NfTables { rules, known, .. } => {
                let now = generation(rules);
                now.is_some() && *known == now
            }
        }
    }

    /// Our rules are as we left them, as far as can be told cheaply.
    pub fn quiet(&mut self) -> bool {
        match &mut self.left {
            Left::Legacy(None) => true,
            Left::Legacy(Some(left)) => sizes(self.family) == *left,
            Left::NfTables {
                rules,
                seen,
                chains,
                rests,
                ..
            } => {
                let now = generation(rules);
                let Some(listening) = rules.as_mut().filter(|_| now.is_some()) else {
                    return true;
                };
                if *seen == now && chains.is_some() {
                    return true;
                }
                let begun = Instant::now();
                if rests.is_some_and(|until| begun < until) {
                    return true;
                }
                let found = ours(listening, self.family);
                let took = begun.elapsed();
                *rests = (took > LONG).then(|| begun + took * REST);
                let same_moment = generation(rules) == now;
                let quiet = match *chains {
                    Some(left) => found == Some(left),
                    None => *seen == now,
                };
                if quiet && same_moment {
                    (*seen, *chains) = (now, found);
                }
                quiet
            }
        }
    }
}

fn generation(rules: &mut Option<Rules>) -> Option<u32> {
    rules.as_mut()?.generation().ok()
}

fn sizes(family: Family) -> [Option<Size>; 3] {
    Table::ALL.map(|table| info::size(family, table.name()).ok())
}

/// Our chains of `family` in one number, whatever their order.
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
