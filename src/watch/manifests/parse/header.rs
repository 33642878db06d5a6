//! The fields that identify an object, read even if their values have another type: such a value is
//! left out and hides nothing after it.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};

use crate::services::{Kind, ObjectName};

/// Maximum length of a name that the API server accepts.
const LONGEST_NAME: usize = 253;

/// The kind of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Header {
    api_version: Text,
    pub(super) kind: Text,
}

impl Header {
    /// Returns version and kind.
    ///
    /// # Errors
    /// Says which of them is missing.
    pub(super) fn identity(self) -> Result<(String, String), &'static str> {
        match (self.api_version.filled(), self.kind.filled()) {
            (Some(api_version), Some(kind)) => Ok((api_version, kind)),
            (None, _) => Err("not a Kubernetes object: it has no apiVersion"),
            (_, None) => Err("not a Kubernetes object: it has no kind"),
        }
    }
}

/// The name of an object.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    metadata: Loose<Metadata>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    namespace: Text,
    name: Text,
}

impl Named {
    /// Identifies the object of that kind, if its name can be parsed.
    pub(super) fn key(self, kind: Kind) -> Option<ObjectName> {
        let Metadata { namespace, name } = self.metadata.0?;
        let namespace = match namespace {
            Text::Absent => None,
            Text::Is(namespace) => Some(namespace),
            Text::Odd => return None,
        };
        let name = name.filled()?;
        // The key is shown, so it must not be a text of arbitrary form or length.
        let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let mut texts = [namespace.as_deref(), Some(&*name)].into_iter().flatten();
        if !texts.all(|text| text.len() <= LONGEST_NAME && text.chars().all(is_safe)) {
            return None;
        }
        ObjectName::new(kind, namespace.as_deref(), Some(&name))
    }
}

/// A text, if there is one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Text {
    #[default]
    Absent,
    Is(String),
    /// A value of another type.
    Odd,
}

impl Text {
    fn filled(self) -> Option<String> {
        match self {
            Text::Is(text) if !text.is_empty() => Some(text),
            _ => None,
        }
    }
}

/// `key: value` pairs, if there are any.
#[derive(Debug)]
pub(super) struct Loose<T>(pub(super) Option<T>);

impl<T> Default for Loose<T> {
    fn default() -> Loose<T> {
        Loose(None)
    }
}

/// Reads a part of a value of any type.
trait Lenient<'de>: Sized {
    fn odd() -> Self;
    fn absent() -> Self {
        Self::odd()
    }
    fn text(_: &str) -> Self {
        Self::odd()
    }
    fn pairs<A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::odd())
    }
}

impl Lenient<'_> for Text {
    fn odd() -> Text {
        Text::Odd
    }

    fn absent() -> Text {
        Text::Absent
    }

    fn text(text: &str) -> Text {
        Text::Is(text.to_owned())
    }
}

impl<'de, T: Deserialize<'de>> Lenient<'de> for Loose<T> {
    fn odd() -> Loose<T> {
        Loose(None)
    }

    fn pairs<A: MapAccess<'de>>(map: A) -> Result<Loose<T>, A::Error> {
        let pairs = T::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Loose(Some(pairs)))
    }
}

struct Anything<L>(PhantomData<L>);

impl<'de, L: Lenient<'de>> Visitor<'de> for Anything<L> {
    type Value = L;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<L, E> {
        Ok(L::absent())
    }

    fn visit_none<E>(self) -> Result<L, E> {
        Ok(L::absent())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<L, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_i64<E>(self, _: i64) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_i128<E>(self, _: i128) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_u64<E>(self, _: u64) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_u128<E>(self, _: u128) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_f64<E>(self, _: f64) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_bytes<E>(self, _: &[u8]) -> Result<L, E> {
        Ok(L::odd())
    }

    fn visit_str<E>(self, text: &str) -> Result<L, E> {
        Ok(L::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<L, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(L::odd())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<L, A::Error> {
        L::pairs(map)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        deserializer.deserialize_any(Anything(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Loose<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Loose<T>, D::Error> {
        deserializer.deserialize_any(Anything(PhantomData))
    }
}
