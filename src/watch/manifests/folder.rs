//! What a folder of files means: which version of each file is in force, and
//! which file counts for an object that several have. This uses no file system.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::Arc,
};

use super::{
    documents::{split_json, split_yaml},
    parse::{self, ApiObject, Format},
    report::{Preserved, Report},
    versions::Versions,
};
use crate::services::{
    EndpointSlice, Event, Invalid, Names, Node, Reduced, Service, ServiceCidr, ServiceName,
    SliceName,
};

/// What a scan found under a file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The text of the file.
    Text(String),
    /// The file is there but cannot be read, for this reason.
    Unreadable(String),
    /// The file is not there any more.
    Gone,
}

/// The objects of a folder, and which reports about them were logged once.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<OsString, File>,
    /// Every file's version of an object; that of the last file counts.
    versions: HashMap<Key, Versions<Object>>,
    names: Names,
}

#[derive(Debug, Default)]
struct File {
    /// Hash of the last text or reason: its reports were logged.
    hash: Option<u64>,
    objects: BTreeMap<Key, Object>,
    /// The file was once read without fault, so a good version of it is in
    /// force.
    was_good: bool,
    /// The file is faulty as it is now.
    broken: bool,
    ignored: BTreeSet<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Key {
    Node(Arc<str>),
    ServiceCidr(Arc<str>),
    Service(ServiceName),
    EndpointSlice(SliceName),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Object {
    Node(Arc<Node>),
    ServiceCidr(Arc<ServiceCidr>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
}

/// What reading files changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) events: Vec<Event>,
    pub(super) reports: Vec<Report>,
}

impl Folder {
    /// Returns the names of the files that have objects, or reports, now.
    pub(super) fn files(&self) -> impl Iterator<Item = &OsString> {
        self.files.keys()
    }

    /// Returns the names of the files that are faulty as they are now.
    pub(super) fn broken_files(&self) -> impl Iterator<Item = &OsString> {
        let broken = self.files.iter().filter(|(_, file)| file.broken);
        broken.map(|(name, _)| name)
    }

    /// Applies what was found under some names; other files are as before.
    pub(super) fn take(&mut self, found: impl IntoIterator<Item = (OsString, Found)>) -> Outcome {
        let mut reports = Vec::new();
        // The versions, before this call, of each object that may differ now.
        let mut changed: BTreeMap<Key, Versions<Object>> = BTreeMap::new();
        for (name, found) in found {
            let file: Arc<OsStr> = name.as_os_str().into();
            for (key, object) in self.read(&name, found, &mut reports) {
                let versions = self.versions.entry(key.clone()).or_default();
                changed.entry(key).or_insert_with(|| versions.clone());
                match object {
                    Some(object) => versions.set(&file, object),
                    None => versions.remove(&name),
                };
            }
        }
        let mut events = Vec::new();
        for (key, before) in changed {
            let now = self.versions.get(&key);
            let empty = Versions::default();
            let now = now.unwrap_or(&empty);
            report_duplicates(&key, &before, now, &mut reports);
            let winning =
                |versions: &Versions<Object>| versions.winner().map(|(_, object)| object.clone());
            let (old, new) = (winning(&before), winning(now));
            if old != new {
                events.push(match new {
                    Some(object) => object.event(),
                    None => key.clone().gone(),
                });
            }
            if now.is_empty() {
                self.versions.remove(&key);
            }
        }
        Outcome { events, reports }
    }

    /// Makes a file's new version the one in force, if it may be. Returns the
    /// objects in which it differs from the version before.
    fn read(
        &mut self,
        name: &OsStr,
        found: Found,
        reports: &mut Vec<Report>,
    ) -> Vec<(Key, Option<Object>)> {
        let hash = {
            let mut hasher = DefaultHasher::new();
            match &found {
                Found::Text(text) => (0, text).hash(&mut hasher),
                Found::Unreadable(reason) => (1, reason).hash(&mut hasher),
                Found::Gone => {
                    let file = self.files.remove(name);
                    let objects = file.map(|file| file.objects).unwrap_or_default();
                    return objects.into_keys().map(|key| (key, None)).collect();
                }
            }
            hasher.finish()
        };
        let file = self.files.entry(name.to_owned()).or_default();
        if file.hash.replace(hash) == Some(hash) {
            return Vec::new();
        }
        let preserved = if file.was_good {
            Preserved::LastGood
        } else {
            Preserved::GoodDocuments
        };
        let text = match found {
            Found::Text(text) => text,
            Found::Unreadable(reason) => {
                file.broken = true;
                reports.push(Report::Unreadable {
                    file: name.to_owned(),
                    reason,
                    preserved,
                });
                return Vec::new();
            }
            Found::Gone => return Vec::new(),
        };

        let version = Version::of(name, &text, preserved, &mut self.names);
        let faults = version.reports.into_iter().filter(|report| match report {
            Report::IgnoredKind { kind, .. } => file.ignored.insert(kind.clone()),
            _ => true,
        });
        reports.extend(faults);
        if file.broken && !version.broken {
            reports.push(Report::GoodAgain {
                file: name.to_owned(),
            });
        }
        file.broken = version.broken;
        if version.broken && file.was_good {
            return Vec::new();
        }
        file.was_good |= !version.broken;
        let old = std::mem::replace(&mut file.objects, version.objects);
        let changed = file
            .objects
            .iter()
            .filter(|(key, object)| old.get(key) != Some(object))
            .map(|(key, object)| (key.clone(), Some(object.clone())));
        let gone = old.keys().filter(|key| !file.objects.contains_key(key));
        changed.chain(gone.map(|key| (key.clone(), None))).collect()
    }
}

/// Reports which file counts, where that is new.
fn report_duplicates(
    key: &Key,
    before: &Versions<Object>,
    now: &Versions<Object>,
    reports: &mut Vec<Report>,
) {
    let Some((winner, _)) = now.winner() else {
        return;
    };
    let same_winner = before.are_several() && before.winner().is_some_and(|(w, _)| w == winner);
    for (loser, was_there) in now.losers(before) {
        if !(same_winner && was_there) {
            reports.push(Report::Duplicate {
                object: key.to_string(),
                loser,
                winner: winner.to_owned(),
            });
        }
    }
}

/// What a file's text means.
struct Version {
    objects: BTreeMap<Key, Object>,
    broken: bool,
    reports: Vec<Report>,
}

impl Version {
    fn of(file: &OsStr, text: &str, preserved: Preserved, names: &mut Names) -> Version {
        let json = Path::new(file).extension() == Some(OsStr::new("json"));
        let (format, documents) = if json {
            (Format::Json, split_json(text))
        } else {
            (Format::Yaml, split_yaml(text))
        };
        let mut version = Version {
            objects: BTreeMap::new(),
            broken: false,
            reports: Vec::new(),
        };
        for document in documents {
            let mut broken = |line: Option<usize>, reason: String| {
                version.broken = true;
                version.reports.push(Report::Broken {
                    file: file.to_owned(),
                    document: document.number,
                    line: line.map(|line| line + document.first_line - 1),
                    reason,
                    preserved,
                });
            };
            let each = |object| Object::reduce(&object, names);
            let contents = match parse::read(document.text, format, each) {
                Ok(contents) => contents,
                Err(fault) => {
                    broken(fault.line, fault.reason);
                    continue;
                }
            };
            let mut warnings = Vec::new();
            for reduced in contents.objects {
                match reduced {
                    Ok(Reduced {
                        object,
                        warnings: skipped,
                    }) => {
                        warnings.extend(skipped);
                        let key = object.key();
                        if version.objects.insert(key.clone(), object).is_some() {
                            version.reports.push(Report::Duplicate {
                                object: key.to_string(),
                                loser: file.to_owned(),
                                winner: file.to_owned(),
                            });
                        }
                    }
                    Err(fault) => {
                        version.broken = true;
                        version.reports.push(Report::Broken {
                            file: file.to_owned(),
                            document: document.number,
                            line: None,
                            reason: fault.to_string(),
                            preserved,
                        });
                    }
                }
            }
            let skipped = warnings.into_iter().map(|warning| Report::Skipped {
                file: file.to_owned(),
                document: document.number,
                warning,
            });
            version.reports.extend(skipped);
            let ignored = contents
                .ignored
                .into_iter()
                .map(|kind| Report::IgnoredKind {
                    file: file.to_owned(),
                    kind,
                });
            version.reports.extend(ignored);
        }
        version
    }
}

impl Object {
    fn reduce(object: &ApiObject, names: &mut Names) -> Result<Reduced<Object>, Invalid> {
        fn wrap<T>(reduced: Reduced<T>, wrap: fn(Arc<T>) -> Object) -> Reduced<Object> {
            Reduced {
                object: wrap(Arc::new(reduced.object)),
                warnings: reduced.warnings,
            }
        }
        Ok(match object {
            ApiObject::Service(service) => wrap(Service::reduce(service, names)?, Object::Service),
            ApiObject::EndpointSlice(slice) => {
                let reduced = EndpointSlice::reduce_of_file(slice, names)?;
                wrap(reduced, Object::EndpointSlice)
            }
            ApiObject::Node(node) => wrap(Node::reduce(node, names)?, Object::Node),
            ApiObject::ServiceCidr(cidr) => {
                wrap(ServiceCidr::reduce(cidr, names)?, Object::ServiceCidr)
            }
        })
    }

    fn key(&self) -> Key {
        match self {
            Object::Node(node) => Key::Node(Arc::clone(&node.name)),
            Object::ServiceCidr(cidr) => Key::ServiceCidr(Arc::clone(&cidr.name)),
            Object::Service(service) => Key::Service(service.name.clone()),
            Object::EndpointSlice(slice) => Key::EndpointSlice(slice.name.clone()),
        }
    }

    fn event(&self) -> Event {
        match self {
            Object::Node(node) => Event::Node(Arc::clone(node)),
            Object::ServiceCidr(cidr) => Event::ServiceCidr(Arc::clone(cidr)),
            Object::Service(service) => Event::Service(Arc::clone(service)),
            Object::EndpointSlice(slice) => Event::EndpointSlice(Arc::clone(slice)),
        }
    }
}

impl Key {
    fn gone(self) -> Event {
        match self {
            Key::Node(name) => Event::NodeGone(name),
            Key::ServiceCidr(name) => Event::ServiceCidrGone(name),
            Key::Service(name) => Event::ServiceGone(name),
            Key::EndpointSlice(name) => Event::EndpointSliceGone(name),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Node(name) => write!(f, "Node {name}"),
            Key::ServiceCidr(name) => write!(f, "ServiceCIDR {name}"),
            Key::Service(name) => write!(f, "Service {name}"),
            Key::EndpointSlice(name) => write!(f, "EndpointSlice {name}"),
        }
    }
}

#[cfg(test)]
mod tests;
