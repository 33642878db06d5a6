//! One copy of each string that many objects repeat.

use std::sync::Arc;

use hashbrown::HashSet;

/// Shares equal strings: namespaces, node names, zones and port names are few,
/// but every object repeats them.
#[derive(Debug, Default)]
pub struct Names {
    seen: HashSet<Arc<str>>,
    forget_at: usize,
}

impl Names {
    /// Returns the shared copy of `name`.
    pub fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(seen) = self.seen.get(name) {
            return Arc::clone(seen);
        }
        // Names come and go with pods; forgetting when the set has doubled
        // keeps the cost of a new name constant on average.
        if self.seen.len() >= self.forget_at.max(1024) {
            self.seen.retain(|name| Arc::strong_count(name) > 1);
            self.forget_at = self.seen.len() * 2;
        }
        let shared: Arc<str> = Arc::from(name);
        self.seen.insert(Arc::clone(&shared));
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
    fn names_that_nobody_uses_are_forgotten() {
        let mut names = Names::default();
        let kept = names.share("kept");
        for i in 0..100_000 {
            names.share(&format!("pod-{i}"));
        }
        assert!(names.seen.len() < 5_000, "{} names", names.seen.len());
        assert!(Arc::ptr_eq(&kept, &names.share("kept")));
    }
}
