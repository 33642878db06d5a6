//! How many users each of some objects has.

use std::hash::Hash;

use hashbrown::HashMap;

/// Counts the users of objects that several ServicePorts may need: an object is
/// made for its first user, and removed after its last one.
#[derive(Clone, Debug)]
pub struct References<K> {
    users: HashMap<K, u32>,
}

impl<K> Default for References<K> {
    fn default() -> References<K> {
        let users = HashMap::new();
        References { users }
    }
}

impl<K: Eq + Hash> References<K> {
    /// Counts one more user of `object`. Returns true if it is the first.
    pub fn add(&mut self, object: K) -> bool {
        let users = self.users.entry(object).or_default();
        *users = users.saturating_add(1);
        *users == 1
    }

    /// Counts one user of `object` less. Returns true if it was the last one.
    pub fn release(&mut self, object: &K) -> bool {
        let Some(users) = self.users.get_mut(object) else {
            return false;
        };
        *users -= 1;
        let last = *users == 0;
        if last {
            self.users.remove(object);
        }
        last
    }

    /// Counts as many users more, or less, as each of `deltas` says.
    pub fn change(&mut self, deltas: impl IntoIterator<Item = (K, i32)>) {
        for (object, delta) in deltas {
            match self.count(&object).saturating_add_signed(delta) {
                0 => drop(self.users.remove(&object)),
                users => drop(self.users.insert(object, users)),
            }
        }
    }

    /// Returns true if `object` has users.
    pub fn contains(&self, object: &K) -> bool {
        self.users.contains_key(object)
    }

    /// Returns how many users `object` has.
    pub fn count(&self, object: &K) -> u32 {
        self.users.get(object).copied().unwrap_or(0)
    }

    /// Returns the objects that have users.
    pub fn iter(&self) -> impl Iterator<Item = &K> {
        self.users.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_user_and_the_last_one_count() {
        let mut references = References::default();
        assert!(!references.release(&1), "it has no users");
        assert!(references.add(1) && !references.add(1));
        assert!(references.add(2));
        assert_eq!((references.count(&1), references.count(&3)), (2, 0));
        assert!(!references.release(&1) && references.contains(&1));
        assert!(references.release(&1) && !references.contains(&1));
        assert_eq!(references.iter().collect::<Vec<_>>(), [&2]);
        references.change([(2, 2), (3, 1)]);
        references.change([(2, -1), (3, -1)]);
        assert_eq!((references.count(&2), references.contains(&3)), (2, false));
    }
}
