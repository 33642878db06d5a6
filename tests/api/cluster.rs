//! The state of the server: objects, and every change of them since the last compaction.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A collection, by its path.
pub const SERVICES: &str = "/api/v1/services";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
pub const PODS: &str = "/api/v1/pods";
pub const NAMESPACES: &str = "/api/v1/namespaces";
pub const DAEMON_SETS: &str = "/apis/apps/v1/daemonsets";
pub const NODES: &str = "/api/v1/nodes";
pub const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";

/// Kind and API version of the objects of a collection, which clients in Go check.
pub fn kind_of(collection: &str) -> (&'static str, &'static str) {
    match collection {
        SERVICES => ("Service", "v1"),
        SLICES => ("EndpointSlice", "discovery.k8s.io/v1"),
        PODS => ("Pod", "v1"),
        NAMESPACES => ("Namespace", "v1"),
        DAEMON_SETS => ("DaemonSet", "apps/v1"),
        NODES => ("Node", "v1"),
        SERVICE_CIDRS => ("ServiceCIDR", "networking.k8s.io/v1"),
        _ => ("", "v1"),
    }
}

/// Namespace and name.
type Key = (String, String);

/// Objects and their history.
#[derive(Default)]
pub struct Cluster {
    /// Version of the last change.
    pub version: u64,
    /// Changes up to this version are forgotten.
    pub compacted: u64,
    objects: BTreeMap<(&'static str, Key), Value>,
    history: Vec<Change>,
}

/// A change of an object, or a bookmark.
#[derive(Clone)]
pub struct Change {
    pub version: u64,
    collection: &'static str,
    old: Option<Value>,
    new: Option<Value>,
    bookmark: bool,
}

/// The selection of a request.
#[derive(Clone, Default)]
pub struct Selector {
    pub without_labels: Vec<String>,
    pub labels: Vec<(String, String)>,
    pub name: Option<String>,
    pub not_name: Option<String>,
    pub metadata_alone: bool,
}

impl Selector {
    /// Parses the parameters `labelSelector` and `fieldSelector`.
    pub fn parse(labels: Option<&str>, fields: Option<&str>) -> Selector {
        let mut selector = Selector::default();
        for label in labels.into_iter().flat_map(|labels| labels.split(',')) {
            match (label.strip_prefix('!'), label.split_once('=')) {
                (Some(without), _) => selector.without_labels.push(without.to_owned()),
                (None, Some((key, value))) => {
                    selector.labels.push((key.to_owned(), value.to_owned()));
                }
                _ => panic!("only `!label` and `label=value` are understood, not {label}"),
            }
        }
        if let Some(fields) = fields {
            let name = fields.strip_prefix("metadata.name");
            let name = name.expect("only metadata.name is understood");
            match name.strip_prefix("!=") {
                Some(name) => selector.not_name = Some(name.to_owned()),
                None => selector.name = name.strip_prefix("=").map(str::to_owned),
            }
        }
        selector
    }

    fn picks(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let clean = self
            .without_labels
            .iter()
            .all(|label| labels[label].is_null());
        let name = object["metadata"]["name"].as_str();
        let named = self.name.is_none() || name == self.name.as_deref();
        let other = self.not_name.is_none() || name != self.not_name.as_deref();
        let labelled = self
            .labels
            .iter()
            .all(|(key, value)| labels[key] == **value);
        clean && labelled && named && other
    }

    /// Returns the requested part of an object.
    fn shows(&self, object: &Value) -> Value {
        if !self.metadata_alone {
            return object.clone();
        }
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"]})
    }
}

fn collection(object: &Value) -> &'static str {
    match object["kind"].as_str() {
        Some("Service") => SERVICES,
        Some("EndpointSlice") => SLICES,
        Some("Node") => NODES,
        Some("Pod") => PODS,
        Some("Namespace") => NAMESPACES,
        Some("DaemonSet") => DAEMON_SETS,
        Some("ServiceCIDR") => SERVICE_CIDRS,
        other => panic!("no collection of {other:?}"),
    }
}

fn key(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    (text("namespace").to_owned(), text("name").to_owned())
}

impl Cluster {
    /// Creates or replaces an object.
    pub fn put(&mut self, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let collection = collection(&object);
        let old = self
            .objects
            .insert((collection, key(&object)), object.clone());
        self.remember(collection, old, Some(object));
    }

    /// Deletes an object.
    pub fn delete(&mut self, object: &Value) {
        let collection = collection(object);
        let old = self.objects.remove(&(collection, key(object)));
        assert!(old.is_some(), "nothing to delete");
        self.version += 1;
        self.remember(collection, old, None);
    }

    /// Changes nothing but the version, as changes of other resources do.
    pub fn tick(&mut self) {
        self.version += 1;
    }

    /// Sends the current version to watchers of a collection.
    pub fn bookmark(&mut self, collection: &'static str) {
        self.remember(collection, None, None);
        self.history.last_mut().expect("just added").bookmark = true;
    }

    /// Repeats the change before the last `back` ones of a collection, at its old version, like a
    /// server that replays its history.
    pub fn replay(&mut self, collection: &'static str, back: usize) {
        let mut of = self
            .history
            .iter()
            .rev()
            .filter(|change| change.collection == collection);
        let change = of.nth(back).expect("as many changes").clone();
        self.history.push(change);
    }

    /// Returns to an earlier version, like a server whose etcd was restored.
    pub fn go_back(&mut self, version: u64) {
        self.version = version;
        for change in &mut self.history {
            change.version = change.version.min(version);
        }
    }

    /// Forgets the history.
    pub fn compact(&mut self) {
        self.version += 1;
        self.compacted = self.version;
    }

    fn remember(&mut self, collection: &'static str, old: Option<Value>, new: Option<Value>) {
        self.history.push(Change {
            version: self.version,
            collection,
            old,
            new,
            bookmark: false,
        });
    }

    /// Objects of a collection.
    pub fn list(&self, collection: &str, selector: &Selector) -> Vec<Value> {
        let of = self.objects.iter().filter(|((of, _), _)| *of == collection);
        let picked = of
            .map(|(_, object)| object)
            .filter(|object| selector.picks(object));
        picked.map(|object| selector.shows(object)).collect()
    }

    /// Returns an object; the namespace of a cluster-scoped one is empty.
    pub fn get(&self, collection: &str, namespace: &str, name: &str) -> Option<&Value> {
        let objects = self.objects.iter();
        let mut found = objects
            .filter(|((of, key), _)| *of == collection && key.0 == namespace && key.1 == name);
        found.next().map(|(_, object)| object)
    }

    /// All objects, of every kind.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        self.objects.values()
    }

    /// The number of changes so far, at which a watch from now on begins.
    pub fn now(&self) -> usize {
        self.history.len()
    }

    /// The first change after a version.
    pub fn since(&self, version: u64) -> usize {
        self.history
            .iter()
            .take_while(|change| change.version <= version)
            .count()
    }

    /// The events of a watch that begins at this position of the history.
    pub fn events(&self, from: usize, collection: &str, selector: &Selector) -> Vec<Value> {
        let changes = self.history[from..].iter();
        let of = changes.filter(|change| change.collection == collection);
        of.filter_map(|change| change.event(selector)).collect()
    }
}

impl Change {
    /// The event as a watch with that selector sees it.
    fn event(&self, selector: &Selector) -> Option<Value> {
        if self.bookmark {
            return Some(bookmark(self.collection, self.version, false));
        }
        let old = self.old.as_ref().filter(|object| selector.picks(object));
        let new = self.new.as_ref().filter(|object| selector.picks(object));
        let (old, new) = (
            old.map(|o| selector.shows(o)),
            new.map(|n| selector.shows(n)),
        );
        Some(match (old, new) {
            (None, None) => return None,
            (None, Some(new)) => json!({"type": "ADDED", "object": new}),
            (Some(_), Some(new)) => json!({"type": "MODIFIED", "object": new}),
            (Some(mut last), None) => {
                last["metadata"]["resourceVersion"] = json!(self.version.to_string());
                json!({"type": "DELETED", "object": last})
            }
        })
    }
}

/// A bookmark of a collection; `ends_list` marks the end of the initial events.
pub fn bookmark(collection: &str, version: u64, ends_list: bool) -> Value {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if ends_list {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    let (kind, api_version) = kind_of(collection);
    json!({"type": "BOOKMARK",
        "object": {"kind": kind, "apiVersion": api_version, "metadata": metadata}})
}
