//! How many frontends use each object in the kernel.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashMap;

use super::plan::Object;

/// Counts users. Keeps hashes instead of objects: there are several objects for
/// each frontend, which together would be the largest thing about it. That two
/// among a million have the same hash of 64 bits is as likely as one in
/// 37 million, with a key of our own nobody can bring it about, and it would
/// keep one object too long.
#[derive(Default)]
pub struct Uses {
    users: HashMap<u64, u32>,
    key: RandomState,
}

impl Uses {
    /// How many use `object`.
    pub fn of(&self, object: &Object) -> u32 {
        let users = self.users.get(&self.key.hash_one(object));
        users.copied().unwrap_or(0)
    }

    /// One more uses it.
    pub fn add(&mut self, object: &Object) {
        *self.users.entry(self.key.hash_one(object)).or_default() += 1;
    }

    /// One less uses it.
    pub fn release(&mut self, object: &Object) {
        let hash = self.key.hash_one(object);
        if let Some(users) = self.users.get_mut(&hash) {
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.users.remove(&hash);
            }
        }
    }

    /// Nobody uses anything.
    pub fn clear(&mut self) {
        self.users = HashMap::new();
    }
}
