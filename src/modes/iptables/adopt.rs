//! The difference between what the kernel holds and what it should.
//!
//! Nothing is flushed to begin with: what is right stays, so that connections
//! and a predecessor's rules live on until ours are in. Compared are the
//! chains of ServicePorts by a digest, and shared chains rule by rule in any
//! order. Chains and rules of others are not looked at.

use hashbrown::{HashMap, HashSet};

use super::{
    change::{Group, Op},
    plan::{Chain, Entry, Fixed, ServiceRules, Step, names},
};
use crate::{
    kernel::xtables::{
        rule::{BASE_CHAINS, Table},
        saved::{Digest, Saved, target},
    },
    net::Family,
};

/// Chains of ServicePorts and endpoints, and of kube-proxy's before 1.24.
const OWNED: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
    "KUBE-XLB-",
];
/// Of those, the ones that ServicePorts share.
const INDEX: &str = "KUBE-SVC-IDX-";
/// Chains that do not depend on Services.
const FIXED: [&str; 8] = [
    names::SERVICES,
    names::EXTERNAL_SERVICES,
    names::NODE_PORTS,
    names::PROXY_FIREWALL,
    names::POSTROUTING,
    names::MARK_MASQ,
    names::FORWARD,
    names::CANARY,
];

/// Whether a chain belongs to this mode, by its name. The kubelet's
/// KUBE-FIREWALL does not.
pub fn is_ours(chain: &str) -> bool {
    FIXED.contains(&chain) || OWNED.iter().any(|prefix| chain.starts_with(prefix))
}

/// Whether the words of a chain's rules matter.
pub fn by_rule(chain: &str) -> bool {
    let owned = OWNED.iter().any(|prefix| chain.starts_with(prefix));
    chain.starts_with(INDEX)
        || !owned && (is_ours(chain) || BASE_CHAINS.contains(&chain) || chain == names::FIREWALL)
}

/// What the kernel held; what was found to be right is taken out.
#[derive(Debug)]
pub struct Adoption {
    tables: HashMap<Table, Present>,
    family: Family,
}

#[derive(Debug, Default)]
struct Present {
    /// Chains that are compared by digest.
    chains: HashMap<String, Digest>,
    /// Shared and base chains: how often each rule is there.
    shared: HashMap<String, HashMap<String, usize>>,
    /// Of those, the ones that are needed.
    needed: HashSet<String>,
}

impl Adoption {
    /// Of the tables as they were read.
    pub fn new(family: Family) -> Adoption {
        let tables = HashMap::new();
        Adoption { tables, family }
    }

    /// Adds a table as it was read. What does not depend on Services is
    /// compared first: answers with the steps that it takes.
    pub fn table(&mut self, table: Table, saved: Saved, fixed: &Fixed) -> Vec<Op> {
        let mut present = Present::default();
        let mut ops = Vec::new();
        let mut lists = HashMap::new();
        for (name, chain) in saved.chains {
            match chain.rules {
                Some(rules) => {
                    lists.insert(name, rules);
                }
                None if is_ours(&name) => {
                    present.chains.insert(name, chain.digest);
                }
                None => {}
            }
        }
        for chain in fixed.chains.iter().filter(|chain| chain.table == table) {
            let list = lists.remove(&chain.name);
            let list = self.fixed(chain, list, fixed, &mut ops);
            present.needed.insert(chain.name.clone());
            present.shared.insert(chain.name.clone(), list);
        }
        ops.extend(self.jumps(table, &lists, fixed));
        for (name, rules) in lists {
            present.shared.insert(name, counted(rules));
        }
        for jump in fixed.jumps.iter().filter(|jump| jump.table == table) {
            present.take(jump.from, &jump.rule.words(self.family).to_string());
        }
        self.tables.insert(table, present);
        ops
    }

    /// The steps after which the jumps from the kernel's chains are there, in
    /// their order: what keeps out comes before what lets through. ipvs mode
    /// has some of them too, in the same words, among others.
    fn jumps(&self, table: Table, lists: &HashMap<String, Vec<String>>, fixed: &Fixed) -> Vec<Op> {
        let mut ops = Vec::new();
        // Where in its chain the jump stands that comes next; 0: one that is
        // to be put there.
        let mut next = HashMap::new();
        // Each goes to the top: the last first.
        for jump in fixed.jumps.iter().rev().filter(|jump| jump.table == table) {
            let words = jump.rule.words(self.family).to_string();
            let list = lists.get(jump.from).map_or(&[][..], Vec::as_slice);
            let place = list.iter().position(|rule| *rule == words);
            let entry = Entry {
                table,
                chain: jump.from.to_owned(),
                rule: jump.rule.clone(),
            };
            let below = next.entry(jump.from).or_insert(usize::MAX);
            match place {
                // The kubelet's stays where it put it.
                Some(_) if target(&words) == Some(names::FIREWALL) => {}
                Some(place) if place < *below => *below = place,
                Some(_) => {
                    ops.push(Op::Raise(entry));
                    *below = 0;
                }
                None => {
                    ops.push(Op::Insert(entry));
                    *below = 0;
                }
            }
        }
        ops
    }

    /// Compares one of the fixed chains; answers with the rules in it that are
    /// not fixed.
    fn fixed(
        &self,
        chain: &Chain,
        list: Option<Vec<String>>,
        fixed: &Fixed,
        ops: &mut Vec<Op>,
    ) -> HashMap<String, usize> {
        let family = self.family;
        let words = |rule: &crate::kernel::xtables::rule::Rule| rule.words(family).to_string();
        let of_chain = |tail: &&Entry| tail.table == chain.table && tail.chain == chain.name;
        let tails: Vec<&Entry> = fixed.tails.iter().filter(of_chain).collect();
        let append = |ops: &mut Vec<Op>| {
            ops.extend(tails.iter().map(|tail| Op::Append((*tail).clone())));
        };
        let Some(mut list) = list else {
            ops.push(Op::Fill(chain.clone()));
            append(ops);
            return HashMap::new();
        };
        let rules: Vec<String> = chain.rules.iter().map(words).collect();
        if chain.name == names::FIREWALL {
            for (rule, words) in chain.rules.iter().zip(&rules) {
                if !list.contains(words) {
                    ops.push(Op::Append(Entry {
                        table: chain.table,
                        chain: chain.name.clone(),
                        rule: rule.clone(),
                    }));
                }
            }
            // Others' rules there are nobody's business.
            return HashMap::new();
        }
        if !rules.is_empty() {
            if list != rules {
                ops.push(Op::Fill(chain.clone()));
            }
            return HashMap::new();
        }
        let closing: Vec<String> = tails.iter().map(|tail| words(&tail.rule)).collect();
        let once = |tail| list.iter().filter(|rule| *rule == tail).count() == 1;
        if list.ends_with(&closing) && closing.iter().all(once) {
            list.truncate(list.len() - closing.len());
        } else {
            append(ops);
        }
        counted(list)
    }

    /// The steps that a ServicePort takes in `table`.
    pub fn port(&mut self, table: Table, rules: &ServiceRules) -> Vec<Op> {
        let family = self.family;
        let mut ops = Vec::new();
        let present = self.tables.entry(table).or_default();
        for chain in rules.chains.iter().filter(|chain| chain.table == table) {
            let mut digest = Digest::default();
            for rule in &chain.rules {
                digest.add(&rule.words(family).to_string());
            }
            if present.chains.remove(&chain.name) != Some(digest) {
                ops.push(Op::Fill(chain.clone()));
            }
        }
        let entries = rules.entries.iter().filter(|entry| entry.table == table);
        for entry in entries.rev() {
            if !present.take(&entry.chain, &entry.rule.words(family).to_string()) {
                ops.push(Op::Insert(entry.clone()));
            }
        }
        ops
    }

    /// What it takes for a step of the index to be there.
    pub fn step(&mut self, step: &Step) -> Vec<Op> {
        let mut ops = Vec::new();
        let present = self.tables.entry(step.table).or_default();
        present.needed.insert(step.to.clone());
        if !present.shared.contains_key(&step.to) {
            present.shared.insert(step.to.clone(), HashMap::new());
            ops.push(Op::Fill(Chain {
                table: step.table,
                name: step.to.clone(),
                rules: Vec::new(),
            }));
        }
        let entry = entry(step);
        if !present.take(&entry.chain, &entry.rule.words(self.family).to_string()) {
            ops.push(Op::Insert(entry));
        }
        ops
    }

    /// The steps that take away what nobody needed, in an order in which
    /// nothing leads any more to what goes; of those that keep it one by one,
    /// `together` make a group.
    pub fn rest(self, together: usize) -> Vec<Group> {
        let mut ops = Vec::new();
        for (table, present) in self.tables {
            let kept = |chain: &str| present.needed.contains(chain);
            for (chain, rules) in &present.shared {
                if !kept(chain) && is_ours(chain) {
                    ops.push(Op::Delete {
                        table,
                        chain: chain.clone(),
                    });
                    continue;
                }
                for (words, count) in rules {
                    let ours = is_ours(chain) || target(words).is_some_and(is_ours);
                    for _ in 0..if ours { *count } else { 0 } {
                        ops.push(Op::Remove {
                            table,
                            chain: chain.clone(),
                            words: words.clone(),
                        });
                    }
                }
            }
            let chains = present.chains.into_keys();
            ops.extend(chains.map(|chain| Op::Delete { table, chain }));
        }
        ops.sort_by_key(depth);
        // Parts of the index lead to each other.
        let (shared, own) = ops.split_at(ops.partition_point(|op| depth(op) == 0));
        let groups = std::iter::once(shared).chain(own.chunks(together));
        let groups = groups.filter(|ops| !ops.is_empty()).map(|ops| Group {
            owner: None,
            ops: ops.to_vec(),
        });
        groups.collect()
    }
}

impl Present {
    /// Takes one rule out; false if it was not there.
    fn take(&mut self, chain: &str, words: &str) -> bool {
        match self.shared.get_mut(chain).and_then(|c| c.get_mut(words)) {
            Some(count) if *count > 0 => {
                *count -= 1;
                true
            }
            _ => false,
        }
    }
}

/// How far from what is shared something is: what is less far leads to it.
fn depth(op: &Op) -> u8 {
    let Op::Delete { chain, .. } = op else {
        return 0;
    };
    let is = |prefix: &str| chain.starts_with(prefix);
    match () {
        () if is(INDEX) => 0,
        () if is("KUBE-SEP-") => 4,
        () if is("KUBE-SVC-") || is("KUBE-SVL-") => 3,
        () if is("KUBE-EXT-") || is("KUBE-XLB-") => 2,
        () => 1,
    }
}

/// The jump of a step.
pub fn entry(step: &Step) -> Entry {
    Entry {
        table: step.table,
        chain: step.chain.clone(),
        rule: step.rule.clone(),
    }
}

fn counted(rules: Vec<String>) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for rule in rules {
        *counts.entry(rule).or_default() += 1;
    }
    counts
}
