//! Faults of an object, by field.

use std::{borrow::Cow, fmt, hash::Hash, sync::Arc};

use hashbrown::HashSet;

/// Maximum number of characters of a value that a message quotes.
const QUOTED: usize = 200;

/// Maximum number of warnings about one object; further ones are only counted.
const NAMED: usize = 20;

/// Maximum number of characters of an object's name (`DNS1123SubdomainMaxLength` of
/// `k8s.io/apimachinery/pkg/util/validation`).
const LONGEST_NAME: usize = 253;

/// A field whose value cannot be used. As an error it means that the whole object is refused; as a
/// warning, that only this value is left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Invalid {
    /// Kind of the object: `Service`, `EndpointSlice` or `Node`.
    pub kind: &'static str,
    /// `namespace/name` of the object, or its name if it has no namespace.
    pub name: String,
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
    /// The value of the field.
    pub value: String,
    /// Why it cannot be used.
    pub reason: Cow<'static, str>,
}

impl Invalid {
    /// Describes the field and its fault, without the name of the object.
    pub fn what(&self) -> String {
        format!("{} is {:?}: {}", self.field, self.value, self.reason)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.kind, self.name, self.what())
    }
}

/// A reduced object, and the values that had to be left out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reduced<T> {
    /// The object without the values that `warnings` name.
    pub object: T,
    /// Values that were skipped; the reader of the object logs them once.
    pub warnings: Vec<Invalid>,
}

impl<T> Reduced<T> {
    /// Converts the object, which several readers may share from now on.
    pub fn map<U>(self, convert: impl FnOnce(Arc<T>) -> U) -> Reduced<U> {
        Reduced {
            object: convert(Arc::new(self.object)),
            warnings: self.warnings,
        }
    }
}

/// Gathers the warnings of one object while it is reduced.
pub(super) struct Inspection {
    kind: &'static str,
    name: String,
    warnings: Vec<Invalid>,
    /// Number of further warnings, which are not kept.
    unnamed: usize,
}

impl Inspection {
    pub(super) fn of(kind: &'static str, name: impl fmt::Display) -> Inspection {
        Inspection {
            kind,
            name: quoted(name),
            warnings: Vec::new(),
            unnamed: 0,
        }
    }

    /// Returns an error that refuses the object.
    pub(super) fn refuse(
        &self,
        field: impl Into<String>,
        value: impl fmt::Display,
        reason: impl Into<Cow<'static, str>>,
    ) -> Invalid {
        Invalid {
            kind: self.kind,
            name: self.name.clone(),
            field: field.into(),
            value: quoted(value),
            reason: reason.into(),
        }
    }

    /// Adds a warning about a value that is left out.
    pub(super) fn skip(
        &mut self,
        field: impl Into<String>,
        value: impl fmt::Display,
        reason: impl Into<Cow<'static, str>>,
    ) {
        let warning = self.refuse(field, value, reason);
        self.warn(warning);
    }

    /// Adds an error as a warning, because the rest of the object can be used.
    pub(super) fn warn(&mut self, warning: Invalid) {
        if self.warnings.len() < NAMED {
            self.warnings.push(warning);
        } else {
            self.unnamed += 1;
        }
    }

    /// Checks the name of an object, of a namespace or of a port. The characters that this allows
    /// are safe in rules, comments and log lines; the API server allows even fewer.
    pub(super) fn name(&self, field: impl Into<String>, name: &str) -> Result<(), Invalid> {
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        if name.len() <= LONGEST_NAME && name.chars().all(is_safe) {
            return Ok(());
        }
        let reason = format!(
            "a name has at most {LONGEST_NAME} characters, which are letters, digits, '-', '.' \
             and '_'"
        );
        Err(self.refuse(field, name, reason))
    }

    /// Returns the port number of a field that must be set.
    pub(super) fn port(&self, field: impl Into<String>, value: i32) -> Result<u16, Invalid> {
        u16::try_from(value)
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| self.refuse(field, value, "a port is a number from 1 to 65535"))
    }

    /// Returns the port number of a field that may be unset; 0 means unset as well.
    pub(super) fn optional_port(
        &self,
        field: impl Into<String>,
        value: Option<i32>,
    ) -> Result<Option<u16>, Invalid> {
        match value {
            None | Some(0) => Ok(None),
            Some(value) => self.port(field, value).map(Some),
        }
    }

    /// Returns the protocol; TCP where none is named, as the API server
    /// defaults it.
    pub(super) fn protocol(
        &self,
        field: impl Into<String>,
        value: Option<&str>,
    ) -> Result<super::Protocol, Invalid> {
        match value {
            None | Some("" | "TCP") => Ok(super::Protocol::Tcp),
            Some("UDP") => Ok(super::Protocol::Udp),
            Some("SCTP") => Ok(super::Protocol::Sctp),
            Some(other) => Err(self.refuse(field, other, "a protocol is TCP, UDP or SCTP")),
        }
    }

    pub(super) fn finish<T>(mut self, object: T) -> Reduced<T> {
        if let (Some(last), more @ 1..) = (self.warnings.last_mut(), self.unnamed) {
            let reason = format!("{}; {more} more values are ignored", last.reason);
            last.reason = reason.into();
        }
        Reduced {
            object,
            warnings: self.warnings,
        }
    }
}

/// Returns the first [`QUOTED`] characters of a text.
fn quoted(text: impl fmt::Display) -> String {
    let mut text = text.to_string();
    if let Some((end, _)) = text.char_indices().nth(QUOTED) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Removes duplicates, and keeps the order; an object may have thousands of values.
pub(super) fn once<T: Copy + Eq + Hash>(values: Vec<T>) -> Box<[T]> {
    let mut known = HashSet::new();
    let values = values.into_iter();
    values.filter(|value| known.insert(*value)).collect()
}
