//! Decodes a text of either format, and describes its faults in words.

use std::fmt;

use serde::de::DeserializeSeed;
use serde_json::Value;

use crate::{
    services::{Kind, ObjectName},
    watch::kind::{ApiObject, ObjectSeed},
    yaml,
};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::watch::manifests) enum Format {
    Yaml,
    Json,
}

/// The objects of one document, each converted to a `T`.
#[derive(Debug)]
pub(in crate::watch::manifests) struct Contents<T> {
    pub(in crate::watch::manifests) objects: Vec<T>,
    /// Kinds that are not for a service proxy, as `apiVersion kind`.
    pub(in crate::watch::manifests) ignored: Vec<String>,
    /// Items of a list that cannot be parsed.
    pub(in crate::watch::manifests) broken: Vec<Broken>,
}

impl<T> Default for Contents<T> {
    fn default() -> Contents<T> {
        Contents {
            objects: Vec::new(),
            ignored: Vec::new(),
            broken: Vec::new(),
        }
    }
}

/// Why a document, or an item of its list, cannot be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::watch::manifests) struct Broken {
    /// Line within the document's text, from 1.
    pub(in crate::watch::manifests) line: Option<usize>,
    /// Number of the item in the document's list, from 0.
    pub(in crate::watch::manifests) item: Option<usize>,
    /// The object that cannot be parsed, if at least its name can be.
    pub(in crate::watch::manifests) key: Option<ObjectName>,
    pub(in crate::watch::manifests) reason: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(item) = self.item {
            write!(f, "items[{item}]: ")?;
        }
        f.write_str(&self.reason)
    }
}

impl Broken {
    pub(in crate::watch::manifests) fn because(reason: impl Into<String>) -> Broken {
        Broken {
            reason: reason.into(),
            ..Broken::default()
        }
    }

    /// Adds the number of the item in the document's list.
    pub(super) fn of_item(self, item: usize) -> Broken {
        Broken {
            item: Some(item),
            ..self
        }
    }

    /// Adds the object, which the reason then names.
    pub(in crate::watch::manifests) fn of(self, key: Option<ObjectName>) -> Broken {
        let reason = match &key {
            Some(key) => format!("{key}: {}", self.reason),
            None => self.reason,
        };
        Broken {
            key,
            reason,
            ..self
        }
    }

    /// Adds the faulty line, which is allowed only for kinds that a service proxy reads: any other
    /// document may be a Secret.
    pub(super) fn quoting(self, text: &str) -> Broken {
        let line = self
            .line
            .and_then(|line| text.lines().nth(line.checked_sub(1)?));
        let Some(line) = line.map(str::trim).filter(|line| !line.is_empty()) else {
            return self;
        };
        let (quote, dots) = match line.char_indices().nth(LONGEST_QUOTE) {
            Some((end, _)) => (&line[..end], " ..."),
            None => (line, ""),
        };
        Broken {
            reason: format!("{} (at `{quote}{dots}`)", self.reason),
            ..self
        }
    }
}

/// Maximum number of characters of a faulty line that a message repeats.
const LONGEST_QUOTE: usize = 60;

/// Decodes a value by `seed`.
pub(super) fn decode<'de, S>(text: &'de str, format: Format, seed: S) -> Result<S::Value, Broken>
where
    S: DeserializeSeed<'de>,
{
    match format {
        Format::Yaml => {
            let options = yaml::limited(text.len());
            let read = serde_saphyr::with_deserializer_from_str_with_options(
                text,
                options,
                |deserializer| seed.deserialize(deserializer),
            );
            read.map_err(|error| yaml_error(&error))
        }
        Format::Json => {
            let mut deserializer = serde_json::Deserializer::from_str(text);
            let read = seed.deserialize(&mut deserializer);
            let read = read.and_then(|value| deserializer.end().map(|()| value));
            read.map_err(|error| json_error(&error))
        }
    }
}

/// Converts a value to an object of that kind, if it is one. A whole number that is written in
/// another form, such as `80.0` or `8e1`, counts as one, as for `kubectl`, which converts it to
/// JSON.
pub(super) fn of_value(mut value: Value, kind: Kind) -> Option<ApiObject> {
    make_whole(&mut value);
    ObjectSeed(kind).deserialize(value).ok()
}

/// Makes numbers without a fraction whole ones.
fn make_whole(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|_| number.is_f64());
            let whole = float.filter(|f| f.fract() == 0.0 && f.abs() < LARGEST_WHOLE);
            if let Some(whole) = whole {
                *value = Value::from(whole as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(make_whole),
        Value::Object(fields) => fields.values_mut().for_each(make_whole),
        _ => {}
    }
}

/// Above it, floating-point numbers are no longer exact.
const LARGEST_WHOLE: f64 = 9e15;

fn yaml_error(error: &serde_saphyr::Error) -> Broken {
    let error = error.without_snippet();
    let line = error.location().map(|location| location.line());
    let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    Broken {
        line: line
            .filter(|line| *line > 0)
            .and_then(|line| usize::try_from(line).ok()),
        reason: in_words(one_line(without_position(&text))),
        ..Broken::default()
    }
}

/// Replaces the parser's most common messages, which name Rust's types and YAML's grammar.
fn in_words(reason: String) -> String {
    match reason.as_str() {
        "invalid i32" | "invalid i64" => "expected a whole number".to_owned(),
        "expected mapping start" => "expected `key: value` pairs".to_owned(),
        "expected string scalar" => "expected a single value".to_owned(),
        "expected sequence start" => "expected a list".to_owned(),
        "recursion limit exceeded" => "nested too deeply".to_owned(),
        _ => reason,
    }
}

fn json_error(error: &serde_json::Error) -> Broken {
    let text = error.to_string();
    Broken {
        line: Some(error.line()).filter(|line| *line > 0),
        reason: one_line(without_position(&text)),
        ..Broken::default()
    }
}

/// Removes the position from the parser's message: within a document it would mislead, and the
/// caller adds the right one.
fn without_position(text: &str) -> &str {
    match text.find(" at line ") {
        Some(at) => &text[..at],
        None => text,
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
