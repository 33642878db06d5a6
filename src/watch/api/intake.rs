//! Decodes and reduces the objects of lists and watches one by one, and
//! remembers the version at which a watch resumes.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
    sync::Arc,
};

use hashbrown::{HashMap, HashSet};
use kube::core::Status;
use net::address::parse_ip;
use parking_lot::Mutex;
use serde::{Deserialize, de::DeserializeSeed};
use serde_json::{Value, value::RawValue};
use tracing::{debug, info, warn};

use super::{
    Settings,
    ask::{self, Failure},
    followed::Followed,
    known::{Known, MOST_KEPT},
};
use crate::{
    services::{
        Invalid, Loopback, Names, Object, ObjectName, Reduced,
        wire::{Identified, Identity},
    },
    watch::{SourceHealth, kind::ObjectSeed},
};

/// Marks the bookmark after the initial events of a watch (KEP-3157).
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// Maximum size of a list, in bytes. Lists of the largest clusters have some hundred MiB.
const LONGEST_LIST: usize = 1 << 30;

/// Maximum number of addresses that are remembered of an unusable Service.
const MOST_ADDRESSES: usize = 100;

/// A page of a list, without its objects.
#[derive(Deserialize)]
struct Page {
    metadata: ListMeta,
}

/// Metadata of a page.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_: Option<String>,
}

/// A line of a watch.
#[derive(Deserialize)]
struct WatchLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

/// Decodes objects of one kind into [`Known`].
pub(super) struct Intake<'a> {
    pub(super) followed: &'a Followed,
    names: &'a Mutex<Names>,
    known: &'a Mutex<Known>,
    settings: &'a Settings,
    /// The version at which a watch resumes; `None` if everything must be listed.
    version: Option<String>,
    /// Whether the arriving objects are part of a list.
    listing: bool,
    /// Number of objects in the list so far.
    listed: usize,
    /// Their size in bytes.
    listed_bytes: usize,
    /// Hash of the last logged warning, for each object that has one.
    warnings: HashMap<ObjectName, u64>,
    /// Those of them that were in the list.
    warned: HashSet<ObjectName>,
}

impl<'a> Intake<'a> {
    pub(super) fn new(
        followed: &'a Followed,
        names: &'a Mutex<Names>,
        known: &'a Mutex<Known>,
        settings: &'a Settings,
    ) -> Self {
        Intake {
            followed,
            names,
            known,
            settings,
            version: None,
            listing: false,
            listed: 0,
            listed_bytes: 0,
            warnings: HashMap::new(),
            warned: HashSet::new(),
        }
    }

    /// Records the progress, and which objects cannot be used.
    pub(super) fn health(&self) -> &'a SourceHealth {
        &self.settings.health
    }

    /// Returns the version at which a watch resumes; `None` if everything must be listed.
    pub(super) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Number of objects in the last list.
    pub(super) fn listed(&self) -> usize {
        self.listed
    }

    /// Returns whether the arriving objects are part of an incomplete list.
    pub(super) fn is_listing(&self) -> bool {
        self.listing
    }

    /// Returns whether there are changes to forward.
    pub(super) fn has_changes(&self) -> bool {
        self.known.lock().has_changes()
    }

    /// Ends the wait for a first list.
    pub(super) fn settle(&self) {
        self.known.lock().settle();
    }

    /// Forgets the version, so that everything is listed again.
    pub(super) fn expire(&mut self) {
        self.version = None;
    }

    /// Begins a list.
    pub(super) fn begin_list(&mut self) {
        self.version = None;
        self.listing = true;
        self.listed = 0;
        self.listed_bytes = 0;
        self.warned.clear();
        self.known.lock().begin_list();
    }

    /// Decodes an object of a page of a list.
    pub(super) fn item(&mut self, item: &[u8]) -> Result<(), Failure> {
        let item = serde_json::from_slice(item).map_err(|error| unreadable("a list", &error))?;
        self.came(item)
    }

    /// Decodes the rest of a page of a list. Returns the token of the next page, if there is one.
    pub(super) fn end_page(&mut self, rest: &[u8]) -> Result<Option<String>, Failure> {
        let page: Page =
            serde_json::from_slice(rest).map_err(|error| unreadable("a list", &error))?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            self.end_list(page.metadata.resource_version)?;
        }
        Ok(next)
    }

    /// Decodes a line of a watch.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        let line: WatchLine<'_> =
            serde_json::from_slice(line).map_err(|error| unreadable("an event", &error))?;
        match line.kind {
            "ADDED" | "MODIFIED" => self.came(line.object),
            "DELETED" => self.went(line.object),
            "BOOKMARK" => {
                let bookmark = identity(line.object)?;
                if !self.listing {
                    self.advance(bookmark.resource_version.as_deref())?;
                } else if bookmark.is_annotated(INITIAL_END, "true") {
                    self.end_list(bookmark.resource_version)?;
                }
                Ok(())
            }
            "ERROR" => {
                let status: Status = serde_json::from_str(line.object.get())
                    .map_err(|error| Failure::Broken(format!("an ERROR event: {error}")))?;
                Err(ask::of_status(&status))
            }
            other => {
                debug!("{}: unknown event {other:?}", self.followed.plural);
                Ok(())
            }
        }
    }

    /// Ends a complete list, of this version.
    fn end_list(&mut self, version: Option<String>) -> Result<(), Failure> {
        let version = version.filter(|version| !version.is_empty());
        let Some(version) = version else {
            let text = "the server's list has no resourceVersion";
            return Err(Failure::Broken(text.to_owned()));
        };
        self.known.lock().end_list();
        let warned = std::mem::take(&mut self.warned);
        // Every object that cannot be used has a warning.
        let unlisted = self.warnings.extract_if(|name, _| !warned.contains(name));
        unlisted.for_each(|(name, _)| self.settings.health.can_use(&name));
        self.version = Some(version);
        self.listing = false;
        Ok(())
    }

    /// Decodes an object that was added or changed, or is on the list.
    fn came(&mut self, object: &RawValue) -> Result<(), Failure> {
        if self.listing {
            self.listed += 1;
            self.listed_bytes += object.get().len();
            if self.listed_bytes > LONGEST_LIST {
                let limit = LONGEST_LIST >> 30;
                return Err(Failure::Broken(format!(
                    "a list is larger than {limit} GiB"
                )));
            }
        }
        let decoder = &mut serde_json::Deserializer::from_str(object.get());
        let decoded = match ObjectSeed(self.followed.kind).deserialize(decoder) {
            Ok(decoded) => decoded,
            Err(error) => {
                let identity = identity(object)?;
                self.changed_at(identity.resource_version.as_deref())?;
                let name = self.name(&identity);
                self.unusable(name, &format!("it cannot be read: {error}"), object);
                return Ok(());
            }
        };
        self.changed_at(decoded.version())?;
        let reduced = decoded.reduce(Loopback::Refused, &mut self.names.lock());
        match reduced {
            Ok(reduced) => self.valid(reduced),
            Err(invalid) => {
                self.unusable(decoded.name(), &invalid.what(), object);
                Ok(())
            }
        }
    }

    /// Stores an object that can be used, at least in part.
    fn valid(&mut self, reduced: Reduced<Object>) -> Result<(), Failure> {
        let Reduced {
            mut object,
            warnings,
        } = reduced;
        let mut warnings: Vec<String> = warnings.iter().map(Invalid::what).collect();
        let mut is_used = true;
        if let Object::Node(node) = &mut object {
            is_used = !self.followed.weights_only || node.weight.is_some();
            if !self.settings.node_weights && node.weight.is_some() {
                Arc::make_mut(node).weight = None;
                warnings.push("its weight is used only with --node-weights".to_owned());
            }
        }
        let name = object.name();
        self.health().can_use(&name);
        if !warnings.is_empty() {
            let text = warnings.join("; ");
            self.warn_once(&name, &format!("{text}; ignoring this part of the object"));
        } else if self.warnings.remove(&name).is_some() {
            info!("{name}: the object is valid again");
        }
        let mut known = self.known.lock();
        if !is_used {
            known.remove(name);
        } else if !known.put(object) {
            drop(known);
            return self.no_room(&name);
        }
        Ok(())
    }

    fn name(&self, identity: &Identity<'_>) -> Option<ObjectName> {
        let (namespace, name) = (identity.namespace.as_deref(), identity.name.as_deref());
        ObjectName::new(self.followed.kind, namespace, name)
    }

    /// Records that there is no room for an object. A partial list is not used.
    fn no_room(&mut self, name: &ObjectName) -> Result<(), Failure> {
        let limit = MOST_KEPT >> 20;
        let text = format!(
            "all {} together are larger than {limit} MiB",
            self.followed.plural
        );
        if self.listing {
            return Err(Failure::Broken(text));
        }
        self.warn_once(name, &format!("{text}; its current version is not used"));
        Ok(())
    }

    fn unusable(&mut self, name: Option<ObjectName>, text: &str, object: &RawValue) {
        match name {
            Some(name) => {
                let stays = self.known.lock().preserve(&name);
                let follows = if stays {
                    "its last valid version stays in use"
                } else {
                    "it is not used until this is corrected"
                };
                self.warn_once(&name, &format!("{text}; {follows}"));
                let addresses = addresses(object);
                let health = self.health();
                health.cannot_use(name, text.to_owned(), stays, addresses);
            }
            None => warn!("ignoring one of the {}: {text}", self.followed.plural),
        }
    }

    /// Logs a warning about an object unless it equals the last one.
    fn warn_once(&mut self, name: &ObjectName, text: &str) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        if self.listing {
            self.warned.insert(name.clone());
        }
        if self.warnings.insert(name.clone(), hash) != Some(hash) {
            warn!("{name}: {text}");
        }
    }

    /// Removes an object that was deleted.
    fn went(&mut self, object: &RawValue) -> Result<(), Failure> {
        let identity = identity(object)?;
        self.changed_at(identity.resource_version.as_deref())?;
        if let Some(name) = self.name(&identity) {
            self.warnings.remove(&name);
            self.health().can_use(&name);
            self.known.lock().remove(name);
        }
        Ok(())
    }

    /// Lets a watch resume at `version`, that of an object, unless the object is part of a list:
    /// its objects come in any order.
    fn changed_at(&mut self, version: Option<&str>) -> Result<(), Failure> {
        if self.listing {
            return Ok(());
        }
        self.advance(version)
    }

    /// Lets a watch resume at `version`. Versions of one resource can be compared as numbers
    /// (KEP-5504), and a watch sends them in order: a version lower than the last may mean that
    /// etcd was restored, and that the state known here is of a time that the server does not know.
    fn advance(&mut self, version: Option<&str>) -> Result<(), Failure> {
        let Some(version) = version.filter(|version| !version.is_empty()) else {
            let text = "an event without a resourceVersion";
            return Err(Failure::Broken(text.to_owned()));
        };
        let last = self.version.get_or_insert_default();
        let number = |text: &str| text.parse::<u64>().ok();
        if let (Some(new), Some(old)) = (number(version), number(last))
            && new < old
        {
            warn!(
                "the API server sent {} of version {new} after version {old}; all of them are \
                 listed again",
                self.followed.plural
            );
            return Err(Failure::Expired);
        }
        version.clone_into(last);
        Ok(())
    }
}

fn unreadable(what: &str, error: &serde_json::Error) -> Failure {
    Failure::Broken(format!("{what} cannot be read: {error}"))
}

/// Collects the addresses that a Service names, as far as they can be parsed.
fn addresses(object: &RawValue) -> Vec<IpAddr> {
    let object: Value = serde_json::from_str(object.get()).unwrap_or_default();
    let spec = &object["spec"];
    let lists = [&spec["clusterIPs"], &spec["externalIPs"]];
    let lists = lists.into_iter().filter_map(Value::as_array).flatten();
    let ingress = object["status"]["loadBalancer"]["ingress"].as_array();
    let ingress = ingress.into_iter().flatten().map(|point| &point["ip"]);
    let named = lists.chain(ingress).chain([&spec["clusterIP"]]);
    let mut found: Vec<IpAddr> = named
        .filter_map(|text| parse_ip(text.as_str()?))
        .take(MOST_ADDRESSES)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn identity(object: &RawValue) -> Result<Identity<'_>, Failure> {
    serde_json::from_str(object.get())
        .map(|Identified { metadata }| metadata)
        .map_err(|error| Failure::Broken(format!("an object's metadata: {error}")))
}

#[cfg(any(test, fuzzing))]
fn page(intake: &mut Intake<'_>, body: &[u8]) -> Result<Option<String>, Failure> {
    let mut splitter = super::splitter::Splitter::default();
    splitter.feed(body);
    while let Some(item) = splitter.next().map_err(Failure::Broken)? {
        intake.item(item)?;
    }
    intake.end_page(&splitter.end().map_err(Failure::Broken)?)
}

/// Reads `line` as a line of a watch and as a page of a list; for tests with arbitrary bytes.
#[cfg(any(test, fuzzing))]
pub fn read_anything(line: &[u8]) {
    let settings = Settings {
        node_weights: true,
        service_cidrs: true,
        ..Settings::for_node("node")
    };
    for followed in &super::followed(&settings) {
        let (names, known) = Default::default();
        let mut intake = Intake::new(followed, &names, &known, &settings);
        // The results do not matter, only that each call returns.
        let _ = intake.line(line);
        let _ = page(&mut intake, line);
        intake.begin_list();
        let _ = intake.line(line);
        let page = format!(
            r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{}]}}"#,
            String::from_utf8_lossy(line)
        );
        let _ = self::page(&mut intake, page.as_bytes());
    }
}

#[cfg(test)]
mod tests;
