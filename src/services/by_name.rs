//! Objects that are found by their own names, which are stored only once.

use std::{
    hash::{BuildHasher, Hash},
    mem,
    sync::Arc,
};

use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};

/// An object that contains its name.
pub trait Named {
    /// The name by which it is found in a [`ByName`].
    type Name: Eq + Hash;

    /// Returns its name.
    fn own_name(&self) -> &Self::Name;
}

impl<T: Named> Named for Arc<T> {
    type Name = T::Name;

    fn own_name(&self) -> &T::Name {
        (**self).own_name()
    }
}

/// A table of objects, with at most one of each name.
#[derive(Clone, Debug)]
pub struct ByName<T> {
    objects: HashTable<T>,
    hasher: DefaultHashBuilder,
}

impl<T> Default for ByName<T> {
    fn default() -> Self {
        ByName {
            objects: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
        }
    }
}

impl<T: Named> ByName<T> {
    /// Finds the object of that name.
    pub fn get(&self, name: &T::Name) -> Option<&T> {
        let hash = self.hasher.hash_one(name);
        self.objects.find(hash, |one| one.own_name() == name)
    }

    /// Finds the object of that name. It must keep the name.
    pub fn get_mut(&mut self, name: &T::Name) -> Option<&mut T> {
        let hash = self.hasher.hash_one(name);
        self.objects.find_mut(hash, |one| one.own_name() == name)
    }

    /// Adds an object. Returns the object of the same name that it replaces.
    pub fn insert(&mut self, object: T) -> Option<T> {
        let (name, hasher) = (object.own_name(), &self.hasher);
        let is_of_name = |one: &T| one.own_name() == name;
        let rehash = |one: &T| hasher.hash_one(one.own_name());
        match self
            .objects
            .entry(hasher.hash_one(name), is_of_name, rehash)
        {
            Entry::Occupied(mut known) => Some(mem::replace(known.get_mut(), object)),
            Entry::Vacant(place) => {
                place.insert(object);
                None
            }
        }
    }

    /// Removes the object of that name, and returns it.
    pub fn remove(&mut self, name: &T::Name) -> Option<T> {
        let hash = self.hasher.hash_one(name);
        let found = self.objects.find_entry(hash, |one| one.own_name() == name);
        found.ok().map(|entry| entry.remove().0)
    }

    /// Removes the objects for which `keep` returns false.
    pub fn retain(&mut self, keep: impl FnMut(&mut T) -> bool) {
        self.objects.retain(keep);
    }

    /// Releases the memory of objects that were removed.
    pub fn shrink_to_fit(&mut self) {
        let hasher = &self.hasher;
        let rehash = |one: &T| hasher.hash_one(one.own_name());
        self.objects.shrink_to_fit(rehash);
    }

    /// Returns all objects, in no particular order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.objects.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Object(u8, u8);

    impl Named for Object {
        type Name = u8;

        fn own_name(&self) -> &u8 {
            &self.0
        }
    }

    proptest! {
        #[test]
        fn it_holds_what_a_map_holds(
            steps in prop::collection::vec((0..4u8, 0..40u8, any::<u8>()), 0..200)
        ) {
            let mut table = ByName::default();
            let mut map = BTreeMap::new();
            for (step, name, value) in steps {
                let object = Object(name, value);
                match step {
                    0 | 1 => prop_assert_eq!(table.insert(object.clone()), map.insert(name, object)),
                    2 => prop_assert_eq!(table.remove(&name), map.remove(&name)),
                    _ => {
                        table.retain(|object: &mut Object| object.1 >= value);
                        map.retain(|_, object| object.1 >= value);
                        table.shrink_to_fit();
                    }
                }
                prop_assert_eq!(table.get(&name), map.get(&name));
                prop_assert_eq!(table.get_mut(&name), map.get_mut(&name));
                prop_assert_eq!(table.iter().len(), map.len());
                let mut all: Vec<_> = table.iter().cloned().collect();
                all.sort_by_key(|object| object.0);
                prop_assert!(all.iter().eq(map.values()));
            }
        }
    }
}
