//! Computes, from the applied and the desired state, which elements and chains are added and which
//! are deleted, as one transaction.

mod routes;

use std::{collections::BTreeMap, hash::Hash, sync::Arc};

use hashbrown::{HashMap, HashSet};
use net::Family;
use nftables::{Element, Set, Table, Transaction};

pub use self::routes::Routes;
use super::{
    applied::{Applied, AppliedPort, TABLE},
    plan::{
        ClientMap, Fixed, Options, ServiceElements, SetId, Sets, SharedChain, SharedElement, fixed,
    },
};
use crate::{
    modes::references::References,
    services::{ServicePort, ServicePortName},
};

type BySet = BTreeMap<SetId, Owned>;

/// Elements of a set.
#[derive(Debug, Default)]
struct Owned {
    elements: Vec<Element>,
    /// The number of the ServicePort that each is for. Apart from the elements, which go to the
    /// kernel as they are: there may be hundreds of thousands.
    owners: Vec<usize>,
}

impl Owned {
    fn push(&mut self, element: Element, owner: usize) {
        self.elements.push(element);
        self.owners.push(owner);
    }
}

/// Changes for some ServicePorts.
#[derive(Debug, Default)]
pub struct Change {
    /// The ServicePorts, as they will be; `None`: gone.
    ports: Vec<(ServicePortName, Option<AppliedPort>)>,
    removed: BySet,
    added: BySet,
    shared: HashMap<SharedElement, i32>,
    chains: HashMap<SharedChain, i32>,
    maps_removed: Vec<ClientMap>,
    maps_added: Vec<ClientMap>,
    /// Routes on which clients must not be sent any more although they were sent there
    /// before.
    pub stale: Routes,
    /// Routes on which clients may be sent again because they were sent there before.
    pub preserved: Routes,
}

/// Returns the keys that are needed from now on, or that no ServicePort needs any longer.
fn turned<'a, K: Hash + Ord>(
    references: &References<K>,
    deltas: &'a HashMap<K, i32>,
    turns: fn(u32, u32) -> bool,
) -> Vec<&'a K> {
    let turned = deltas.iter().filter(|(key, delta)| {
        let before = references.count(key);
        turns(before, before.saturating_add_signed(**delta))
    });
    let mut turned: Vec<&K> = turned.map(|(key, _)| key).collect();
    // Printed transactions are the same each time.
    turned.sort_unstable();
    turned
}

impl Change {
    /// Plans the changes from the `applied` state to one that has these ServicePorts, or has them
    /// no more.
    pub fn new<'a>(
        applied: &Applied,
        ports: impl IntoIterator<Item = (&'a ServicePortName, Option<&'a Arc<ServicePort>>)>,
    ) -> Change {
        let mut change = Change::default();
        for (name, port) in ports {
            let before = applied.ports.get(name);
            let after = port.map(|port| AppliedPort::new(port, before));
            change.compare(before, after.as_ref(), &applied.options);
            change.ports.push((name.clone(), after));
        }
        change
    }

    /// Records in `applied` that this change has been applied.
    pub fn commit(self, applied: &mut Applied) {
        for (name, port) in self.ports {
            match port {
                Some(port) => drop(applied.ports.insert(name, port)),
                None => drop(applied.ports.remove(&name)),
            }
        }
        applied.shared.change(self.shared);
        applied.chains.change(self.chains);
    }

    /// Returns true if the kernel needs no change.
    pub fn is_empty(&self) -> bool {
        let mut deltas = self.shared.values().chain(self.chains.values());
        self.removed.is_empty() && self.added.is_empty() && deltas.all(|delta| *delta == 0)
    }

    fn compare(
        &mut self,
        before: Option<&AppliedPort>,
        after: Option<&AppliedPort>,
        options: &Options,
    ) {
        let owner = self.ports.len();
        let of = |port: Option<&AppliedPort>| {
            let elements = port.map(|port| port.elements(options));
            elements.unwrap_or_default()
        };
        let (old, new) = (of(before), of(after));
        self.compare_clients(&old, &new);
        for (needs, delta) in [(&old, -1), (&new, 1)] {
            for element in &needs.shared {
                *self.shared.entry(*element).or_default() += delta;
            }
            for chain in &needs.chains {
                *self.chains.entry(chain.clone()).or_default() += delta;
            }
        }
        let (gone, come) = if before.is_some() {
            differing(old.own, new.own)
        } else {
            (Vec::new(), new.own)
        };
        for (elements, by_set) in [(gone, &mut self.removed), (come, &mut self.added)] {
            for (set, element) in elements {
                by_set.entry(set).or_default().push(element, owner);
            }
        }
    }

    /// A map that goes takes its clients with it.
    fn compare_clients(&mut self, old: &ServiceElements, new: &ServiceElements) {
        let has = |of: &ServiceElements, map| of.clients.iter().any(|(there, _)| there == map);
        for (map, endpoints) in &old.clients {
            if has(new, map) {
                self.stale.add(map, endpoints.iter().cloned());
            } else {
                self.maps_removed.push(map.clone());
            }
        }
        for (map, endpoints) in &new.clients {
            self.preserved.add(map, endpoints.iter().cloned());
            if !has(old, map) {
                self.maps_added.push(map.clone());
            }
        }
    }

    /// Makes the batch for the kernel, to be run on the `applied` state.
    pub fn batch(self, applied: &Applied, sets: &Sets) -> Batch {
        let mut batch = Batch::new(applied.options.family);
        for map in &self.maps_added {
            batch.transaction.add_set(&map.set());
        }
        let new: fn(u32, u32) -> bool = |before, after| before == 0 && after > 0;
        let old: fn(u32, u32) -> bool = |before, after| before > 0 && after == 0;
        let (mut gone, mut sets_gone) = (Vec::new(), Vec::new());
        for chain in turned(&applied.chains, &self.chains, old) {
            gone.extend(chain.names());
            sets_gone.extend(chain.sets(sets));
        }
        let come = turned(&applied.chains, &self.chains, new);
        batch.chains(&come, &mut gone, &applied.options, sets);
        let (mut removed, mut added) = (self.removed, self.added);
        for (turn, by_set) in [(old, &mut removed), (new, &mut added)] {
            for shared in turned(&applied.shared, &self.shared, turn) {
                let (set, element) = shared.element();
                let elements = by_set.entry(set).or_default();
                elements.push(element, usize::MAX);
            }
        }
        for (set, Owned { elements, .. }) in removed {
            batch.transaction.delete_elements(sets.get(set), elements);
        }
        batch.add(added, sets);
        for name in &gone {
            batch.transaction.flush_chain(name.as_str());
        }
        for name in gone {
            batch.transaction.delete_chain(name);
        }
        let maps_gone = self.maps_removed.iter().map(ClientMap::set);
        for set in maps_gone.chain(sets_gone) {
            batch.transaction.delete_set(&set);
        }
        let mut stale = self.stale;
        stale.remove(&self.preserved);
        batch.change = Change {
            ports: self.ports,
            shared: self.shared,
            chains: self.chains,
            stale,
            preserved: self.preserved,
            ..Change::default()
        };
        batch
    }
}

/// A transaction and the ServicePorts that it is for.
#[derive(Debug)]
pub struct Batch {
    /// The transaction that goes to the kernel.
    pub transaction: Transaction,
    /// Which ServicePort each element of a step is for, as numbers of those of
    /// the change.
    owners: HashMap<usize, Vec<usize>>,
    /// The part of the change that is still to be committed.
    pub change: Change,
}

impl Batch {
    fn new(family: Family) -> Batch {
        Batch {
            transaction: Transaction::new(Table::new(family, TABLE)),
            owners: HashMap::new(),
            change: Change::default(),
        }
    }

    /// Plans a table with the additions of `change`, which replaces the one that exists, if any.
    /// `preserved` are the clients of that one which stay on their endpoints, by their maps;
    /// `None`: there is none.
    pub fn whole(
        change: Change,
        empty: &Applied,
        sets: &Sets,
        preserved: Option<Vec<(Arc<Set>, Vec<Element>)>>,
    ) -> Batch {
        let options = &empty.options;
        let mut batch = Batch::new(options.family);
        batch.transaction.add_table();
        if preserved.is_some() {
            // It may have gone since it was read.
            batch.transaction.delete_table().add_table();
        }
        for (_, set) in sets.of(options) {
            batch.transaction.add_set(set);
        }
        let Fixed { chains, elements } = fixed(options, sets);
        for (chain, _) in &chains {
            batch.transaction.add_chain(chain.clone());
        }
        for (chain, rules) in chains {
            for rule in rules {
                batch.transaction.add_rule(&chain.name, rule);
            }
        }
        for (set, element) in elements {
            batch.transaction.add_elements(sets.get(set), vec![element]);
        }
        let variable = change.batch(empty, sets);
        batch.append(variable);
        for (map, clients) in preserved.unwrap_or_default() {
            batch.transaction.add_elements(&map, clients);
        }
        batch
    }

    fn append(&mut self, other: Batch) {
        let before = self.transaction.steps();
        self.transaction.append(other.transaction);
        let owners = other.owners.into_iter();
        self.owners = owners
            .map(|(step, owners)| (step + before, owners))
            .collect();
        self.change = other.change;
    }

    /// Adds chains. Those that are among the `gone` ones by their names get other rules, and stay.
    fn chains(
        &mut self,
        chains: &[&SharedChain],
        gone: &mut Vec<String>,
        options: &Options,
        sets: &Sets,
    ) {
        for set in chains.iter().flat_map(|chain| chain.sets(sets)) {
            self.transaction.add_set(&set);
        }
        let all: Vec<_> = chains
            .iter()
            .flat_map(|chain| chain.chains(options, sets))
            .collect();
        for (chain, _) in &all {
            match gone.iter().position(|name| **name == *chain.name) {
                None => self.transaction.add_chain(chain.clone()),
                Some(at) => self.transaction.flush_chain(gone.remove(at)),
            };
        }
        for (chain, rules) in all {
            for rule in rules {
                self.transaction.add_rule(&chain.name, rule);
            }
        }
    }

    fn add(&mut self, added: BySet, sets: &Sets) {
        for (set, Owned { elements, owners }) in added {
            self.owners.insert(self.transaction.steps(), owners);
            self.transaction.add_elements(sets.get(set), elements);
        }
    }

    /// Returns the ServicePort to which an element of a step belongs; `None`: it belongs to no
    /// ServicePort of the change.
    pub fn owner(&self, step: usize, element: usize) -> Option<&ServicePortName> {
        let owner = self.owners.get(&step)?.get(element)?;
        self.change.ports.get(*owner).map(|(name, _)| name)
    }
}

type Own = Vec<(SetId, Element)>;

/// Elements that only `old` has, and elements that only `new` has. A map's element whose data
/// differ is deleted and added.
fn differing(old: Own, new: Own) -> (Own, Own) {
    let preserved: HashSet<(SetId, Element)> = {
        let old: HashSet<&(SetId, Element)> = old.iter().collect();
        let common = new.iter().filter(|element| old.contains(element));
        common.cloned().collect()
    };
    let only = |own: Own| {
        let only = own
            .into_iter()
            .filter(|element| !preserved.contains(element));
        only.collect()
    };
    (only(old), only(new))
}
