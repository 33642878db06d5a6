//! A search tree of chains, by which only few of many rules are tried: a chain has few
//! rules, or jumps to chains for parts of what it is for. Pure.
//!
//! What is in a chain follows from the keys that begin with its prefix, and from nothing
//! else: not from other keys, nor from what was there before. So a change of one key
//! concerns the chains on the way to it, and the same keys always give the same chains.
//!
//! Parts with no more than [`FEW`] keys are leaves. Larger ones are halved, up to four times in one
//! chain; bits that all keys of a part have in common are passed over, but chains that jump begin
//! at every fourth bit only, and so stay when a key with fewer of the bits in common is added: then
//! only another chain jumps to them.

use std::collections::{BTreeMap, BTreeSet};

use super::key::{Key, Prefix, STRIDE};

/// The most rules of a chain that jumps to no others.
pub const FEW: usize = 32;

/// Values by key.
#[derive(Debug)]
pub struct Tree<V> {
    /// The values, whose chains follow from their keys.
    pub entries: BTreeMap<Key, V>,
}

/// One rule of a chain.
#[derive(Debug)]
pub enum Step<'a, V> {
    /// The rule of one value.
    Entry(&'a V),
    /// A jump to the chain that has the values of a part.
    Jump {
        /// What all keys of the part begin with.
        within: Prefix,
        /// Prefix of the chain to which it jumps.
        to: Prefix,
    },
}

/// Chains of a tree.
#[derive(Debug)]
pub struct Chains<'a, V> {
    /// The step to the first of them, or the one that takes its place.
    pub top: Option<Step<'a, V>>,
    /// Those that were asked for, each before the one that jumps to it.
    pub asked: Vec<(Prefix, Vec<Step<'a, V>>)>,
    /// The others that these jump to.
    pub others: BTreeSet<Prefix>,
}

impl<V> Default for Tree<V> {
    fn default() -> Tree<V> {
        let entries = BTreeMap::new();
        Tree { entries }
    }
}

impl<V> Tree<V> {
    /// Returns the chains that are `asked` for, as far as all chains above them are, too.
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

    /// Returns what is in the chain of `prefix`.
    pub fn chain(&self, prefix: Prefix) -> Vec<Step<'_, V>> {
        if self.is_large(prefix) {
            let mut steps = Vec::new();
            self.split(prefix, prefix.length() + STRIDE, &mut steps);
            return steps;
        }
        let entries = self.entries.range(prefix.keys());
        entries.map(|(_, value)| Step::Entry(value)).collect()
    }

    /// Adds the steps for the parts of `prefix`, which have as many bits as `until` at most.
    fn split<'a>(&'a self, prefix: Prefix, until: u8, steps: &mut Vec<Step<'a, V>>) {
        for part in prefix.parts() {
            if part.length() < until && self.is_large(part) {
                self.split(part, until, steps);
            } else {
                steps.extend(self.step(part));
            }
        }
    }

    /// Returns the step to the values of `part`; `None`: there are none.
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
