//! Values with the number of times that they are there.

use std::{borrow::Borrow, hash::Hash, iter};

use hashbrown::HashMap;

/// Values, each as often as it is there, in no order.
#[derive(Clone, Debug)]
pub struct Multiset<T>(HashMap<T, usize>);

impl<T: Eq + Hash> Multiset<T> {
    /// Takes out `value` once. Returns false if there was none left.
    pub fn take<Q: Eq + Hash>(&mut self, value: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        let count = self.0.get_mut(value).filter(|count| **count > 0);
        count.map(|count| *count -= 1).is_some()
    }

    /// Takes out `value` as often as it is there. Returns how often that was.
    pub fn take_all<Q: Eq + Hash>(&mut self, value: &Q) -> usize
    where
        T: Borrow<Q>,
    {
        self.0.remove(value).unwrap_or(0)
    }

    /// Returns each value as often as it is there.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let counts = self.0.iter();
        counts.flat_map(|(value, count)| iter::repeat_n(value, *count))
    }
}

impl<T: Eq + Hash> FromIterator<T> for Multiset<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Multiset<T> {
        let mut counts = HashMap::new();
        for value in values {
            *counts.entry(value).or_default() += 1;
        }
        Multiset(counts)
    }
}
