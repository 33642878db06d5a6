//! Noticing cheaply that another process changed a few chains of ours, where all that
//! is known of a sync is when it ended. What is changed between a sync and the moment in
//! which it is recorded is not noticed.

use super::{
    Engine,
    chains::{ChainLister, sizes},
    info::Size,
    remove::Owned,
};
use crate::net::Family;

/// Watches chains of one family.
pub struct Watch {
    family: Family,
    owned: &'static Owned,
    record: Record,
}

/// What was there after the last sync.
enum Record {
    Legacy(Option<Vec<Option<Size>>>),
    NfTables(Option<ChainLister>, Option<Left>),
}

/// What a sync left in nf_tables.
#[derive(Clone, Copy)]
pub struct Left {
    /// The generation in which the chains were as we left them.
    pub generation: u32,
    /// The chains, once they were listed.
    pub chains: Option<u64>,
}

impl Watch {
    /// Returns what watches the chains of `family` that are `owned`, in the network
    /// namespace of the calling thread. Nothing is recorded yet.
    pub fn new(family: Family, engine: Engine, owned: &'static Owned) -> Watch {
        let record = match engine {
            Engine::Legacy => Record::Legacy(None),
            Engine::NfTables => Record::NfTables(ChainLister::open(family, owned.is_ours), None),
        };
        Watch {
            family,
            owned,
            record,
        }
    }

    /// Records that the chains are as they should be now, after a sync.
    pub fn record(&mut self) {
        match &mut self.record {
            Record::Legacy(left) => {
                *left = Some(sizes(self.family, self.owned.tables));
            }
            Record::NfTables(lister, left) => {
                let generation = lister.as_mut().and_then(ChainLister::generation);
                *left = generation.map(|generation| Left {
                    generation,
                    chains: None,
                });
            }
        }
    }

    /// Returns true if the chains are as they were recorded, as far as that shows
    /// without reading their rules, or if nothing is recorded.
    pub fn is_unmodified(&mut self) -> bool {
        match &mut self.record {
            Record::Legacy(Some(left)) => sizes(self.family, self.owned.tables) == *left,
            Record::NfTables(Some(lister), Some(left)) => left.is_unmodified(lister),
            Record::Legacy(None) | Record::NfTables(..) => true,
        }
    }
}

impl Left {
    /// Returns true if the chains that `lister` lists are as they were left, or if the kernel
    /// does not say it.
    pub fn is_unmodified(&mut self, lister: &mut ChainLister) -> bool {
        let Some(now) = lister.generation() else {
            return true;
        };
        let is_same = now == self.generation;
        if is_same && self.chains.is_some() || !lister.is_due() {
            return true;
        }
        let found = lister.list();
        let is_unmodified = match self.chains {
            Some(left) => found == Some(left),
            None => is_same,
        };
        // What was changed while they were listed is seen the next time.
        if is_unmodified && lister.generation() == Some(now) {
            *self = Left {
                generation: now,
                chains: found,
            };
        }
        is_unmodified
    }
}
