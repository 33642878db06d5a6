//! The progress of following the objects, for the API and for probes.

use std::{collections::BTreeMap, net::IpAddr};

use parking_lot::Mutex;

use crate::{services::ObjectName, trouble::Trouble};

/// Whether the objects of each kind are known, and why they cannot be followed.
#[derive(Debug, Default)]
pub struct SourceHealth {
    kinds: Mutex<BTreeMap<&'static str, KindHealth>>,
    /// Objects that cannot be used as they are.
    unusable: Mutex<BTreeMap<ObjectName, Unusable>>,
}

/// An object that cannot be used as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// Why it cannot be used.
    pub trouble: Trouble,
    /// Whether an earlier version of the object stays in use.
    pub stays: bool,
    /// The addresses that the object names, as far as they can be read.
    pub addresses: Vec<IpAddr>,
}

/// The state of following one kind of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindHealth {
    /// Whether all objects were known once; the last known ones stay in use.
    pub complete: bool,
    /// Number of objects in the last list, so far if it is incomplete.
    pub listed: usize,
    /// Whether nothing can be served before they are known.
    pub required: bool,
    /// Why the objects cannot be followed now; `None` if they are being followed.
    pub trouble: Option<Trouble>,
    /// Why some objects cannot be used as they are now; their last good versions stay in use, and
    /// the others are followed.
    pub faults: Vec<String>,
}

/// Maximum number of faults that are listed; further ones are counted.
const NAMED: usize = 20;

impl SourceHealth {
    /// Snapshot of each kind that is followed, by its name.
    pub fn kinds(&self) -> BTreeMap<&'static str, KindHealth> {
        self.kinds.lock().clone()
    }

    /// Returns the objects that cannot be used as they are.
    pub fn unusable(&self) -> BTreeMap<ObjectName, Unusable> {
        self.unusable.lock().clone()
    }

    /// Explains why that object cannot be used as it is; `None` if it can, or if there is none.
    pub fn unusable_object(&self, name: &ObjectName) -> Option<Unusable> {
        self.unusable.lock().get(name).cloned()
    }

    /// Records that an object cannot be used as it is.
    pub(super) fn cannot_use(
        &self,
        name: ObjectName,
        why: String,
        stays: bool,
        addresses: Vec<IpAddr>,
    ) {
        let mut unusable = self.unusable.lock();
        let before = unusable.remove(&name).map(|before| before.trouble);
        let unusable_now = Unusable {
            trouble: Trouble::now(before, why),
            stays,
            addresses,
        };
        unusable.insert(name, unusable_now);
    }

    /// Records that an object can be used, or is gone.
    pub(super) fn can_use(&self, name: &ObjectName) {
        self.unusable.lock().remove(name);
    }

    /// Records that `kind` is followed from now on, and whether it is
    /// [required](KindHealth::required).
    pub(super) fn begins(&self, kind: &'static str, required: bool) {
        self.kinds.lock().entry(kind).or_default().required = required;
    }

    /// Records that `kind` is being followed without trouble.
    pub(super) fn works(&self, kind: &'static str) {
        self.kinds.lock().entry(kind).or_default().trouble = None;
    }

    /// Records how many objects of `kind` a list has brought so far.
    pub(super) fn listed(&self, kind: &'static str, objects: usize) {
        self.kinds.lock().entry(kind).or_default().listed = objects;
    }

    /// Records that all objects of `kind` are known, or as many as ever will be.
    pub(super) fn is_complete(&self, kind: &'static str) {
        self.kinds.lock().entry(kind).or_default().complete = true;
    }

    /// Records why some objects of `kind` cannot be used now.
    pub(super) fn has_faults<'a>(
        &self,
        kind: &'static str,
        faults: impl IntoIterator<Item = &'a str>,
    ) {
        let mut faults = faults.into_iter();
        let mut named: Vec<String> = faults.by_ref().take(NAMED).map(str::to_owned).collect();
        match faults.count() {
            0 => {}
            more => named.push(format!("{more} more; the log has all of them")),
        }
        self.kinds.lock().entry(kind).or_default().faults = named;
    }

    /// Records why `kind` cannot be followed.
    pub(super) fn fails(&self, kind: &'static str, why: impl Into<String>) {
        let mut kinds = self.kinds.lock();
        let trouble = &mut kinds.entry(kind).or_default().trouble;
        *trouble = Some(Trouble::now(trouble.take(), why.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_has_its_beginning_and_its_last_reason_until_it_is_over() {
        let health = SourceHealth::default();
        health.begins("Services", true);
        health.fails("Services", "refused");
        let begun = health.kinds()["Services"].trouble.clone().expect("trouble");
        health.fails("Services", "no answer");
        let kinds = health.kinds();
        let trouble = kinds["Services"].trouble.as_ref().expect("trouble");
        assert_eq!((trouble.since, &*trouble.why), (begun.since, "no answer"));
        assert!(!kinds["Services"].complete);
        health.listed("Services", 2);
        health.is_complete("Services");
        health.works("Services");
        let expected = KindHealth {
            complete: true,
            listed: 2,
            required: true,
            trouble: None,
            faults: Vec::new(),
        };
        assert_eq!(health.kinds()["Services"], expected);
    }
}
