//! How many users each of some objects has.

use std::hash::Hash;

use hashbrown::HashMap;

/// Users that are added and removed in a change that is not made yet.
#[derive(Debug)]
pub struct Pending<'a, K> {
    references: &'a References<K>,
    deltas: HashMap<K, i32>,
}

impl<K: Eq + Hash> Pending<'_, K> {
    /// Counts one more user of `object`. Returns true if it is the first.
    pub fn add(&mut self, object: K) -> bool {
        let before = self.references.count(&object);
        let delta = self.deltas.entry(object).or_default();
        *delta += 1;
        before.saturating_add_signed(*delta) == 1
    }

    /// Counts one user less of `object`. Returns true if it was the last one.
    pub fn release(&mut self, object: K) -> bool {
        let before = self.references.count(&object);
        let delta = self.deltas.entry(object).or_default();
        if before.saturating_add_signed(*delta) == 0 {
            return false;
        }
        *delta -= 1;
        before.saturating_add_signed(*delta) == 0
    }

    /// Returns how many users more, or less, each object has then.
    pub fn deltas(self) -> HashMap<K, i32> {
        self.deltas
    }
}

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

    /// Counts one user less of `object`. Returns true if it was the last one.
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

    /// Returns a change in which no user is added or removed yet.
    pub fn pending(&self) -> Pending<'_, K> {
        Pending {
            references: self,
            deltas: HashMap::new(),
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

    #[test]
    fn users_of_a_change_count_before_it_is_made() {
        let mut references = References::default();
        references.change([(1, 1), (2, 2)]);
        let mut pending = references.pending();
        assert!(!pending.add(1) && pending.add(3) && !pending.add(3));
        assert!(!pending.release(1) && pending.release(1) && !pending.release(1));
        assert!(!pending.release(2) && !pending.release(4));
        let deltas = pending.deltas();
        references.change(deltas);
        let counts = [1, 2, 3, 4].map(|object| references.count(&object));
        assert_eq!(counts, [0, 1, 2, 0]);
    }
}
