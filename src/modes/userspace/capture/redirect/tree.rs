//! A search tree of chains, in which a packet is only compared with few of many rules: a chain has
//! few rules, or jumps to chains for parts of its keys. Pure.
//!
//! The contents of a chain only depend on the keys that start with its prefix: neither on other
//! keys nor on earlier contents. So a change of one key concerns the chains on the path to it, and
//! the same keys always give the same chains.
//!
//! Parts with no more than [`FEW`] keys are leaves. Larger parts are halved, up to four times in
//! one chain. Bits that all keys of a part have in common are skipped, but chains that jump start
//! at every fourth bit only, so that they stay when a key with fewer common bits is added: then
//! just another chain jumps to them.

use std::collections::{BTreeMap, BTreeSet};

use super::key::{Key, Prefix, STRIDE};

/// Maximum number of rules in a chain that does not jump.
pub const FEW: usize = 32;

/// Values by key.
#[derive(Debug)]
pub struct Tree<V> {
    /// The values, from whose keys the chains are derived.
    pub entries: BTreeMap<Key, V>,
}

/// One rule of a chain.
#[derive(Debug)]
pub enum Step<'a, V> {
    /// The rule of one value.
    Entry(&'a V),
    /// A jump to the chain with the values of a part.
    Jump {
        /// Common prefix of all keys of the part.
        within: Prefix,
        /// Prefix of the chain to which it jumps.
        to: Prefix,
    },
}

/// Chains of a tree.
#[derive(Debug)]
pub struct Chains<'a, V> {
    /// The step to the top chain, or the only step that replaces it.
    pub top: Option<Step<'a, V>>,
    /// The requested chains, each before the chain that jumps to it.
    pub asked: Vec<(Prefix, Vec<Step<'a, V>>)>,
    /// Other chains to which these jump.
    pub others: BTreeSet<Prefix>,
}

impl<V> Default for Tree<V> {
    fn default() -> Tree<V> {
        let entries = BTreeMap::new();
        Tree { entries }
    }
}

impl<V> Tree<V> {
    /// The `asked` chains, as far as all chains above them are asked for, too.
    pub fn chains(&self, asked: &dyn Fn(Prefix) -> bool) -> Chains<'_, V> {
        let mut chains = Chains {
            top: self.step(Prefix::ALL),
            asked: Vec::new(),
            others: BTreeSet::new(),
        };
        if let Some(Step::Jump { to, .. }) = chains.top {
            self.descend(to, asked, &mut chains);
        }
        chains
    }

    fn descend<'a>(&'a self, to: Prefix, asked: &dyn Fn(Prefix) -> bool, into: &mut Chains<'a, V>) {
        if !asked(to) {
            into.others.insert(to);
            return;
        }
        let steps = self.chain(to);
        for step in &steps {
            if let Step::Jump { to, .. } = step {
                self.descend(*to, asked, into);
            }
        }
        into.asked.push((to, steps));
    }

    /// The steps in the chain of `prefix`.
    fn chain(&self, prefix: Prefix) -> Vec<Step<'_, V>> {
        if self.is_large(prefix) {
            let mut steps = Vec::new();
            self.split(prefix, prefix.length() + STRIDE, &mut steps);
            return steps;
        }
        let entries = self.entries.range(prefix.keys());
        entries.map(|(_, value)| Step::Entry(value)).collect()
    }

    /// Adds the steps for the parts of `prefix`, which have at most `until` bits.
    fn split<'a>(&'a self, prefix: Prefix, until: u8, steps: &mut Vec<Step<'a, V>>) {
        for part in prefix.parts() {
            if part.length() < until && self.is_large(part) {
                self.split(part, until, steps);
            } else {
                steps.extend(self.step(part));
            }
        }
    }

    /// The step to the values of `part`; `None` if there are none.
    fn step(&self, part: Prefix) -> Option<Step<'_, V>> {
        let mut of_part = self.entries.range(part.keys());
        let (first, value) = of_part.next()?;
        let Some((last, _)) = of_part.next_back() else {
            return Some(Step::Entry(value));
        };
        let within = Prefix::common(*first, *last);
        let to = if self.is_large(part) {
            within.aligned()
        } else {
            part
        };
        Some(Step::Jump { within, to })
    }

    fn is_large(&self, prefix: Prefix) -> bool {
        self.entries.range(prefix.keys()).nth(FEW).is_some()
    }
}
