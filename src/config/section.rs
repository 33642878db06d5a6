//! Reads the fields of a group, and records its faults: values of another type, unknown fields,
//! fields given twice.

use std::{collections::BTreeMap, time::Duration};

use super::{Problem, tree::Tree};
use crate::duration;

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Values that cannot be used.
    pub(super) problems: Vec<Problem>,
    /// Fields that kube-proxy's strict decoder refuses and its lenient one ignores.
    pub(super) ignored: Vec<String>,
}

/// A group of fields.
pub(super) struct Section<'a> {
    /// Path of the group, followed by a dot; empty for the top.
    prefix: String,
    entries: &'a [(String, Tree)],
    known: Vec<&'static str>,
    findings: &'a mut Findings,
}

impl<'a> Section<'a> {
    /// Lets `read` read the fields that it knows from `entries`, and records the others.
    pub(super) fn visit(
        prefix: String,
        entries: &'a [(String, Tree)],
        findings: &'a mut Findings,
        read: impl FnOnce(&mut Section<'_>),
    ) {
        let mut section = Section {
            prefix,
            entries,
            known: Vec::new(),
            findings,
        };
        read(&mut section);
        section.finish();
    }

    /// Reads a field whose zero value counts as absent: then the default stays. Returns
    /// whether the field has another value.
    pub(super) fn value<T: Readable>(&mut self, name: &'static str, into: &mut T) -> bool {
        match self.take(name) {
            Some(value) if value != T::default() => {
                *into = value;
                true
            }
            _ => false,
        }
    }

    /// Reads a field whose zero value is a value like any other: only an absent or null
    /// field leaves the default.
    pub(super) fn pointer<T: Readable>(&mut self, name: &'static str, into: &mut T) {
        if let Some(value) = self.take(name) {
            *into = value;
        }
    }

    /// Reads a group within this one.
    pub(super) fn section(&mut self, name: &'static str, read: impl FnOnce(&mut Section<'_>)) {
        let nothing = &[][..];
        let entries = match self.entry(name) {
            Some(Tree::Map(entries)) => entries,
            None | Some(Tree::Null) => nothing,
            Some(other) => {
                self.refuse(name, format!("{other} is not a group of fields"));
                nothing
            }
        };
        let prefix = format!("{}{name}.", self.prefix);
        Section::visit(prefix, entries, self.findings, read);
    }

    /// Reads the groups of a list.
    pub(super) fn sections(&mut self, name: &'static str, mut read: impl FnMut(&mut Section<'_>)) {
        let items = match self.entry(name) {
            Some(Tree::List(items)) => items,
            None | Some(Tree::Null) => return,
            Some(other) => return self.refuse(name, format!("{other} is not a list")),
        };
        for (i, item) in items.iter().enumerate() {
            let prefix = format!("{}{name}[{i}].", self.prefix);
            match item {
                Tree::Map(entries) => Section::visit(prefix, entries, self.findings, &mut read),
                other => self.findings.problems.push(Problem {
                    field: format!("{}{name}[{i}]", self.prefix),
                    flag: None,
                    what: format!("{other} is not a group of fields"),
                }),
            }
        }
    }

    /// Marks a field as known that is read elsewhere.
    pub(super) fn skip(&mut self, name: &'static str) {
        self.known.push(name);
    }

    fn take<T: Readable>(&mut self, name: &'static str) -> Option<T> {
        let tree = self.entry(name).filter(|tree| **tree != Tree::Null)?;
        match T::read(tree) {
            Ok(value) => Some(value),
            Err(why) => {
                self.refuse(name, why);
                None
            }
        }
    }

    /// Finds the field of that name; if there are several, the last, as for kube-proxy's lenient
    /// decoder.
    fn entry(&mut self, name: &'static str) -> Option<&'a Tree> {
        self.known.push(name);
        let mut found = self.entries.iter().rev();
        found.find(|(key, _)| key == name).map(|(_, value)| value)
    }

    fn refuse(&mut self, name: &str, what: String) {
        self.findings.problems.push(Problem {
            field: format!("{}{name}", self.prefix),
            flag: None,
            what,
        });
    }

    fn finish(self) {
        for (i, (key, _)) in self.entries.iter().enumerate() {
            let path = format!("{}{key}", self.prefix);
            let known = self.known.iter().any(|known| known == key);
            let again = self.entries[..i].iter().any(|(earlier, _)| earlier == key);
            if known && again {
                self.findings
                    .ignored
                    .push(format!("{path} is given twice; the last value is used"));
            } else if !known && !again {
                let mut near = self.known.iter();
                let meant = near.find(|known| known.eq_ignore_ascii_case(key));
                self.findings.ignored.push(match meant {
                    Some(meant) => format!("{path} is unknown, did you mean {meant}?"),
                    None => format!("{path} is unknown"),
                });
            }
        }
    }
}

/// A type that a field can have.
pub(super) trait Readable: Default + PartialEq + Sized {
    fn read(tree: &Tree) -> Result<Self, String>;
}

impl Readable for String {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::Text(text) => Ok(text.clone()),
            other => Err(format!("{other} is not a string; put it in quotes")),
        }
    }
}

impl Readable for bool {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::Bool(value) => Ok(*value),
            // kube-proxy's YAML reader still accepts the booleans of YAML 1.1.
            Tree::Text(text) if ["yes", "on"].contains(&&*text.to_lowercase()) => Ok(true),
            Tree::Text(text) if ["no", "off"].contains(&&*text.to_lowercase()) => Ok(false),
            other => Err(format!("{other} is neither true nor false")),
        }
    }
}

fn whole<T: TryFrom<i128>>(tree: &Tree) -> Result<T, String> {
    match tree {
        Tree::Int(number) => T::try_from(*number).map_err(|_| format!("{number} is out of range")),
        // `1.0` and `1e3` are whole numbers in JSON, into which kube-proxy converts the file.
        Tree::Float(number) if number.fract() == 0.0 => {
            T::try_from(*number as i128).map_err(|_| format!("{number} is out of range"))
        }
        other => Err(format!("{other} is not a whole number")),
    }
}

impl Readable for i32 {
    fn read(tree: &Tree) -> Result<Self, String> {
        whole(tree)
    }
}

impl Readable for u32 {
    fn read(tree: &Tree) -> Result<Self, String> {
        whole(tree)
    }
}

impl Readable for f32 {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::Int(number) => Ok(*number as f32),
            Tree::Float(number) if number.is_finite() => Ok(*number as f32),
            other => Err(format!("{other} is not a number")),
        }
    }
}

impl Readable for Duration {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::Text(text) => duration::parse(text).map_err(|why| format!("{text:?}: {why}")),
            other => Err(format!(
                "{other} is not a duration; write it like 250ms, 30s or 1h15m"
            )),
        }
    }
}

impl<T: Readable> Readable for Vec<T> {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::List(items) => items.iter().map(T::read).collect(),
            other => Err(format!("{other} is not a list")),
        }
    }
}

impl<T: Readable> Readable for BTreeMap<String, T> {
    fn read(tree: &Tree) -> Result<Self, String> {
        match tree {
            Tree::Map(entries) => entries
                .iter()
                .map(|(key, value)| match T::read(value) {
                    Ok(value) => Ok((key.clone(), value)),
                    Err(why) => Err(format!("{key}: {why}")),
                })
                .collect(),
            other => Err(format!("{other} is not a group of fields")),
        }
    }
}
