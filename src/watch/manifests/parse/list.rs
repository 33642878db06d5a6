//! Reads the items of a list, each as if it were a document of its own.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::{
    decode::{Broken, Contents, Format, Seed, decode},
    header::{Header, Loose, Named, Text},
};
use crate::watch::manifests::kind::{ApiObject, Kind, ObjectSeed};

/// A decoder cannot go on after a value of another type than it expects: for each such item the
/// list is read again from its beginning. This many bytes may be read that way, which takes some
/// seconds, or the list [`LEAST_READ_AGAIN`] times if that is more.
const MOST_READ_AGAIN: usize = 64 << 20;

/// How many times a list may be read again, however large it is.
const LEAST_READ_AGAIN: usize = 8;

/// Reads a list. Items of a list of one kind need not repeat their kind, and
/// an API server does not write it there.
pub(super) fn read<T>(
    text: &str,
    format: Format,
    of: Option<(&str, &str)>,
    mut each: impl FnMut(usize, ApiObject) -> T,
) -> Result<Contents<T>, Broken> {
    let list = decode(text, format, Seed::<List<Header>>::default())?;
    let mut contents = Contents::default();
    let mut kinds = Vec::new();
    for (i, item) in list.items.unwrap_or_default().into_iter().enumerate() {
        let known = match kind_of(item, of) {
            Ok((api_version, kind)) => {
                let known = Kind::of(&api_version, &kind);
                if known.is_none() {
                    contents.ignored.push(format!("{api_version} {kind}"));
                }
                known
            }
            Err(reason) => {
                contents.broken.push(Broken {
                    item: Some(i),
                    ..Broken::because(reason)
                });
                None
            }
        };
        kinds.push(known);
    }
    let mut left = (MOST_READ_AGAIN / text.len().max(1)).max(LEAST_READ_AGAIN);
    let mut broken = Vec::new();
    let mut next = 0;
    loop {
        let mut reading = None;
        let seed = ListSeed {
            kinds: &kinds,
            next,
            reading: &mut reading,
            objects: &mut contents.objects,
            each: &mut each,
        };
        let Err(fault) = decode(text, format, seed) else {
            break;
        };
        let fault = fault.quoting(text);
        let Some(item) = reading else {
            // Nothing after it can be read.
            contents.broken.push(fault);
            break;
        };
        broken.push(Broken {
            item: Some(item),
            ..fault
        });
        if left == 0 {
            contents.broken.push(Broken::because(format!(
                "too many items of the list are broken: those after items[{item}] are not read; \
                 mend what is named, or write each object as a document of its own"
            )));
            break;
        }
        left -= 1;
        next = item + 1;
    }
    name(text, format, &kinds, &mut broken);
    contents.broken.extend(broken);
    contents
        .broken
        .sort_by_key(|broken| broken.item.unwrap_or(usize::MAX));
    Ok(contents)
}

/// Returns version and kind of an item.
fn kind_of(
    item: Loose<Header>,
    of: Option<(&str, &str)>,
) -> Result<(String, String), &'static str> {
    let Loose(Some(header)) = item else {
        return Err("not a Kubernetes object: `key: value` pairs belong here");
    };
    match of {
        Some((api_version, kind)) if header.kind == Text::Absent => {
            Ok((api_version.to_owned(), kind.to_owned()))
        }
        _ => header.identity(),
    }
}

/// Finds out which objects are broken.
fn name(text: &str, format: Format, kinds: &[Option<Kind>], broken: &mut [Broken]) {
    if broken.is_empty() {
        return;
    }
    let named = decode(text, format, Seed::<List<Named>>::default());
    let named = named.ok().and_then(|list| list.items).unwrap_or_default();
    let mut named: Vec<_> = named.into_iter().map(|item| item.0).collect();
    for fault in broken {
        let Some(item) = fault.item else { continue };
        let kind = kinds.get(item).copied().flatten();
        let named = named.get_mut(item).and_then(Option::take);
        let key = kind.zip(named).and_then(|(kind, named)| named.key(kind));
        *fault = std::mem::take(fault).of(key);
    }
}

#[derive(Debug, Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct List<T> {
    items: Option<Vec<Loose<T>>>,
}

/// Reads the objects of a list whose items have these kinds; `None` is one that is not
/// read.
struct ListSeed<'a, T, F> {
    kinds: &'a [Option<Kind>],
    /// Items before this one are done with.
    next: usize,
    /// The item that is being read.
    reading: &'a mut Option<usize>,
    objects: &'a mut Vec<T>,
    each: &'a mut F,
}

impl<'de, T, F: FnMut(usize, ApiObject) -> T> DeserializeSeed<'de> for ListSeed<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T, F: FnMut(usize, ApiObject) -> T> Visitor<'de> for ListSeed<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "items" {
                map.next_value_seed(ItemsSeed(&mut self))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct ItemsSeed<'a, 'k, T, F>(&'a mut ListSeed<'k, T, F>);

impl<'de, T, F: FnMut(usize, ApiObject) -> T> DeserializeSeed<'de> for ItemsSeed<'_, '_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, T, F: FnMut(usize, ApiObject) -> T> Visitor<'de> for ItemsSeed<'_, '_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the items of a list")
    }

    fn visit_none<E>(self) -> Result<Self::Value, E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let list = self.0;
        for (i, kind) in list.kinds.iter().enumerate() {
            let kind = kind.filter(|_| i >= list.next);
            *list.reading = kind.map(|_| i);
            let more = match kind {
                Some(kind) => match items.next_element_seed(ObjectSeed(kind))? {
                    Some(object) => {
                        list.objects.push((list.each)(i, object));
                        true
                    }
                    None => false,
                },
                None => items.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        *list.reading = None;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}
