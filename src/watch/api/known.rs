//! The objects of one kind as the server has them, as far as we know, and
//! which of them the receiver has yet to hear of.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::kind::Kind;
use crate::services::Event;

/// The objects of one kind.
///
/// What changed is kept as a set of names and told as the objects then are:
/// however slow the receiver, what waits for it is no more than there are
/// objects, and a storm of changes to one object is a single event.
pub(super) struct Known<K: Kind> {
    objects: HashMap<K::Name, Entry<K>>,
    untold: HashSet<K::Name>,
    /// Counts the lists that were begun.
    list: u32,
    /// Between the beginning of a list and the end of a complete one nothing
    /// is told: half a list may have an endpoint gone from one slice and not
    /// yet arrived in the other.
    listing: bool,
    settled: bool,
}

struct Entry<K> {
    object: Arc<K>,
    /// The last list that it was in.
    list: u32,
}

impl<K: Kind> Known<K> {
    pub(super) fn new() -> Known<K> {
        Known {
            objects: HashMap::new(),
            untold: HashSet::new(),
            list: 0,
            listing: true,
            settled: false,
        }
    }

    /// A list begins; one that was not finished is forgotten, what it told of
    /// single objects is not.
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.listing = true;
    }

    /// The list was complete: what was not in it is gone.
    pub(super) fn end_list(&mut self) {
        let (list, untold) = (self.list, &mut self.untold);
        self.objects.retain(|name, entry| {
            let stays = entry.list == list;
            if !stays {
                untold.insert(name.clone());
            }
            stays
        });
        self.objects.shrink_to_fit();
        self.listing = false;
        self.settled = true;
    }

    /// An object as it now is.
    pub(super) fn put(&mut self, name: K::Name, object: K) {
        let list = self.list;
        if let Some(entry) = self.objects.get_mut(&name) {
            entry.list = list;
            if *entry.object == object {
                return;
            }
            entry.object = Arc::new(object);
        } else {
            let object = Arc::new(object);
            self.objects.insert(name.clone(), Entry { object, list });
        }
        self.untold.insert(name);
    }

    /// An object is there, but cannot be used as it now is; as it was before,
    /// it stays in force.
    pub(super) fn keep(&mut self, name: &K::Name) {
        if let Some(entry) = self.objects.get_mut(name) {
            entry.list = self.list;
        }
    }

    /// An object went.
    pub(super) fn remove(&mut self, name: K::Name) {
        if self.objects.remove(&name).is_some() {
            self.untold.insert(name);
        }
    }

    /// There is no waiting for these objects: they are withheld from us.
    pub(super) fn settle(&mut self) {
        self.settled = true;
    }

    /// Returns whether a first list was complete, or cannot be had.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// Returns whether there are changes to send on.
    pub(super) fn has_news(&self) -> bool {
        !self.listing && !self.untold.is_empty()
    }

    /// Tells what changed.
    pub(super) fn tell(&mut self, events: &mut Vec<Event>) {
        if self.listing {
            return;
        }
        // Its memory is given back with it: that of the first list is large.
        for name in std::mem::take(&mut self.untold) {
            events.push(match self.objects.get(&name) {
                Some(entry) => K::came(Arc::clone(&entry.object)),
                None => K::gone(name),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Node;

    fn node(name: &str, zone: &str) -> (Arc<str>, Node) {
        let node = Node {
            name: name.into(),
            zone: Some(zone.into()),
            pod_cidrs: Box::default(),
            addresses: Box::default(),
            deleting: false,
            to_be_deleted: false,
            weight: None,
        };
        (name.into(), node)
    }

    fn put(known: &mut Known<Node>, name: &str, zone: &str) {
        let (name, node) = node(name, zone);
        known.put(name, node);
    }

    /// What was told, as `name=zone` or `-name`, sorted.
    fn told(known: &mut Known<Node>) -> Vec<String> {
        let mut events = Vec::new();
        known.tell(&mut events);
        let mut told: Vec<String> = events
            .into_iter()
            .map(|event| match event {
                Event::Node(node) => {
                    format!("{}={}", node.name, node.zone.as_deref().unwrap_or("?"))
                }
                Event::NodeGone(name) => format!("-{name}"),
                other => format!("{other:?}"),
            })
            .collect();
        told.sort();
        told
    }

    fn listed() -> Known<Node> {
        let mut known = Known::new();
        known.begin_list();
        for name in ["a", "b", "c"] {
            put(&mut known, name, "1");
        }
        assert!(!known.is_settled());
        assert_eq!(told(&mut known), [""; 0], "half a list");
        known.end_list();
        assert_eq!(told(&mut known), ["a=1", "b=1", "c=1"]);
        known
    }

    #[test]
    fn a_list_is_told_whole_and_then_only_its_differences() {
        let mut known = listed();
        known.begin_list();
        put(&mut known, "a", "1");
        put(&mut known, "b", "2");
        assert_eq!(told(&mut known), [""; 0], "half a list");
        // It broke; the next one is complete, and c is not in it.
        known.begin_list();
        put(&mut known, "b", "2");
        put(&mut known, "d", "1");
        known.keep(&"a".into());
        assert!(!known.has_news());
        known.end_list();
        assert!(known.has_news());
        assert_eq!(told(&mut known), ["-c", "b=2", "d=1"]);
        assert_eq!(told(&mut known), [""; 0]);
    }

    #[test]
    fn a_storm_is_told_once_and_no_change_not_at_all() {
        let mut known = listed();
        put(&mut known, "a", "1");
        assert!(!known.has_news());
        for zone in ["2", "3", "4"] {
            put(&mut known, "b", zone);
        }
        known.remove("c".into());
        known.remove("c".into());
        known.remove("unheard of".into());
        assert_eq!(told(&mut known), ["-c", "b=4"]);
    }
}
