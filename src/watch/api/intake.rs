//! Decodes and reduces the objects of lists and watches one by one, and
//! remembers the version at which a watch resumes.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::IpAddr,
};

use hashbrown::{HashMap, HashSet};
use kube::core::Status;
use net::address::parse_ip;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tracing::{debug, info, warn};

use super::{
    ask::{self, Failure},
    kind::Kind,
    known::{Known, MOST_KEPT},
};
use crate::{
    services::{
        Names,
        wire::{Identified, Identity, Meta},
    },
    watch::SourceHealth,
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
pub(super) struct Intake<'a, K: Kind> {
    names: &'a Mutex<Names>,
    known: &'a Mutex<Known<K>>,
    /// The version at which a watch resumes; `None` if everything must be listed.
    version: Option<String>,
    /// Whether the arriving objects are part of a list.
    listing: bool,
    /// Number of objects in the list so far.
    listed: usize,
    /// Their size in bytes.
    listed_bytes: usize,
    /// Hash of the last logged warning, for each object that has one.
    warnings: HashMap<K::Name, u64>,
    /// Those of them that were in the list.
    warned: HashSet<K::Name>,
    /// Records which objects cannot be used.
    health: &'a SourceHealth,
}

impl<'a, K: Kind> Intake<'a, K> {
    pub(super) fn new(
        names: &'a Mutex<Names>,
        known: &'a Mutex<Known<K>>,
        health: &'a SourceHealth,
    ) -> Self {
        Intake {
            names,
            known,
            version: None,
            listing: false,
            listed: 0,
            listed_bytes: 0,
            warnings: HashMap::new(),
            warned: HashSet::new(),
            health,
        }
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
                debug!("{}: unknown event {other:?}", K::PLURAL);
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
        self.warnings.retain(|name, _| warned.contains(name));
        let warned: HashSet<String> = warned.iter().map(ToString::to_string).collect();
        self.health
            .was_listed(K::SINGULAR, |name| warned.contains(name));
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
        let wire: K::Wire = match serde_json::from_str(object.get()) {
            Ok(wire) => wire,
            Err(error) => {
                let metadata = Meta::from(identity(object)?);
                self.changed_at(metadata.resource_version.as_deref())?;
                let name = K::name(&metadata, &mut self.names.lock());
                self.unusable(name, &format!("it cannot be read: {error}"), object);
                return Ok(());
            }
        };
        let meta = K::meta(&wire);
        self.changed_at(meta.resource_version.as_deref())?;
        let mut names = self.names.lock();
        let name = K::name(meta, &mut names);
        let reduced = K::reduce(wire, &mut names);
        drop(names);
        match (name, reduced) {
            (Some(name), Ok(reduced)) => {
                self.health.can_use(K::SINGULAR, name.to_string());
                if reduced.warnings.is_empty() {
                    if self.warnings.remove(&name).is_some() {
                        info!("{} {name}: the object is valid again", K::PLURAL);
                    }
                } else {
                    let texts = reduced.warnings.iter().map(ToString::to_string);
                    let text = texts.collect::<Vec<_>>().join("; ");
                    self.warn_once(&name, &format!("{text}; ignoring this part of the object"));
                }
                let mut known = self.known.lock();
                if !reduced.object.is_used() {
                    known.remove(name);
                } else if !known.put(reduced.object) {
                    drop(known);
                    return self.no_room(&name);
                }
            }
            (name, Err(invalid)) => self.unusable(name, &invalid.what(), object),
            (None, Ok(_)) => self.unusable(None, "it has no name", object),
        }
        Ok(())
    }

    /// Records that there is no room for an object. A partial list is not used.
    fn no_room(&mut self, name: &K::Name) -> Result<(), Failure> {
        let limit = MOST_KEPT >> 20;
        let text = format!("all {} together are larger than {limit} MiB", K::PLURAL);
        if self.listing {
            return Err(Failure::Broken(text));
        }
        self.warn_once(name, &format!("{text}; its current version is not used"));
        Ok(())
    }

    fn unusable(&mut self, name: Option<K::Name>, text: &str, object: &RawValue) {
        match name {
            Some(name) => {
                let stays = self.known.lock().preserve(&name);
                let follows = if stays {
                    "its last valid version stays in use"
                } else {
                    "it is not used until this is corrected"
                };
                self.health.cannot_use(
                    K::SINGULAR,
                    name.to_string(),
                    text.to_owned(),
                    stays,
                    addresses(object),
                );
                self.warn_once(&name, &format!("{text}; {follows}"));
            }
            None => warn!("ignoring one of the {}: {text}", K::PLURAL),
        }
    }

    /// Logs a warning about an object unless it equals the last one.
    fn warn_once(&mut self, name: &K::Name, text: &str) {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let hash = hasher.finish();
        if self.listing {
            self.warned.insert(name.clone());
        }
        if self.warnings.insert(name.clone(), hash) != Some(hash) {
            warn!("{} {name}: {text}", K::PLURAL);
        }
    }

    /// Removes an object that was deleted.
    fn went(&mut self, object: &RawValue) -> Result<(), Failure> {
        let metadata = Meta::from(identity(object)?);
        self.changed_at(metadata.resource_version.as_deref())?;
        if let Some(name) = K::name(&metadata, &mut self.names.lock()) {
            self.warnings.remove(&name);
            self.health.can_use(K::SINGULAR, name.to_string());
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
                K::PLURAL
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
fn page<K: Kind>(intake: &mut Intake<'_, K>, body: &[u8]) -> Result<Option<String>, Failure> {
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
    fn read<K: Kind>(line: &[u8]) {
        let names = Mutex::new(Names::default());
        let known = Mutex::new(Known::<K>::new());
        let health = SourceHealth::default();
        let mut intake = Intake::new(&names, &known, &health);
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
    read::<crate::services::Service>(line);
    read::<crate::services::EndpointSlice>(line);
    read::<crate::services::Node>(line);
    read::<crate::services::ServiceCidr>(line);
    read::<super::kind::Elsewhere>(line);
}

#[cfg(test)]
mod tests;
