//! ServicePorts that could not be applied, each with the reason.

use std::{collections::BTreeMap, ops::Deref, sync::Arc};

use crate::services::ServicePortName;

/// Shared by those who keep it, and copied only when it changes: a sync that changes
/// nothing of it costs the same with one failed ServicePort as with thousands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedPorts(Arc<BTreeMap<ServicePortName, String>>);

impl FailedPorts {
    /// Records that `name` could not be applied. Reasons add up.
    pub fn add(&mut self, name: ServicePortName, why: String) {
        let reasons = Arc::make_mut(&mut self.0).entry(name).or_default();
        if reasons.is_empty() {
            *reasons = why;
        } else {
            reasons.push_str("; ");
            reasons.push_str(&why);
        }
    }

    /// Adds the failures of `others`.
    pub fn add_all(&mut self, others: &FailedPorts) {
        if self.is_empty() {
            self.clone_from(others);
            return;
        }
        for (name, why) in others.iter() {
            self.add(name.clone(), why.clone());
        }
    }

    /// Records that `name` has not failed, or that this does not matter any more.
    pub fn remove(&mut self, name: &ServicePortName) {
        if self.contains_key(name) {
            Arc::make_mut(&mut self.0).remove(name);
        }
    }

    /// Returns true if `other` is known to be the same without a comparison.
    pub fn is_shared_with(&self, other: &FailedPorts) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.is_empty() && other.is_empty())
    }

    /// Returns the names that `now` does not contain any more.
    pub fn over(&self, now: &FailedPorts) -> Vec<&ServicePortName> {
        if self.is_shared_with(now) {
            return Vec::new();
        }
        let names = self.keys();
        names.filter(|name| !now.contains_key(*name)).collect()
    }
}

impl FromIterator<(ServicePortName, String)> for FailedPorts {
    fn from_iter<I: IntoIterator<Item = (ServicePortName, String)>>(failed: I) -> FailedPorts {
        let mut all = FailedPorts::default();
        for (name, why) in failed {
            all.add(name, why);
        }
        all
    }
}

impl Deref for FailedPorts {
    type Target = BTreeMap<ServicePortName, String>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::service_ports::port_name;

    fn failed(ports: &[&str]) -> FailedPorts {
        let failed = ports
            .iter()
            .map(|port| (port_name(port), "busy".to_owned()));
        failed.collect()
    }

    #[test]
    fn it_is_shared_until_it_changes() {
        let before = failed(&["a", "b"]);
        let mut now = before.clone();
        now.remove(&port_name("other"));
        assert!(now.is_shared_with(&before) && before.over(&now).is_empty());
        now.remove(&port_name("b"));
        assert!(!now.is_shared_with(&before));
        assert_eq!(before.over(&now), [&port_name("b")]);
        assert_eq!(before.len(), 2, "a copy changed");
    }

    #[test]
    fn reasons_add_up() {
        let mut all = failed(&["a"]);
        all.add_all(&failed(&["a", "b"]));
        let reasons: Vec<_> = all.values().map(String::as_str).collect();
        assert_eq!(reasons, ["busy; busy", "busy"]);
        let mut none = FailedPorts::default();
        none.add_all(&all);
        assert!(none.is_shared_with(&all));
    }
}
