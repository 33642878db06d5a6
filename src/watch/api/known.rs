//! The objects of one kind as last received from the server, and the changes that were not sent
//! yet.

use hashbrown::{HashMap, HashSet};

use crate::services::{Event, Object, ObjectName};

/// Maximum size of all objects of a kind, in bytes as [`size`] estimates them. A million endpoints
/// take 50 MB.
pub(super) const MOST_KEPT: usize = 128 << 20;

/// The objects of one kind.
///
/// Changes are remembered as a set of names, and sent as the current objects: however slow the
/// receiver, at most one change per object waits for it, and a storm of changes to one object
/// results in a single event.
#[derive(Default)]
pub(super) struct Known {
    objects: HashMap<ObjectName, Entry>,
    /// Size in bytes of the objects in the last list and of those that watches brought since then.
    size: usize,
    unsent: HashSet<ObjectName>,
    /// Changes from before a list was begun, with the object of that time; `None` if it was gone.
    before_list: HashMap<ObjectName, Option<Object>>,
    /// Number of lists that have begun.
    list: u32,
    /// Whether the last list is complete. Before that nothing is sent: in half a list an endpoint
    /// may be gone from one slice and not yet be in the other.
    complete: bool,
    settled: bool,
}

struct Entry {
    object: Object,
    /// Number of the last list that the object was in.
    list: u32,
    /// Number of the latest list when the object arrived.
    since: u32,
}

impl Known {
    /// Begins a list. Objects that arrived in an unfinished one are forgotten, so that repeated
    /// unfinished lists do not fill the memory. Changes from before the list need not wait for its
    /// end.
    pub(super) fn begin_list(&mut self) {
        if !self.complete {
            let (list, unsent) = (self.list, &mut self.unsent);
            self.objects.retain(|name, entry| {
                let was_there = entry.since != list;
                if !was_there {
                    unsent.remove(name);
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
        self.complete = false;
    }

    /// Returns the current version of an object; `None` if it is gone.
    fn object(&self, name: &ObjectName) -> Option<Object> {
        Some(self.objects.get(name)?.object.clone())
    }

    /// Ends a complete list: objects that were not in it are gone.
    pub(super) fn end_list(&mut self) {
        let (list, unsent) = (self.list, &mut self.unsent);
        self.objects.retain(|name, entry| {
            let is_listed = entry.list == list;
            if !is_listed {
                unsent.insert(name.clone());
            }
            is_listed
        });
        self.objects.shrink_to_fit();
        self.complete = true;
        self.settled = true;
    }

    /// Adds or replaces an object. Returns false if there is no room for it.
    pub(super) fn put(&mut self, object: Object) -> bool {
        let (list, name) = (self.list, object.name());
        let before = self.objects.get_mut(&name);
        let counted = before.as_ref().filter(|entry| entry.list == list);
        let counted = counted.map_or(0, |entry| size(&entry.object));
        let total = self.size - counted + size(&object);
        if total > MOST_KEPT {
            return false;
        }
        self.size = total;
        if let Some(entry) = before {
            entry.list = list;
            if entry.object == object {
                return true;
            }
            entry.object = object;
        } else {
            let since = list;
            let entry = Entry {
                object,
                list,
                since,
            };
            self.objects.insert(name.clone(), entry);
        }
        self.unsent.insert(name);
        true
    }

    /// Counts an object as listed although its new version cannot be used: the previous version
    /// stays in use. Returns whether there is one.
    pub(super) fn preserve(&mut self, name: &ObjectName) -> bool {
        let Some(entry) = self.objects.get_mut(name) else {
            return false;
        };
        if std::mem::replace(&mut entry.list, self.list) != self.list {
            self.size += size(&entry.object);
        }
        true
    }

    /// Removes an object that is gone.
    pub(super) fn remove(&mut self, name: ObjectName) {
        if let Some(entry) = self.objects.remove(&name) {
            if entry.list == self.list {
                self.size -= size(&entry.object);
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
        !self.before_list.is_empty() || self.complete && !self.unsent.is_empty()
    }

    /// Appends the changes to `events`, except those that an incomplete list brought.
    pub(super) fn send_changes(&mut self, events: &mut Vec<Event>) {
        let event = |name, object| match object {
            Some(object) => Event::Changed(object),
            None => Event::Gone(name),
        };
        let before = std::mem::take(&mut self.before_list).into_iter();
        events.extend(before.map(|(name, object)| event(name, object)));
        if !self.complete {
            return;
        }
        // The set itself is dropped: it is large after the first list.
        for name in std::mem::take(&mut self.unsent) {
            let object = self.object(&name);
            events.push(event(name, object));
        }
    }
}

/// Approximate size of an object with its names in bytes, without its lists.
const SMALL: usize = 300;

/// Estimates the size of an object in bytes.
fn size(object: &Object) -> usize {
    let lists = match object {
        Object::Node(node) => size_of_val(&*node.pod_cidrs) + size_of_val(&*node.addresses),
        Object::ServiceCidr(cidr) => size_of_val(&*cidr.networks),
        Object::Service(service) => service.serving.as_ref().map_or(0, |serving| {
            size_of_val(&*serving.ports)
                + size_of_val(&*serving.external_ips)
                + size_of_val(&*serving.load_balancer_ips)
                + size_of_val(&*serving.load_balancer_source_ranges)
        }),
        Object::EndpointSlice(slice) => {
            size_of_val(&*slice.ports)
                + size_of_val(&*slice.endpoints)
                + size_of_val(&*slice.forbidden)
        }
    };
    SMALL + lists
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

    fn name(of: &str) -> ObjectName {
        ObjectName::Node(of.into())
    }

    fn put(known: &mut Known, name: &str, zone: &str) {
        assert!(known.put(Object::Node(node(name, zone).into())));
    }

    /// Returns the sent events, as `name=zone` or `-name`, sorted.
    fn sent(known: &mut Known) -> Vec<String> {
        let mut events = Vec::new();
        known.send_changes(&mut events);
        let mut sent: Vec<String> = events
            .into_iter()
            .map(|event| match event {
                Event::Changed(Object::Node(node)) => {
                    format!("{}={}", node.name, node.zone.as_deref().unwrap_or("?"))
                }
                Event::Gone(ObjectName::Node(name)) => format!("-{name}"),
                other => format!("{other:?}"),
            })
            .collect();
        sent.sort();
        sent
    }

    fn listed() -> Known {
        let mut known = Known::default();
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
        known.preserve(&name("a"));
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
        known.remove(name("c"));
        known.begin_list();
        put(&mut known, "b", "3");
        assert!(known.has_changes());
        assert_eq!(sent(&mut known), ["-c", "b=2"]);
        assert!(!known.has_changes(), "half a list");
        known.preserve(&name("a"));
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
        known.remove(name("c"));
        known.remove(name("c"));
        known.remove(name("unknown"));
        assert_eq!(sent(&mut known), ["-c", "b=4"]);
    }

    /// A node of about 20 MB.
    fn large(name: &str) -> Object {
        let networks = vec!["10.0.0.0/24".parse().expect("a network"); 1 << 20];
        let node = Node {
            pod_cidrs: networks.into(),
            ..node(name, "1")
        };
        Object::Node(node.into())
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
        known.remove(name("z0"));
        assert!(known.put(large("more")));
        assert!(known.put(large("z1")), "it takes no more than before");
        assert_eq!(sent(&mut known).len(), fit + 1);
    }
}
