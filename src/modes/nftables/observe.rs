//! Reads parts of a table before it is written again.

use std::sync::Arc;

use hashbrown::HashMap;
use net::Family;
use netlink::Error;
use nftables::{Element, ListedSet, Rules, Set, Table};

use super::{applied::TABLE, diff::Routes};

/// A table as it was at one moment.
#[derive(Debug)]
pub struct Observed {
    /// The moment: a transaction that is run with it fails if a process changed
    /// something since.
    pub generation: u32,
    /// Whether there is such a table.
    pub exists: bool,
    /// Maps of clients, with the clients that stay on their endpoints.
    pub clients: Vec<(Arc<Set>, Vec<Element>)>,
}

/// Reads the parts of the family's table that must be preserved: the clients that have one of
/// `routes`. Nothing else is read, because that takes longer than writing it.
///
/// # Errors
/// When the kernel refuses, or the table changes meanwhile.
pub fn observe(rules: &mut Rules, family: Family, routes: &Routes) -> Result<Observed, Error> {
    let generation = rules.generation()?;
    let exists = rules
        .tables(family)?
        .iter()
        .any(|table| table.name == TABLE);
    let mut observed = Observed {
        generation,
        exists,
        clients: Vec::new(),
    };
    if !exists || routes.is_empty() {
        return Ok(observed);
    }
    let table = Table::new(family, TABLE);
    let listed = rules.sets(&table)?;
    let listed: HashMap<&str, &ListedSet> = listed
        .iter()
        .map(|listed| (&*listed.name, listed))
        .collect();
    for map in routes.maps() {
        let set = map.set();
        // One that another program made may be of another type.
        if listed.get(&*set.name).is_some_and(|listed| listed.is(&set)) {
            let mut elements = rules.elements(&table, &set)?;
            elements.retain(|client| routes.contain(map, client));
            observed.clients.push((set, elements));
        }
    }
    Ok(observed)
}
