//! The objects of one kind as last received from the server, and the changes that were not sent
//! yet.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::kind::Kind;
use crate::services::{ByName, Event, Named};

/// Maximum size of all objects of a kind, in bytes as [`Kind::size`] estimates them. A million
/// endpoints take 50 MB.
pub(super) const MOST_KEPT: usize = 128 << 20;

/// The objects of one kind.
///
/// Changes are remembered as a set of names, and sent as the current objects: however slow the
/// receiver, at most one change per object waits for it, and a storm of changes to one object
/// results in a single event.
pub(super) struct Known<K: Kind> {
    objects: ByName<Entry<K>>,
    /// Size in bytes of the objects in the last list and of those that watches brought since then.
    size: usize,
    unsent: HashSet<K::Name>,
    /// Changes from before a list was begun, with the object of that time; `None` if it was gone.
    before_list: HashMap<K::Name, Option<Arc<K>>>,
    /// Number of lists that have begun.
    list: u32,
    /// Whether a list is incomplete. Meanwhile nothing is sent: in half a list an endpoint may be
    /// gone from one slice and not yet be in the other.
    listing: bool,
    settled: bool,
}

struct Entry<K> {
    object: Arc<K>,
    /// Number of the last list that the object was in.
    list: u32,
    /// Number of the latest list when the object arrived.
    since: u32,
}

impl<K: Kind> Named for Entry<K> {
    type Name = K::Name;

    fn own_name(&self) -> &K::Name {
        self.object.own_name()
    }
}

impl<K: Kind> Known<K> {
    pub(super) fn new() -> Known<K> {
        Known {
            objects: ByName::default(),
            size: 0,
            unsent: HashSet::new(),
            before_list: HashMap::new(),
            list: 0,
            listing: true,
            settled: false,
        }
    }

    /// Begins a list. Objects that arrived in an unfinished one are forgotten, so that repeated
    /// unfinished lists do not fill the memory. Changes from before the list need not wait for its
    /// end.
    pub(super) fn begin_list(&mut self) {
        if self.listing {
            let (list, unsent) = (self.list, &mut self.unsent);
            self.objects.retain(|entry| {
                let was_there = entry.since != list;
                if !was_there {
                    unsent.remove(entry.own_name());
                }
                was_there
            });
        } else {
            for name in std::mem::take(&mut self.unsent) {
                let object = self.object(&name);
                self.before_list.insert(name, object);
            }
        }
        self.list = self.list.wrapping_add(1);
        self.size = 0;
        self.listing = true;
    }

    /// Returns the current version of an object; `None` if it is gone.
    fn object(&self, name: &K::Name) -> Option<Arc<K>> {
        let entry = self.objects.get(name)?;
        Some(Arc::clone(&entry.object))
    }

    /// Ends a complete list: objects that were not in it are gone.
    pub(super) fn end_list(&mut self) {
        let (list, unsent) = (self.list, &mut self.unsent);
        self.objects.retain(|entry| {
            let is_listed = entry.list == list;
            if !is_listed {
                unsent.insert(entry.own_name().clone());
            }
            is_listed
        });
        self.objects.shrink_to_fit();
        self.listing = false;
        self.settled = true;
    }

    /// Adds or replaces an object. Returns false if there is no room for it.
    pub(super) fn put(&mut self, object: K) -> bool {
        let (list, name) = (self.list, object.own_name().clone());
        let before = self.objects.get_mut(&name);
        let counted = before.as_ref().filter(|entry| entry.list == list);
        let counted = counted.map_or(0, |entry| entry.object.size());
        let size = self.size - counted + object.size();
        if size > MOST_KEPT {
            return false;
        }
        self.size = size;
        if let Some(entry) = before {
            entry.list = list;
            if *entry.object == object {
                return true;
            }
            entry.object = Arc::new(object);
        } else {
            let object = Arc::new(object);
            let since = list;
            self.objects.insert(Entry {
                object,
                list,
                since,
            });
        }
        self.unsent.insert(name);
        true
    }

    /// Counts an object as listed although its new version cannot be used: the previous version
    /// stays in use. Returns whether there is one.
    pub(super) fn preserve(&mut self, name: &K::Name) -> bool {
        let Some(entry) = self.objects.get_mut(name) else {
            return false;
        };
        if std::mem::replace(&mut entry.list, self.list) != self.list {
            self.size += entry.object.size();
        }
        true
    }

    /// Removes an object that is gone.
    pub(super) fn remove(&mut self, name: K::Name) {
        if let Some(entry) = self.objects.remove(&name) {
            if entry.list == self.list {
                self.size -= entry.object.size();
            }
            self.unsent.insert(name);
        }
    }

    /// Ends the wait for a first list: the server withholds these objects.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// Returns whether a first list was complete, or the server withholds the objects.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns whether there are changes to forward.
    pub(super) fn has_changes(&self) -> bool {
        !self.before_list.is_empty() || !self.listing && !self.unsent.is_empty()
    }

    /// Appends the changes to `events`, except those that an incomplete list brought.
    pub(super) fn send_changes(&mut self, events: &mut Vec<Event>) {
        let event = |name, object| match object {
            Some(object) => K::came(object),
            None => K::gone(name),
        };
        let before = std::mem::take(&mut self.before_list).into_iter();
        events.extend(before.map(|(name, object)| event(name, object)));
        if self.listing {
            return;
        }
        // The set itself is dropped: it is large after the first list.
        for name in std::mem::take(&mut self.unsent) {
            let object = self.object(&name);
            events.push(event(name, object));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Node;

    fn node(name: &str, zone: &str) -> Node {
        Node {
            name: name.into(),
            zone: Some(zone.into()),
            pod_cidrs: Box::default(),
            addresses: Box::default(),
            deleting: false,
            to_be_deleted: false,
            weight: None,
        }
    }

    fn put(known: &mut Known<Node>, name: &str, zone: &str) {
        assert!(known.put(node(name, zone)));
    }

    /// Returns the sent events, as `name=zone` or `-name`, sorted.
    fn sent(known: &mut Known<Node>) -> Vec<String> {
        let mut events = Vec::new();
        known.send_changes(&mut events);
        let mut sent: Vec<String> = events
            .into_iter()
            .map(|event| match event {
                Event::Node(node) => {
                    format!("{}={}", node.name, node.zone.as_deref().unwrap_or("?"))
                }
                Event::NodeGone(name) => format!("-{name}"),
                other => format!("{other:?}"),
            })
            .collect();
        sent.sort();
        sent
    }

    fn listed() -> Known<Node> {
        let mut known = Known::new();
        known.begin_list();
        for name in ["a", "b", "c"] {
            put(&mut known, name, "1");
        }
        assert!(!known.is_settled());
        assert_eq!(sent(&mut known), [""; 0], "half a list");
        known.end_list();
        assert_eq!(sent(&mut known), ["a=1", "b=1", "c=1"]);
        known
    }

    #[test]
    fn a_list_is_sent_whole_and_then_only_its_differences() {
        let mut known = listed();
        known.begin_list();
        put(&mut known, "a", "1");
        put(&mut known, "b", "2");
        assert_eq!(sent(&mut known), [""; 0], "half a list");
        // It broke off; the next one is complete, and c is not in it.
        known.begin_list();
        put(&mut known, "b", "2");
        put(&mut known, "d", "1");
        known.preserve(&"a".into());
        assert!(!known.has_changes());
        known.end_list();
        assert!(known.has_changes());
        assert_eq!(sent(&mut known), ["-c", "b=2", "d=1"]);
        assert_eq!(sent(&mut known), [""; 0]);
    }

    #[test]
    fn what_changed_before_a_list_does_not_wait_for_its_end() {
        let mut known = listed();
        put(&mut known, "b", "2");
        known.remove("c".into());
        known.begin_list();
        put(&mut known, "b", "3");
        assert!(known.has_changes());
        assert_eq!(sent(&mut known), ["-c", "b=2"]);
        assert!(!known.has_changes(), "half a list");
        known.preserve(&"a".into());
        known.end_list();
        assert_eq!(sent(&mut known), ["b=3"]);
    }

    #[test]
    fn a_storm_is_sent_once_and_no_change_not_at_all() {
        let mut known = listed();
        put(&mut known, "a", "1");
        assert!(!known.has_changes());
        for zone in ["2", "3", "4"] {
            put(&mut known, "b", zone);
        }
        known.remove("c".into());
        known.remove("c".into());
        known.remove("unknown".into());
        assert_eq!(sent(&mut known), ["-c", "b=4"]);
    }

    /// A node of about 20 MB.
    fn large(name: &str) -> Node {
        let networks = vec!["10.0.0.0/24".parse().expect("a network"); 1 << 20];
        Node {
            pod_cidrs: networks.into(),
            ..node(name, "1")
        }
    }

    #[test]
    fn objects_beyond_what_fits_are_refused() {
        let mut known = listed();
        for attempt in ["x", "y"] {
            known.begin_list();
            let fit = (0..20).take_while(|i| known.put(large(&format!("{attempt}{i}"))));
            let fit = fit.count();
            assert!((2..10).contains(&fit), "{fit}");
        }
        // The objects of unfinished lists are forgotten.
        known.begin_list();
        for name in ["a", "b", "c"] {
            put(&mut known, name, "1");
        }
        known.end_list();
        assert_eq!(sent(&mut known), [""; 0]);
        // The same limit holds for objects that watches bring; a deleted one makes room.
        let fit = (0..20).take_while(|i| known.put(large(&format!("z{i}"))));
        let fit = fit.count();
        assert!(!known.put(large("more")));
        known.remove("z0".into());
        assert!(known.put(large("more")));
        assert!(known.put(large("z1")), "it takes no more than before");
        assert_eq!(sent(&mut known).len(), fit + 1);
    }
}
