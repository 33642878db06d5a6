//! The content of a file's text.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
    path::Path,
};

use super::{
    documents::{Document, split_json, split_yaml},
    parse::{self, Broken, Contents, Format, UnknownField},
    report::{Level, Report},
};
use crate::{
    services::{Loopback, Names, Object, ObjectName, Reduced},
    watch::kind::ApiObject,
};

/// The objects in a file's text, and its faults.
pub(super) struct Version {
    pub(super) objects: BTreeMap<ObjectName, Object>,
    pub(super) unread: Unread,
    pub(super) reports: Vec<Report>,
    /// Kinds that are not for a service proxy.
    pub(super) ignored: BTreeSet<String>,
    file: OsString,
    /// Objects that occur more than once, each with the number of times.
    repeated: BTreeMap<ObjectName, usize>,
}

/// The parts of a text that cannot be parsed or used.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// The broken objects whose keys can be read.
    pub(super) keys: BTreeSet<ObjectName>,
    /// Whether there is a part whose objects are unknown.
    pub(super) unknown: bool,
}

/// An object of a document, with its unknown fields, or its fault.
type ReducedDocument = Result<(Reduced<Object>, Vec<UnknownField>), Broken>;

impl Unread {
    /// Returns whether there are no such parts.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.unknown
    }

    /// Returns whether these parts may have that object.
    pub(super) fn may_have(&self, key: &ObjectName) -> bool {
        self.unknown || self.keys.contains(key)
    }
}

impl Version {
    /// Reads the text of the file of that name.
    pub(super) fn of(file: &OsStr, text: &str, names: &mut Names) -> Version {
        let json = Path::new(file).extension() == Some(OsStr::new("json"));
        let (format, documents) = if json {
            (Format::Json, split_json(text))
        } else {
            (Format::Yaml, split_yaml(text))
        };
        let mut version = Version {
            objects: BTreeMap::new(),
            unread: Unread::default(),
            reports: Vec::new(),
            ignored: BTreeSet::new(),
            file: file.to_owned(),
            repeated: BTreeMap::new(),
        };
        for document in documents {
            let each = |item, object: ApiObject, unknown: Vec<UnknownField>| {
                let key = object.name();
                let mut typing_errors = unknown.iter().filter(|field| field.is_typing_error());
                if let Some(field) = typing_errors.next() {
                    let item = Broken {
                        item,
                        ..Broken::because(field.to_string())
                    };
                    return Err(item.of(key));
                }
                let reduced = object
                    .reduce(Loopback::Allowed, names)
                    .map_err(|fault| Broken {
                        item,
                        key,
                        reason: fault.to_string(),
                        ..Broken::default()
                    })?;
                Ok((reduced, unknown))
            };
            let contents = parse::read(document.text, format, each);
            version.add(
                &document,
                contents.unwrap_or_else(|fault| Contents {
                    broken: vec![fault],
                    ..Contents::default()
                }),
            );
        }
        for (key, times) in std::mem::take(&mut version.repeated) {
            let text = format!("{key} is defined {times} times; the last definition is used");
            version.report(Level::Warning, text);
        }
        version
    }

    fn add(&mut self, document: &Document<'_>, contents: Contents<ReducedDocument>) {
        let mut broken = contents.broken;
        let mut warnings = Vec::new();
        for reduced in contents.objects {
            match reduced {
                Ok((reduced, unknown)) => {
                    let key = reduced.object.name();
                    warnings.extend(reduced.warnings.iter().map(ToString::to_string));
                    warnings.extend(unknown.iter().map(|field| format!("{key}: {field}")));
                    if self.objects.insert(key.clone(), reduced.object).is_some() {
                        *self.repeated.entry(key).or_insert(1) += 1;
                    }
                }
                Err(fault) => broken.push(fault),
            }
        }
        broken.sort_by_key(|fault| fault.item.unwrap_or(usize::MAX));
        for fault in &broken {
            match &fault.key {
                Some(key) => _ = self.unread.keys.insert(key.clone()),
                None => self.unread.unknown = true,
            }
        }
        let number = document.number;
        for fault in broken {
            let line = fault.line.map(|line| line + document.first_line - 1);
            let line = line.map_or_else(String::new, |line| format!(", line {line}"));
            let text = format!(
                "document {number}{line}: {fault}; the rest of the file is used, and what cannot be \
                 read stays as it was"
            );
            self.report(Level::Fault, text);
        }
        for warning in warnings {
            let text = format!("document {number}: {warning}; ignoring this value");
            self.report(Level::Warning, text);
        }
        self.ignored.extend(contents.ignored);
    }

    fn report(&mut self, level: Level, text: String) {
        self.reports.push(Report::new(level, &self.file, text));
    }
}
