//! What a folder of files means: which version of each file is in force, and
//! which file counts for an object that several have. This uses no file system.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::{OsStr, OsString},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use super::{
    kind::Key,
    object::Object,
    report::{Preserved, Report},
    version::Version,
    versions::Versions,
};
use crate::services::{Event, Names};

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

#[cfg(test)]
mod tests;
