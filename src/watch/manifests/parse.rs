//! Reads the objects of one document.

use std::marker::PhantomData;

use serde_json::Value;

pub(super) use self::{
    decode::{Broken, Contents, Format},
    fields::UnknownField,
};
use self::{
    decode::{decode, of_value},
    fields::unknown_fields,
    header::{Header, identity, name_of},
    meant::meant,
};
use crate::watch::kind::{ApiObject, ObjectSeed, kind_of};

mod decode;
mod fields;
mod header;
mod list;
mod meant;
mod similar;

/// Reads a document. `each` is called with every object, its number in a list and its unknown
/// fields, before the next is read: an object in the API's form takes several times the memory
/// of its reduced form, and reduced objects would lie scattered over all that memory, which the
/// allocator could not give back. A document with only comments has no objects.
pub(super) fn read<T>(
    text: &str,
    format: Format,
    mut each: impl FnMut(Option<usize>, ApiObject, Vec<UnknownField>) -> T,
) -> Result<Contents<T>, Broken> {
    let Some(header) = decode(text, format, PhantomData::<Option<Header>>)? else {
        return Ok(Contents::default());
    };
    let (api_version, kind) =
        identity(&header.api_version, &header.kind).map_err(Broken::because)?;
    let value = || decode(text, format, PhantomData::<Value>).unwrap_or_default();
    if let Some(kind) = kind_of(api_version, kind) {
        let value = value();
        let (name, unknown) = (name_of(&value, kind), unknown_fields(kind, &value));
        let object = decode(text, format, ObjectSeed(kind))
            .or_else(|broken| of_value(value, kind).ok_or(broken))
            .map_err(|broken| broken.quoting(text).of(name))?;
        return Ok(Contents {
            objects: vec![each(None, object, unknown)],
            ..Contents::default()
        });
    }
    let each = |item, object, unknown| each(Some(item), object, unknown);
    match kind.strip_suffix("List") {
        Some("") if api_version == "v1" => list::read(text, format, None, each),
        Some(of) if kind_of(api_version, of).is_some() => {
            list::read(text, format, Some((api_version, of)), each)
        }
        _ => match meant(api_version, kind) {
            Some(meant) => {
                let name = meant.kind.and_then(|kind| name_of(&value(), kind));
                Err(Broken::because(meant.reason).of(name))
            }
            None => Ok(Contents {
                ignored: vec![format!("{api_version} {kind}")],
                ..Contents::default()
            }),
        },
    }
}

#[cfg(test)]
mod tests;
