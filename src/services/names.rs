//! Shares strings that many objects repeat.

use std::sync::Arc;

use hashbrown::HashSet;

/// Shares equal strings: namespaces, node names, zones and port names are few,
/// but every object repeats them.
#[derive(Debug, Default)]
pub struct Names {
    shared: HashSet<Arc<str>>,
    /// Size of the set at which unused names are dropped next.
    drop_unused_at: usize,
}

impl Names {
    /// Returns the shared copy of `name`.
    pub fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.shared.get(name) {
            return Arc::clone(known);
        }
        // Names come and go with pods; dropping unused ones when the set has
        // doubled keeps the cost of a new name constant on average.
        if self.shared.len() >= self.drop_unused_at.max(1024) {
            self.shared.retain(|name| Arc::strong_count(name) > 1);
            self.drop_unused_at = self.shared.len() * 2;
        }
        let shared: Arc<str> = Arc::from(name);
        self.shared.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one_string() {
        let mut names = Names::default();
        let first = names.share("kube-system");
        assert!(Arc::ptr_eq(&first, &names.share("kube-system")));
    }

    #[test]
    fn names_without_users_are_dropped() {
        let mut names = Names::default();
        let used = names.share("used");
        for i in 0..100_000 {
            names.share(&format!("pod-{i}"));
        }
        assert!(names.shared.len() < 5_000, "{} names", names.shared.len());
        assert!(Arc::ptr_eq(&used, &names.share("used")));
    }
}
