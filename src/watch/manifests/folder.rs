//! The state of a folder of files: which version of each file is in use, and which file counts for
//! an object that several have. This does not access the file system.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use super::{
    report::{
        Level::{Fault, Info, Warning},
        Report, first_of,
    },
    version::Version,
};
use crate::services::{Event, Names, Object, ObjectName};

/// Maximum number of faults of a file that are remembered.
const MOST_FAULTS: usize = 10;

/// The result of reading a file in a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The text of the file.
    Text(String),
    /// The file exists but cannot be read, for this reason.
    Unreadable(String),
    /// The file does not exist any more.
    Gone,
}

/// The objects of a folder, and the reports about them that were logged.
#[derive(Debug, Default)]
pub(super) struct Folder {
    files: BTreeMap<OsString, File>,
    /// Every file's version of an object, in one table: a map for each object took 450 bytes.
    objects: BTreeMap<(ObjectName, Arc<OsStr>), Object>,
    names: Names,
}

/// The versions of one object, sorted by their files' names.
type Versions = Vec<(Arc<OsStr>, Object)>;

#[derive(Debug, Default)]
struct File {
    /// Hash of the last text or reason whose reports were logged.
    hash: Option<u64>,
    /// The objects of the file that are in use.
    objects: BTreeMap<ObjectName, Object>,
    /// Those of them that are kept, because a broken part of the file has them, or may have them.
    preserved: BTreeSet<ObjectName>,
    /// The present faults of the file.
    faults: Vec<String>,
    ignored: BTreeSet<String>,
}

/// The effects of reading files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) events: Vec<Event>,
    pub(super) reports: Vec<Report>,
}

impl Folder {
    /// The names of the files that have objects, or reports, now.
    pub(super) fn files(&self) -> impl Iterator<Item = &OsString> {
        self.files.keys()
    }

    /// Lists the present faults of files.
    pub(super) fn faults(&self) -> impl Iterator<Item = &String> {
        self.files.values().flat_map(|file| &file.faults)
    }

    /// Applies the results for some files; other files are unchanged.
    pub(super) fn take(&mut self, found: impl IntoIterator<Item = (OsString, Found)>) -> Outcome {
        let mut reports = Vec::new();
        // The versions, before this call, of each object that may differ now.
        let mut changed: BTreeMap<ObjectName, Versions> = BTreeMap::new();
        for (name, found) in found {
            let file: Arc<OsStr> = name.as_os_str().into();
            for (name, object) in self.read(&name, found, &mut reports) {
                let before = || self.versions(&name);
                changed.entry(name.clone()).or_insert_with(before);
                let place = (name, Arc::clone(&file));
                match object {
                    Some(object) => self.objects.insert(place, object),
                    None => self.objects.remove(&place),
                };
            }
        }
        let mut events = Vec::new();
        for (name, before) in changed {
            let now = self.versions(&name);
            report_duplicates(&name, &before, &now, &mut reports);
            let winning = |versions: &Versions| Some(versions.last()?.1.clone());
            let (old, new) = (winning(&before), winning(&now));
            if old != new {
                events.push(new.map_or(Event::Gone(name), Event::Changed));
            }
        }
        Outcome { events, reports }
    }

    /// Returns the files' versions of an object; that of the last one counts.
    fn versions(&self, name: &ObjectName) -> Versions {
        let first = (name.clone(), Arc::from(OsStr::new("")));
        let versions = self.objects.range(first..);
        versions
            .take_while(|((of, _), _)| of == name)
            .map(|((_, file), object)| (Arc::clone(file), object.clone()))
            .collect()
    }

    /// Applies a file's new version, if it is usable. Returns the objects that differ from the
    /// previous version.
    fn read(
        &mut self,
        name: &OsStr,
        found: Found,
        reports: &mut Vec<Report>,
    ) -> Vec<(ObjectName, Option<Object>)> {
        let hash = {
            let mut hasher = DefaultHasher::new();
            match &found {
                Found::Text(text) => (0, text).hash(&mut hasher),
                Found::Unreadable(reason) => (1, reason).hash(&mut hasher),
                Found::Gone => {
                    let file = self.files.remove(name).unwrap_or_default();
                    reports.extend(first_of(&file.preserved).map(|objects| over(name, &objects)));
                    return file.objects.into_keys().map(|key| (key, None)).collect();
                }
            }
            hasher.finish()
        };
        let file = self.files.entry(name.to_owned()).or_default();
        if file.hash.replace(hash) == Some(hash) {
            return Vec::new();
        }
        let text = match found {
            Found::Text(text) => text,
            Found::Unreadable(reason) => {
                let effect = match file.objects.is_empty() {
                    true => "it is not used",
                    false => "its last content stays applied",
                };
                let report = Report::new(Fault, name, format!("{reason}; {effect}"));
                file.faults = vec![report.text.clone()];
                reports.push(report);
                return Vec::new();
            }
            Found::Gone => return Vec::new(),
        };

        let mut version = Version::of(name, &text, &mut self.names);
        let faults = version.reports.iter().filter(|r| r.level == Fault);
        let faults = faults.map(|report| report.text.clone()).take(MOST_FAULTS);
        let faults = std::mem::replace(&mut file.faults, faults.collect());
        for kind in std::mem::take(&mut version.ignored) {
            let text = format!(
                "{kind} is ignored: a service proxy reads v1 Service, v1 Node, \
                 discovery.k8s.io/v1 EndpointSlice and networking.k8s.io/v1 ServiceCIDR"
            );
            if file.ignored.insert(kind) {
                reports.push(Report::new(Info, name, text));
            }
        }
        reports.append(&mut version.reports);
        file.renew(name, version, !faults.is_empty(), reports)
    }
}

impl File {
    /// Applies a version. Objects that it does not have are removed, except broken ones: that an
    /// object cannot be parsed does not mean that it was removed. Returns the objects that differ
    /// from those that were in use.
    fn renew(
        &mut self,
        name: &OsStr,
        version: Version,
        was_broken: bool,
        reports: &mut Vec<Report>,
    ) -> Vec<(ObjectName, Option<Object>)> {
        let Version {
            mut objects,
            unread,
            ..
        } = version;
        let mut preserved = BTreeSet::new();
        for (key, object) in &self.objects {
            if unread.may_have(key) && !objects.contains_key(key) {
                preserved.insert(key.clone());
                objects.insert(key.clone(), object.clone());
            }
        }
        let old = std::mem::replace(&mut self.objects, objects);
        let previously_preserved = std::mem::replace(&mut self.preserved, preserved);

        let (broken, unknown): (Vec<_>, Vec<_>) = self
            .preserved
            .difference(&previously_preserved)
            .partition(|key| unread.keys.contains(*key));
        let stays = first_of(broken).map(|objects| {
            let text = format!(
                "these objects stay at their last valid version until the invalid part is \
                 corrected or removed: {objects}"
            );
            Report::new(Warning, name, text)
        });
        let not_removed = first_of(unknown).map(|objects| {
            let text = format!(
                "part of the file cannot be read and may contain these objects, which are not \
                 removed until it is corrected: {objects}"
            );
            Report::new(Warning, name, text)
        });
        let over = first_of(previously_preserved.difference(&self.preserved))
            .map(|objects| over(name, &objects));
        let good_again = (was_broken && unread.is_empty())
            .then(|| Report::new(Info, name, "valid again; all of it is used"));
        let news = [stays, not_removed, over, good_again];
        reports.extend(news.into_iter().flatten());

        let changed = self
            .objects
            .iter()
            .filter(|(key, object)| old.get(key) != Some(object))
            .map(|(key, object)| (key.clone(), Some(object.clone())));
        let gone = old.keys().filter(|key| !self.objects.contains_key(key));
        changed.chain(gone.map(|key| (key.clone(), None))).collect()
    }
}

/// Reports that objects which had been kept follow the file again.
fn over(file: &OsStr, objects: &str) -> Report {
    Report::new(Info, file, format!("up to date again: {objects}"))
}

/// Reports which file counts, if that is new.
fn report_duplicates(
    name: &ObjectName,
    before: &Versions,
    now: &Versions,
    reports: &mut Vec<Report>,
) {
    let Some(((winner, _), losers)) = now.split_last() else {
        return;
    };
    let same_winner = before.len() > 1 && before.last().is_some_and(|(file, _)| file == winner);
    for (loser, _) in losers {
        if same_winner && before.iter().any(|(file, _)| file == loser) {
            continue;
        }
        let text = format!(
            "{name} is in {} and in {}: the latter is used, because its file name sorts last",
            loser.display(),
            winner.display()
        );
        let level = Warning;
        reports.push(Report { level, text });
    }
}

#[cfg(test)]
mod tests;
