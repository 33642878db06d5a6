//! Reads the objects of one document.

pub(super) use self::decode::{Broken, Contents, Format};
use self::{
    decode::{Seed, decode},
    header::{Header, Named},
};
use super::kind::{ApiObject, Kind, ObjectSeed};

mod decode;
mod header;
mod list;

/// Reads a document. `each` is called with every object, and its number in a list,
/// before the next is read: an object in the API's form takes several times the memory
/// of its reduced form, and reduced objects would lie scattered over all that memory,
/// which the allocator could not give back. A document of nothing but comments
/// has no objects.
pub(super) fn read<T>(
    text: &str,
    format: Format,
    mut each: impl FnMut(Option<usize>, ApiObject) -> T,
) -> Result<Contents<T>, Broken> {
    let Some(header) = decode(text, format, Seed::<Option<Header>>::default())? else {
        return Ok(Contents::default());
    };
    let (api_version, kind) = header.identity().map_err(Broken::because)?;
    if let Some(kind) = Kind::of(&api_version, &kind) {
        let object = decode(text, format, ObjectSeed(kind)).map_err(|broken| {
            let named = decode(text, format, Seed::<Named>::default());
            let key = named.ok().and_then(|named| named.key(kind));
            broken.quoting(text).of(key)
        })?;
        return Ok(Contents {
            objects: vec![each(None, object)],
            ..Contents::default()
        });
    }
    let each = |item, object| each(Some(item), object);
    match kind.strip_suffix("List") {
        Some("") if api_version == "v1" => list::read(text, format, None, each),
        Some(of) if Kind::of(&api_version, of).is_some() => {
            list::read(text, format, Some((&api_version, of)), each)
        }
        _ => Ok(Contents {
            ignored: vec![format!("{api_version} {kind}")],
            ..Contents::default()
        }),
    }
}

#[cfg(test)]
mod tests;
