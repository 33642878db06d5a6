//! Reads the items of a list, each like a separate document.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    decode::{Broken, Contents, Format, Seed, decode, of_value},
    fields::{UnknownField, UnknownFields},
    header::{Header, Loose, Named, Text},
    meant::meant,
};
use crate::{
    services::Kind,
    watch::kind::{ApiObject, ObjectSeed, kind_of},
};

/// A decoder cannot continue after a value of an unexpected type: for each such item the list is
/// read again from its beginning. This many bytes may be read that way, which takes some seconds,
/// or the list [`LEAST_READ_AGAIN`] times if that is more.
const MOST_READ_AGAIN: usize = 64 << 20;

/// How many times a list may be read again, regardless of its size.
const LEAST_READ_AGAIN: usize = 8;

/// Reads a list. Items of a list of one kind need not repeat their kind, and an API server omits it
/// there.
pub(super) fn read<T>(
    text: &str,
    format: Format,
    of: Option<(&str, &str)>,
    mut each: impl FnMut(usize, ApiObject, Vec<UnknownField>) -> T,
) -> Result<Contents<T>, Broken> {
    let list = decode(text, format, Seed::<List<Header>>::default())?;
    let mut contents = Contents::default();
    let mut kinds = Kinds::of(list, of, &mut contents);
    let mut unknown: Vec<Vec<UnknownField>> = kinds.read.iter().map(|_| Vec::new()).collect();
    // All faults are found below.
    let _ = decode(
        text,
        format,
        ListSeed(UnknownOfItems(&kinds.read, &mut unknown)),
    );
    let mut each = |item: usize, object| {
        let unknown = unknown.get_mut(item).map(std::mem::take);
        each(item, object, unknown.unwrap_or_default())
    };
    let mut left = (MOST_READ_AGAIN / text.len().max(1)).max(LEAST_READ_AGAIN);
    // The items as values, once one of them cannot be parsed.
    let mut values: Option<Vec<Value>> = None;
    let mut next = 0;
    loop {
        let mut reading = None;
        let items = ObjectsOfItems {
            kinds: &kinds.read,
            next,
            reading: &mut reading,
            objects: &mut contents.objects,
            each: &mut each,
        };
        let Err(fault) = decode(text, format, ListSeed(items)) else {
            break;
        };
        let fault = fault.quoting(text);
        let Some(item) = reading else {
            // Nothing after it can be parsed.
            contents.broken.push(fault);
            break;
        };
        let values = values.get_or_insert_with(|| {
            let list = decode(text, format, Seed::<List<Value>>::default());
            list.ok().and_then(List::whole).unwrap_or_default()
        });
        let value = values.get_mut(item).map(Value::take);
        let kind = kinds.read.get(item).copied().flatten();
        match value
            .zip(kind)
            .and_then(|(value, kind)| of_value(value, kind))
        {
            Some(object) => contents.objects.push(each(item, object)),
            None => kinds.broken.push(Broken {
                item: Some(item),
                ..fault
            }),
        }
        if left == 0 {
            contents.broken.push(Broken::because(format!(
                "too many items of the list are invalid: those after items[{item}] are not read; \
                 correct the named items, or write each object as a separate document"
            )));
            break;
        }
        left -= 1;
        next = item + 1;
    }
    name(text, format, &kinds.named, &mut kinds.broken);
    contents.broken.extend(kinds.broken);
    contents
        .broken
        .sort_by_key(|broken| broken.item.unwrap_or(usize::MAX));
    Ok(contents)
}

/// The kinds of the items of a list.
struct Kinds {
    /// `None`: the item is not read.
    read: Vec<Option<Kind>>,
    /// The same, or the intended kind if there is a typing error.
    named: Vec<Option<Kind>>,
    /// Broken items, whose names may still be readable.
    broken: Vec<Broken>,
}

impl Kinds {
    /// Adds the items that are not read to `contents`.
    fn of<T>(list: List<Header>, of: Option<(&str, &str)>, contents: &mut Contents<T>) -> Kinds {
        let mut kinds = Kinds {
            read: Vec::new(),
            named: Vec::new(),
            broken: Vec::new(),
        };
        for (i, item) in list.items.unwrap_or_default().into_iter().enumerate() {
            let broken = |reason: String| Broken {
                item: Some(i),
                ..Broken::because(reason)
            };
            let (mut read, mut named) = (None, None);
            match item_kind(item, of) {
                Ok((api_version, kind)) => {
                    read = kind_of(&api_version, &kind);
                    named = read;
                    match meant(&api_version, &kind).filter(|_| read.is_none()) {
                        Some(meant) => {
                            named = meant.kind;
                            kinds.broken.push(broken(meant.reason));
                        }
                        None if read.is_none() => {
                            contents.ignored.push(format!("{api_version} {kind}"));
                        }
                        None => {}
                    }
                }
                Err(reason) => contents.broken.push(broken(reason.to_owned())),
            }
            kinds.read.push(read);
            kinds.named.push(named);
        }
        kinds
    }
}

/// Returns version and kind of an item.
fn item_kind(
    item: Loose<Header>,
    of: Option<(&str, &str)>,
) -> Result<(String, String), &'static str> {
    let Loose(Some(header)) = item else {
        return Err("not a Kubernetes object: expected `key: value` pairs");
    };
    match of {
        Some((api_version, kind)) if header.kind == Text::Absent => {
            Ok((api_version.to_owned(), kind.to_owned()))
        }
        _ => header.identity(),
    }
}

/// Identifies the broken objects.
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

impl List<Value> {
    /// Returns the items; `None` if not all of them could be parsed.
    fn whole(self) -> Option<Vec<Value>> {
        let items = self.items?.into_iter();
        items.map(|item| item.0).collect()
    }
}

/// Reads the items of a list.
struct ListSeed<I>(I);

impl<'de, I: Items> DeserializeSeed<'de> for ListSeed<I> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, I: Items> Visitor<'de> for ListSeed<I> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key == "items" {
                map.next_value_seed(ItemsSeed(&mut self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

struct ItemsSeed<'a, I>(&'a mut I);

impl<'de, I: Items> DeserializeSeed<'de> for ItemsSeed<'_, I> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de, I: Items> Visitor<'de> for ItemsSeed<'_, I> {
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
        self.0.read(&mut items)?;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Reads items.
trait Items {
    fn read<'de, A: SeqAccess<'de>>(&mut self, items: &mut A) -> Result<(), A::Error>;
}

/// Reads the objects of items of these kinds; an item of kind `None` is skipped.
struct ObjectsOfItems<'a, T, F> {
    kinds: &'a [Option<Kind>],
    /// Items before this one are finished.
    next: usize,
    /// The item that is being read.
    reading: &'a mut Option<usize>,
    objects: &'a mut Vec<T>,
    each: &'a mut F,
}

impl<T, F: FnMut(usize, ApiObject) -> T> Items for ObjectsOfItems<'_, T, F> {
    fn read<'de, A: SeqAccess<'de>>(&mut self, items: &mut A) -> Result<(), A::Error> {
        for (i, kind) in self.kinds.iter().enumerate() {
            let kind = kind.filter(|_| i >= self.next);
            *self.reading = kind.map(|_| i);
            let more = match kind {
                Some(kind) => match items.next_element_seed(ObjectSeed(kind))? {
                    Some(object) => {
                        self.objects.push((self.each)(i, object));
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
        *self.reading = None;
        Ok(())
    }
}

/// Finds the unknown fields of items of these kinds.
struct UnknownOfItems<'a>(&'a [Option<Kind>], &'a mut [Vec<UnknownField>]);

impl Items for UnknownOfItems<'_> {
    fn read<'de, A: SeqAccess<'de>>(&mut self, items: &mut A) -> Result<(), A::Error> {
        for (kind, unknown) in self.0.iter().zip(self.1.iter_mut()) {
            match kind {
                Some(kind) => items
                    .next_element_seed(UnknownFields::of(*kind, unknown))?
                    .is_some(),
                None => items.next_element::<IgnoredAny>()?.is_some(),
            };
        }
        Ok(())
    }
}
