//! Noticing cheaply that another process changed our rules: no client should have to
//! wait for the next full sync because a firewall was restarted.
//!
//! nf_tables counts its changes. When the count is not what we left, our chains
//! are listed. The legacy engine shows the size of each table.

use super::{count::Done, observe::is_ours};
use crate::{
    kernel::xtables::{
        Engine,
        chains::{ChainLister, sizes},
        info::Size,
        rule::Table,
        watch::Left,
    },
    net::Family,
};

/// Watches one family.
pub struct Watch {
    family: Family,
    record: Record,
}

/// What we left behind.
enum Record {
    Legacy(Sizes),
    NfTables(Generations),
}

/// Sizes of tables.
#[derive(Default)]
struct Sizes {
    /// How large they were when we left them.
    left: Option<Vec<Option<Size>>>,
    /// They were so before the sync that runs.
    are_unmodified: bool,
}

/// Counts of changes, and what was there then.
struct Generations {
    lister: Option<ChainLister>,
    /// The count at which all rules were known to be as we want them.
    right: Option<u32>,
    /// Our chains as we left them, at that count or a later one.
    left: Option<Left>,
}

impl Watch {
    /// Of a family, in the calling thread's network namespace.
    pub fn new(family: Family, engine: Engine) -> Watch {
        let record = match engine {
            Engine::Legacy => Record::Legacy(Sizes::default()),
            Engine::NfTables => Record::NfTables(Generations {
                lister: ChainLister::open(family, |_, chain| is_ours(chain)),
                right: None,
                left: None,
            }),
        };
        Watch { family, record }
    }

    /// Returns the count before a sync, where the engine counts. To be called before a
    /// sync of any family reads or writes anything.
    pub fn before(&mut self) -> Option<u32> {
        match &mut self.record {
            Record::NfTables(generations) => generations.now(),
            Record::Legacy(there) => {
                let now = sizes(self.family, &Table::ALL);
                there.are_unmodified = there.left.as_ref() == Some(&now);
                None
            }
        }
    }

    /// To be called after a sync in which this family's was `done`, and the kernel
    /// made `all` transactions for all families: it counts those of both as one.
    pub fn after(&mut self, before: Option<u32>, all: u32, done: &Done) {
        match &mut self.record {
            Record::Legacy(there) => {
                // What others changed before a sync that read nothing is to be noticed
                // still: no tables are like none at all.
                let is_right = done.observed || there.are_unmodified;
                let now = is_right.then(|| sizes(self.family, &Table::ALL));
                there.left = Some(now.unwrap_or_default());
            }
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
            Record::Legacy(Sizes { left: None, .. }) => true,
            Record::Legacy(Sizes {
                left: Some(left), ..
            }) => sizes(self.family, &Table::ALL) == *left,
            Record::NfTables(generations) => generations.is_unmodified(),
        }
    }
}

impl Generations {
    fn now(&mut self) -> Option<u32> {
        self.lister.as_mut()?.generation()
    }

    fn after(&mut self, before: Option<u32>, all: u32, done: &Done) {
        let now = self.now();
        let expected = before.map(|count| count.wrapping_add(all));
        let is_expected = now.is_some() && now == expected;
        let was = |count: Option<u32>| done.observed || before.is_some() && count == before;
        let unmodified = self.left.map(|left| left.generation);
        let (was_right, was_unmodified) = (was(self.right), was(unmodified));
        self.right = now.filter(|_| is_expected && was_right);
        let chains = self.left.and_then(|left| left.chains);
        let chains = chains.filter(|_| done.transactions == 0);
        let unmodified = now.filter(|_| is_expected && was_unmodified);
        self.left = unmodified.map(|generation| Left { generation, chains });
    }

    fn is_unmodified(&mut self) -> bool {
        let Some(lister) = &mut self.lister else {
            return true;
        };
        if let Some(left) = &mut self.left {
            return left.is_unmodified(lister);
        }
        if lister.generation().is_none() || !lister.is_due() {
            return true;
        }
        // Where that takes long, the next check waits.
        lister.list();
        false
    }
}
