//! Differences between a table and its desired state. Pure.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use nftables::{Chain, Contents, Element, ListedRule, Rule, Set};

use super::{
    applied::{Applied, OwnedElement, TABLE},
    plan::{SetId, Sets, SharedChain, fixed},
};
use crate::modes::{Difference, Found};

/// Lists the differences between the `contents` of the table and the `desired` ones; `None`: there
/// is no table. Then its contents are missing, too, except its chains and sets. Clients with
/// affinity are written by rules, and any may be in the maps of clients.
pub fn differences(desired: &Applied, sets: &Sets, contents: Option<Contents>) -> Vec<Difference> {
    let options = &desired.options;
    let fixed = fixed(options, sets);
    let own = fixed.elements.into_iter();
    let own = own.map(|(set, element)| OwnedElement {
        owner: None,
        set,
        element,
    });
    let mut by_set: HashMap<SetId, Vec<OwnedElement<'_>>> = HashMap::new();
    for one in own.chain(desired.elements()) {
        by_set.entry(one.set).or_default().push(one);
    }
    let mut differences;
    if let Some(contents) = contents {
        let mut chains = fixed.chains;
        let shared = desired.chains.iter();
        chains.extend(shared.flat_map(|chain| chain.chains(options, sets)));
        differences = compare_chains(&chains, &contents);
        compare_sets(by_set, desired, sets, contents, &mut differences);
    } else {
        let table = format!("table {TABLE} of {}", options.family);
        differences = vec![Difference::new(None, table, Found::Missing)];
        let all = by_set.into_iter();
        differences.extend(all.flat_map(|(id, elements)| missing(sets.get(id), elements)));
    }
    differences.sort_unstable();
    differences
}

/// Returns that all of `elements` are missing, as their set is.
fn missing<'a>(
    set: &'a Set,
    elements: Vec<OwnedElement<'a>>,
) -> impl Iterator<Item = Difference> + 'a {
    elements.into_iter().map(|one| {
        let object = one.element.named(set);
        Difference::new(one.owner, object, Found::Missing)
    })
}

fn compare_chains(desired: &[(Chain, Vec<Rule>)], contents: &Contents) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut add = |object: String, found| differences.push(Difference::new(None, object, found));
    let mut rules: HashMap<&str, Vec<&ListedRule>> = HashMap::new();
    for rule in &contents.rules {
        rules.entry(&rule.chain).or_default().push(rule);
    }
    for (chain, desired) in desired {
        let mut chains = contents.chains.iter();
        let there = chains.find(|listed| listed.chain.name == chain.name);
        let object = format!("chain {}", chain.name);
        let listed = rules.remove(&*chain.name).unwrap_or_default();
        let is_same = |(listed, desired): (&&ListedRule, &Rule)| listed.is(desired);
        match there {
            None => add(object, Found::Missing),
            Some(there) if there.chain != *chain => add(object, Found::Altered),
            Some(_) if listed.len() != desired.len() => add(object, Found::Altered),
            Some(_) if !listed.iter().zip(desired).all(is_same) => add(object, Found::Altered),
            Some(_) => {}
        }
    }
    let names: HashSet<&str> = desired.iter().map(|(chain, _)| &*chain.name).collect();
    for listed in &contents.chains {
        if !names.contains(&*listed.chain.name) {
            add(format!("chain {}", listed.chain.name), Found::Unneeded);
        }
    }
    differences
}

fn compare_sets(
    mut desired: HashMap<SetId, Vec<OwnedElement<'_>>>,
    applied: &Applied,
    sets: &Sets,
    contents: Contents,
    differences: &mut Vec<Difference>,
) {
    let mut listed: HashMap<Arc<str>, _> = HashMap::new();
    for (set, elements) in contents.sets {
        listed.insert(set.name.clone(), (set, elements));
    }
    for (id, set) in applied.sets(sets) {
        let object = format!("set {}", set.name);
        let Some((there, elements)) = listed.remove(&*set.name) else {
            differences.push(Difference::new(None, object, Found::Missing));
            let elements = desired.remove(&id).unwrap_or_default();
            differences.extend(missing(set, elements));
            continue;
        };
        if !there.is(set) {
            differences.push(Difference::new(None, object, Found::Altered));
        } else {
            let desired = desired.remove(&id).unwrap_or_default();
            differences.extend(compare_elements(set, desired, elements));
        }
    }
    let maps = applied.client_maps();
    let maps = maps.map(|(map, _)| (Some(&map.port), map.set()));
    let of_chains = applied.chains.iter().filter_map(|chain| match chain {
        SharedChain::Limit(limits) => limits.clients(),
        _ => None,
    });
    let of_chains = of_chains.map(|set| (None, Arc::new(set)));
    for (owner, desired) in maps.chain(of_chains) {
        let found = match listed.remove(&*desired.name) {
            None => Found::Missing,
            Some((there, _)) if !there.is(&desired) => Found::Altered,
            Some(_) => continue,
        };
        let object = format!("set {}", desired.name);
        differences.push(Difference::new(owner, object, found));
    }
    for (name, (set, _)) in listed {
        if !set.is_anonymous() {
            differences.push(Difference::new(
                None,
                format!("set {name}"),
                Found::Unneeded,
            ));
        }
    }
}

/// Key of an element in its set.
type Key = (Box<[u8]>, Option<Box<[u8]>>);

fn key(element: &Element) -> Key {
    (element.key.clone(), element.end.clone())
}

/// Returns how the `listed` elements of `set` differ from those that are `desired`.
fn compare_elements(
    set: &Set,
    desired: Vec<OwnedElement<'_>>,
    listed: Vec<Element>,
) -> Vec<Difference> {
    let mut there: HashMap<Key, Element> = HashMap::with_capacity(listed.len());
    for element in listed {
        there.insert(key(&element), element.comparable());
    }
    let mut differences = Vec::new();
    for OwnedElement { owner, element, .. } in desired {
        let (named, found) = match there.remove(&key(&element)) {
            None => (element.named(set), Found::Missing),
            Some(listed) if listed != element.clone().comparable() => {
                (listed.named(set), Found::Altered)
            }
            Some(_) => continue,
        };
        differences.push(Difference::new(owner, named, found));
    }
    let unneeded = there.into_values();
    differences.extend(unneeded.map(|one| Difference::new(None, one.named(set), Found::Unneeded)));
    differences
}
