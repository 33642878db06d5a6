//! The difference between desired and present rules, as steps. Pure.
//!
//! The present rules are either known because they were applied (`Applied`) or were observed
//! ([`Comparison`]); the steps are found in the same way.
//!
//! Nothing is emptied to begin with: rules that are right stay, so that connections and a
//! predecessor's rules live on until ours are in. Chains and rules of others are left alone.

use std::cmp::Ordering;

use hashbrown::{HashMap, HashSet};
use net::Family;

use super::{
    desired::{Chain, Contents, Entry, FixedChain, Jump, OwnerRules, Place, RuleSet},
    multiset::Multiset,
    observed::{Observed, ObservedTable},
    rule::{BASE_CHAINS, Rule, Table},
    transaction::{Action, Group, Op, Transaction},
    words::{Digest, Words},
};

/// Present chains and rules. Those that match the desired ones are taken out.
pub trait Baseline {
    /// Takes out a chain. Returns true if it was there with these rules only.
    fn take_chain(&mut self, chain: &Chain) -> bool;
    /// Takes out a rule of a shared chain. Returns true if it was there.
    fn take_entry(&mut self, entry: &Entry) -> bool;
    /// Takes out the other copies of that rule, where the order of an owner's rules matters.
    /// Returns how many there were.
    fn take_repeats(&mut self, _entry: &Entry) -> usize {
        0
    }
}

/// Plans the steps that add the missing rules of `desired` in `tables`, except its
/// [steps](OwnerRules::steps) to shared chains.
pub fn missing(desired: &OwnerRules, tables: &[Table], there: &mut impl Baseline) -> Vec<Op> {
    let mut ops = Vec::new();
    let chains = desired.chains.iter();
    for chain in chains.filter(|chain| tables.contains(&chain.table)) {
        if !there.take_chain(chain) {
            let fill = Action::Fill(chain.rules.clone());
            ops.push(Op::new(chain.table, &chain.name, fill));
        }
    }
    let entries = desired.entries.iter();
    let entries = entries.filter(|entry| tables.contains(&entry.table));
    let taken: Vec<(&Entry, usize)> = entries
        .map(|entry| {
            if there.take_entry(entry) {
                (entry, 1 + there.take_repeats(entry))
            } else {
                (entry, 0)
            }
        })
        .collect();
    // Each is put at the top, so the last comes first.
    for &(entry, times) in taken.iter().rev() {
        let is_put_beside = |(other, times): &(&Entry, usize)| {
            *times != 1 && (other.table, &other.chain) == (entry.table, &entry.chain)
        };
        if times == 0 {
            ops.push(Op::of(entry, Action::Insert));
        } else if times > 1 || (entry.table == Table::Nat && taken.iter().any(is_put_beside)) {
            // In nat the order of an owner's rules matters. Those in filter stand
            // in any order.
            ops.push(Op::of(entry, |rule| Action::Raise(rule, times)));
        }
    }
    ops
}

/// Returns the steps from the rules that an owner had to those that it needs, except
/// its [steps](OwnerRules::steps) to shared chains.
pub fn between(old: &OwnerRules, new: &OwnerRules, family: Family) -> Vec<Op> {
    let mut applied = Applied::new(old);
    let mut ops = missing(new, &Table::ALL, &mut applied);
    ops.extend(applied.stale(family));
    ops
}

/// The rules of an owner, as they were applied.
struct Applied<'a> {
    rules: &'a OwnerRules,
    chains: HashMap<Table, HashMap<&'a str, &'a Chain>>,
    entries: Multiset<&'a Entry>,
}

impl Applied<'_> {
    fn new(rules: &OwnerRules) -> Applied<'_> {
        let mut chains = HashMap::<_, HashMap<_, _>>::new();
        for chain in &rules.chains {
            let of_table = chains.entry(chain.table).or_default();
            of_table.insert(chain.name.as_str(), chain);
        }
        Applied {
            rules,
            chains,
            entries: rules.entries.iter().collect(),
        }
    }

    fn take_out(&mut self, chain: &Chain) -> Option<&Chain> {
        self.chains
            .get_mut(&chain.table)?
            .remove(chain.name.as_str())
    }

    /// Plans the steps that delete everything that was not taken out.
    fn stale(mut self, family: Family) -> Vec<Op> {
        let mut ops = Vec::new();
        for chain in &self.rules.chains {
            if self.take_out(chain).is_some() {
                ops.push(Op::new(chain.table, &chain.name, Action::Delete));
            }
        }
        for entry in &self.rules.entries {
            if self.take_entry(entry) {
                let remove = |rule: Rule| Action::Remove(Words::of(&rule, family));
                ops.push(Op::of(entry, remove));
            }
        }
        ops
    }
}

impl Baseline for Applied<'_> {
    fn take_chain(&mut self, chain: &Chain) -> bool {
        self.take_out(chain) == Some(chain)
    }

    fn take_entry(&mut self, entry: &Entry) -> bool {
        self.entries.take(entry)
    }
}

/// Plans the changes that make tables have the chains and jumps of `desired`, when they were
/// `observed`, and delete every other jump to our chains. For parts of Tripod whose rules have no
/// owners.
pub fn difference(observed: &Observed, desired: &RuleSet, family: Family) -> Transaction<()> {
    let (mut comparison, mut ops) = Comparison::begin(observed.clone(), desired, family);
    ops.extend(comparison.stale_jumps());
    Transaction::common(family, ops)
}

/// As [`difference`], and also deletes chains of ours that are not desired.
pub fn exact_difference(observed: &Observed, desired: RuleSet, family: Family) -> Transaction<()> {
    let (mut comparison, ops) = Comparison::with(observed.clone(), desired, family);
    let mut groups = vec![Group::common(ops)];
    groups.extend(comparison.stale(|_| 0, usize::MAX));
    Transaction { family, groups }
}

/// Observed rules, in comparison with the desired ones.
#[derive(Debug)]
pub struct Comparison {
    observed: Observed,
    family: Family,
    /// Chains that are compared rule by rule.
    rules: HashMap<(Table, String), Multiset<Words>>,
    /// Those of them that are needed.
    needed: HashSet<(Table, String)>,
    /// In table nat, by the chain that they jump to: rules that were there. Made when it is first
    /// asked for.
    leads: Option<HashMap<String, Vec<Lead>>>,
}

/// A rule of a shared chain.
#[derive(Debug)]
struct Lead {
    chain: String,
    words: Words,
}

impl Comparison {
    /// Compares the rules that do not depend on owners. Returns the steps that they need, too.
    pub fn begin(observed: Observed, desired: &RuleSet, family: Family) -> (Comparison, Vec<Op>) {
        Comparison::with(observed, desired.clone(), family)
    }

    /// As [`begin`](Self::begin), with rules that need not be copied: there may be many.
    fn with(observed: Observed, desired: RuleSet, family: Family) -> (Comparison, Vec<Op>) {
        let mut comparison = Comparison {
            observed,
            family,
            rules: HashMap::new(),
            needed: HashSet::new(),
            leads: None,
        };
        let mut ops = Vec::new();
        for chain in desired.chains {
            comparison.fixed(chain, &mut ops);
        }
        ops.extend(comparison.jumps(&desired.jumps));
        for (&table, observed) in &mut comparison.observed.tables {
            for (name, rules) in observed.lists.drain() {
                let rules = rules.into_iter().collect();
                comparison.rules.insert((table, name), rules);
            }
        }
        (comparison, ops)
    }

    fn table(&mut self, table: Table) -> &mut ObservedTable {
        self.observed.tables.entry(table).or_default()
    }

    /// Compares one of the chains that do not depend on owners.
    fn fixed(&mut self, chain: FixedChain, ops: &mut Vec<Op>) {
        let FixedChain {
            table,
            name,
            contents,
        } = chain;
        let family = self.family;
        let list = self.table(table).lists.remove(&*name);
        let op = |action| Op::new(table, &*name, action);
        match (contents, list) {
            (Contents::Exactly(rules), Some(list)) => {
                let words = rules.iter().map(|rule| Words::of(rule, family));
                if !words.eq(list) {
                    ops.push(op(Action::Fill(rules)));
                }
            }
            (Contents::Exactly(rules), None) => {
                let digest = self.table(table).digests.remove(&*name);
                if digest != Some(Digest::of(&rules, family)) {
                    ops.push(op(Action::Fill(rules)));
                }
            }
            (Contents::AtLeast(rules), Some(list)) => {
                let missing = rules.into_iter();
                let missing = missing.filter(|rule| !list.contains(&Words::of(rule, family)));
                ops.extend(missing.map(|rule| op(Action::Append(rule))));
            }
            (Contents::AtLeast(rules), None) => ops.push(op(Action::Fill(rules))),
            (Contents::Shared { closing: rules }, list) => {
                if list.is_none() {
                    ops.push(op(Action::Fill(Vec::new())));
                }
                let mut list = list.unwrap_or_default();
                let closing: Vec<Words> = rules.iter().map(|r| Words::of(r, family)).collect();
                let once = |words| list.iter().filter(|rule| *rule == words).count() == 1;
                if list.ends_with(&closing) && closing.iter().all(once) {
                    list.truncate(list.len() - closing.len());
                } else {
                    ops.extend(rules.into_iter().map(|rule| op(Action::Append(rule))));
                }
                let key = (table, name.to_string());
                self.needed.insert(key.clone());
                self.rules.insert(key, list.into_iter().collect());
            }
        }
    }

    /// Returns the steps after which the jumps from the kernel's chains are there,
    /// each in its place, and takes out those that are.
    fn jumps(&mut self, desired: &[Jump]) -> Vec<Op> {
        let mut ops = Vec::new();
        // Position, in its chain, of the jump that comes next; 0: a jump that has yet to be
        // inserted.
        let mut next = HashMap::new();
        // Each is put at the top, so the last comes first.
        for jump in desired.iter().rev() {
            let words = Words::of(&jump.rule, self.family);
            let there = self.observed.tables.get(&jump.table);
            let there = there.and_then(|table| table.jumps.get(jump.from));
            let position = there.and_then(|there| there.iter().position(|rule| *rule == words));
            let is_ours = |chain| self.observed.is_ours(jump.table, chain);
            let repeated = words.target().is_some_and(is_ours);
            let rules = there.into_iter().flatten().filter(|_| repeated);
            let times = rules.filter(|rule| **rule == words).count();
            let below = next.entry((jump.table, jump.from)).or_insert(usize::MAX);
            let op = |action| Op::new(jump.table, jump.from, action);
            let rule = || jump.rule.clone();
            match (jump.place, position) {
                (Place::InOrder | Place::Top, Some(_)) if times > 1 => {
                    ops.push(op(Action::Raise(rule(), times)));
                    *below = 0;
                }
                (Place::Top | Place::End, Some(_)) => {}
                (Place::InOrder, Some(position)) if position < *below => *below = position,
                (Place::InOrder, Some(_)) => {
                    ops.push(op(Action::Raise(rule(), 1)));
                    *below = 0;
                }
                (Place::InOrder | Place::Top, None) => {
                    ops.push(op(Action::Insert(rule())));
                    *below = 0;
                }
                (Place::End, None) => ops.push(op(Action::Append(rule()))),
            }
        }
        for jump in desired {
            let words = Words::of(&jump.rule, self.family);
            if let Some(there) = self.table(jump.table).jumps.get_mut(jump.from) {
                // Of copies of a jump at the end of its chain, the last one stays after the others
                // are deleted.
                match there.iter().position(|rule| *rule == words) {
                    Some(position) if jump.place == Place::End => drop(there.remove(position)),
                    _ => there.retain(|rule| *rule != words),
                }
            }
        }
        ops
    }

    /// Plans the steps that delete jumps from the kernel's chains to ours if they are not desired,
    /// or duplicates.
    pub fn stale_jumps(&mut self) -> Vec<Op> {
        let mut ops = Vec::new();
        for table in Table::ALL {
            for from in BASE_CHAINS {
                let jumps = self.table(table).jumps.remove(from).unwrap_or_default();
                for words in jumps {
                    let target = words.target();
                    if target.is_some_and(|chain| self.observed.is_ours(table, chain)) {
                        ops.push(Op::new(table, from, Action::Remove(words)));
                    }
                }
            }
        }
        ops
    }

    /// Plans the steps that delete rules of shared chains of table nat that jump to one of `chains`
    /// and were not taken out: their owner no longer needs them.
    pub fn stale_leads(&mut self, chains: &[&str]) -> Vec<Op> {
        if self.leads.is_none() {
            self.leads = Some(self.leads());
        }
        let mut ops = Vec::new();
        for to in chains {
            let leads = self.leads.as_mut().and_then(|leads| leads.remove(*to));
            for Lead { chain, words } in leads.unwrap_or_default() {
                let there = self.rules.get_mut(&(Table::Nat, chain.clone()));
                let count = there.map_or(0, |rules| rules.take_all(&words));
                let remove = Op::new(Table::Nat, chain, Action::Remove(words));
                ops.extend(std::iter::repeat_n(remove, count));
            }
        }
        ops.sort_by(by_place);
        ops
    }

    fn leads(&self) -> HashMap<String, Vec<Lead>> {
        let mut leads = HashMap::<_, Vec<_>>::new();
        for ((table, chain), rules) in &self.rules {
            if *table != Table::Nat || !self.observed.is_ours(*table, chain) {
                continue;
            }
            for words in rules.iter() {
                if let Some(to) = words.target() {
                    let (chain, words) = (chain.clone(), words.clone());
                    let there = leads.entry(to.to_owned()).or_default();
                    there.push(Lead { chain, words });
                }
            }
        }
        leads
    }

    /// Plans the steps that delete everything that no owner needed, in an order in which no rule
    /// jumps any more to a chain that is deleted. `distance` says how far a chain is from the
    /// shared ones, by its name: nearer chains jump to it. All steps at the distance of shared
    /// chains (0) make one group; of the others, each `together` make one.
    pub fn stale<O>(&mut self, distance: fn(&str) -> u8, together: usize) -> Vec<Group<O>> {
        let mut ops = self.stale_jumps();
        for ((table, chain), rules) in &self.rules {
            if !self.observed.is_ours(*table, chain) {
                continue;
            }
            let op = |action| Op::new(*table, chain, action);
            if !self.needed.contains(&(*table, chain.clone())) {
                ops.push(op(Action::Delete));
                continue;
            }
            ops.extend(rules.iter().map(|words| op(Action::Remove(words.clone()))));
        }
        for (table, observed) in self.observed.tables.drain() {
            let chains = observed.digests.into_keys();
            ops.extend(chains.map(|chain| Op::new(table, chain, Action::Delete)));
        }
        let distance = |op: &Op| match op.action {
            Action::Delete => distance(&op.chain),
            _ => 0,
        };
        // The same tables take the same steps in the same order.
        ops.sort_by(|a, b| distance(a).cmp(&distance(b)).then_with(|| by_place(a, b)));
        let (shared, own) = ops.split_at(ops.partition_point(|op| distance(op) == 0));
        let groups = std::iter::once(shared).chain(own.chunks(together));
        let groups = groups.filter(|ops| !ops.is_empty());
        groups.map(|ops| Group::common(ops.to_vec())).collect()
    }
}

impl Baseline for Comparison {
    /// For a chain that is compared rule by rule, it is enough that it is there.
    fn take_chain(&mut self, chain: &Chain) -> bool {
        if let Some(digest) = self.table(chain.table).digests.remove(&chain.name) {
            return digest == Digest::of(&chain.rules, self.family);
        }
        let key = (chain.table, chain.name.clone());
        let is_there = self.rules.contains_key(&key);
        if is_there {
            self.needed.insert(key);
        }
        is_there
    }

    fn take_entry(&mut self, entry: &Entry) -> bool {
        let words = Words::of(&entry.rule, self.family);
        let chain = (entry.table, entry.chain.clone());
        let rules = self.rules.get_mut(&chain);
        rules.is_some_and(|rules| rules.take(&words))
    }

    fn take_repeats(&mut self, entry: &Entry) -> usize {
        if entry.table != Table::Nat {
            return 0;
        }
        let words = Words::of(&entry.rule, self.family);
        let chain = (entry.table, entry.chain.clone());
        let rules = self.rules.get_mut(&chain);
        rules.map_or(0, |rules| rules.take_all(&words))
    }
}

/// Orders deletions by what they delete.
fn by_place(one: &Op, other: &Op) -> Ordering {
    fn place(op: &Op) -> (Table, &str, &str) {
        let words = match &op.action {
            Action::Remove(words) => words.text(),
            _ => "",
        };
        (op.table, &op.chain, words)
    }
    place(one).cmp(&place(other))
}

#[cfg(test)]
mod tests;
