//! What is read of a table before it is written anew.

use crate::{
    kernel::{
        netlink::Error,
        nftables::{Element, Rules, Set, Table},
    },
    net::Family,
};

use super::applied::TABLE;

/// A table as it was at one moment.
#[derive(Debug)]
pub struct Observed {
    /// The moment: a transaction that is run with it fails if a process changed
    /// something since.
    pub generation: u32,
    /// Whether there is such a table.
    pub exists: bool,
    /// Clients that stay on their endpoints.
    pub affinity: Vec<Element>,
}

/// Returns what is to be preserved of the family's table; nothing else is read, for that
/// takes longer than writing it. `affinity` is the map of clients.
///
/// # Errors
/// When the kernel refuses, or the table changes meanwhile.
pub fn observe(rules: &mut Rules, family: Family, affinity: &Set) -> Result<Observed, Error> {
    let generation = rules.generation()?;
    let exists = rules
        .tables(family)?
        .iter()
        .any(|table| table.name == TABLE);
    let mut observed = Observed {
        generation,
        exists,
        affinity: Vec::new(),
    };
    if exists {
        let table = Table::new(family, TABLE);
        // One that an older program made may be of another type.
        let alike = rules.sets(&table)?.iter().any(|listed| listed.is(affinity));
        if alike {
            observed.affinity = rules.elements(&table, affinity)?;
        }
    }
    Ok(observed)
}
