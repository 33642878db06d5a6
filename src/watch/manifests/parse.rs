//! Reads the objects of one document.

pub(super) use self::{
    decode::{Broken, Contents, Format},
    fields::UnknownField,
};
use self::{
    decode::{Seed, decode, decode_object},
    fields::UnknownFields,
    header::{Header, Named},
    meant::meant,
};
use crate::{
    services::{Kind, ObjectName},
    watch::kind::{ApiObject, kind_of},
};

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
    let Some(header) = decode(text, format, Seed::<Option<Header>>::default())? else {
        return Ok(Contents::default());
    };
    let (api_version, kind) = header.identity().map_err(Broken::because)?;
    if let Some(kind) = kind_of(&api_version, &kind) {
        let object = decode_object(text, format, kind)
            .map_err(|broken| broken.quoting(text).of(key(text, format, kind)))?;
        let mut unknown = Vec::new();
        // All faults were found above.
        let _ = decode(text, format, UnknownFields::of(kind, &mut unknown));
        return Ok(Contents {
            objects: vec![each(None, object, unknown)],
            ..Contents::default()
        });
    }
    let each = |item, object, unknown| each(Some(item), object, unknown);
    match kind.strip_suffix("List") {
        Some("") if api_version == "v1" => list::read(text, format, None, each),
        Some(of) if kind_of(&api_version, of).is_some() => {
            list::read(text, format, Some((&api_version, of)), each)
        }
        _ => match meant(&api_version, &kind) {
            Some(meant) => {
                let key = meant.kind.and_then(|kind| key(text, format, kind));
                Err(Broken::because(meant.reason).of(key))
            }
            None => Ok(Contents {
                ignored: vec![format!("{api_version} {kind}")],
                ..Contents::default()
            }),
        },
    }
}

/// Identifies the object of that kind in a document, if that can be parsed.
fn key(text: &str, format: Format, kind: Kind) -> Option<ObjectName> {
    let named = decode(text, format, Seed::<Named>::default());
    named.ok()?.key(kind)
}

#[cfg(test)]
mod tests;
