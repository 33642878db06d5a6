//! Reads the items of a list, each like a separate document.

use std::{borrow::Cow, cell::Cell, fmt};

use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{
    decode::{Broken, Contents, Format, decode, of_value},
    fields::{UnknownField, unknown_fields},
    header::{identity, name_of},
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
    let mut contents = Contents::default();
    let (mut kinds, mut unknown) = (Vec::new(), Vec::new());
    each_value(text, format, &mut |item, value| {
        let kind = examine(item, &value, of, &mut contents);
        unknown.push(kind.map_or_else(Vec::new, |kind| unknown_fields(kind, &value)));
        kinds.push(kind);
    })?;
    let mut add = |item: usize, object| {
        let unknown = unknown.get_mut(item).map(std::mem::take);
        let object = each(item, object, unknown.unwrap_or_default());
        contents.objects.push(object);
    };
    let mut left = (MOST_READ_AGAIN / text.len().max(1)).max(LEAST_READ_AGAIN);
    // The items as values, once one of them cannot be parsed.
    let mut values: Option<Vec<Value>> = None;
    let mut next = 0;
    loop {
        // The item that is being read as an object.
        let reading = Cell::new(None);
        let read = each_item(
            text,
            format,
            &mut |item| {
                let kind = kinds.get(item).copied().flatten().filter(|_| item >= next);
                reading.set(kind.map(|kind| (item, kind)));
                kind.map_or(Form::Skipped, Form::Object)
            },
            &mut |item, found| {
                if let Item::Object(object) = found {
                    add(item, *object);
                }
            },
        );
        let Err(fault) = read else {
            break;
        };
        let fault = fault.quoting(text);
        let Some((item, kind)) = reading.get() else {
            // Nothing after it can be parsed.
            contents.broken.push(fault);
            break;
        };
        let values = values.get_or_insert_with(|| {
            let mut values = Vec::new();
            // It was read in this way above.
            let _ = each_value(text, format, &mut |_, value| values.push(value));
            values
        });
        let value = values.get_mut(item).map(Value::take).unwrap_or_default();
        let name = name_of(&value, kind);
        match of_value(value, kind) {
            Some(object) => add(item, object),
            None => contents.broken.push(fault.of_item(item).of(name)),
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
    contents
        .broken
        .sort_by_key(|broken| broken.item.unwrap_or(usize::MAX));
    Ok(contents)
}

/// Returns the kind of an item if it is read, else adds it to `contents`.
fn examine<T>(
    item: usize,
    value: &Value,
    of: Option<(&str, &str)>,
    contents: &mut Contents<T>,
) -> Option<Kind> {
    let identity = match of {
        _ if !value.is_object() => Err("not a Kubernetes object: expected `key: value` pairs"),
        Some(of) if value["kind"].is_null() => Ok(of),
        _ => identity(&value["apiVersion"], &value["kind"]),
    };
    let broken = match identity {
        Err(reason) => Broken::because(reason),
        Ok((api_version, kind)) => {
            let read = kind_of(api_version, kind);
            let meant = match read {
                Some(_) => return read,
                None => meant(api_version, kind),
            };
            let Some(meant) = meant else {
                contents.ignored.push(format!("{api_version} {kind}"));
                return None;
            };
            let name = meant.kind.and_then(|kind| name_of(value, kind));
            Broken::because(meant.reason).of(name)
        }
    };
    contents.broken.push(broken.of_item(item));
    None
}

/// Calls `found` with each item of a list and its number, one after the other.
fn each_value(
    text: &str,
    format: Format,
    found: &mut dyn FnMut(usize, Value),
) -> Result<(), Broken> {
    each_item(text, format, &mut |_| Form::Value, &mut |number, item| {
        if let Item::Value(value) = item {
            found(number, value);
        }
    })
}

/// Calls `found` with each item of a list in the form that `form` says, one after the other.
fn each_item(
    text: &str,
    format: Format,
    form: &mut dyn FnMut(usize) -> Form,
    found: &mut dyn FnMut(usize, Item),
) -> Result<(), Broken> {
    decode(text, format, List(Items { form, found }))
}

/// The form in which an item is read.
enum Form {
    Value,
    Object(Kind),
    Skipped,
}

enum Item {
    Value(Value),
    Object(Box<ApiObject>),
    Skipped,
}

impl<'de> DeserializeSeed<'de> for Form {
    type Value = Item;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Item, D::Error> {
        Ok(match self {
            Form::Value => Item::Value(Value::deserialize(deserializer)?),
            Form::Object(kind) => {
                Item::Object(Box::new(ObjectSeed(kind).deserialize(deserializer)?))
            }
            Form::Skipped => {
                IgnoredAny::deserialize(deserializer)?;
                Item::Skipped
            }
        })
    }
}

/// Reads a list.
struct List<'a>(Items<'a>);

/// Reads the items of a list.
struct Items<'a> {
    form: &'a mut dyn FnMut(usize) -> Form,
    found: &'a mut dyn FnMut(usize, Item),
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self.0)
    }
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut are_read = false;
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            if key != "items" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if std::mem::replace(&mut are_read, true) {
                return Err(A::Error::duplicate_field("items"));
            }
            map.next_value_seed(Items {
                form: &mut *self.form,
                found: &mut *self.found,
            })?;
        }
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut number = 0;
        while let Some(item) = items.next_element_seed((self.form)(number))? {
            (self.found)(number, item);
            number += 1;
        }
        Ok(())
    }
}
