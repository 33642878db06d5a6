//! The fields that identify an object, read even if their values have another type: such a value
//! hides nothing after it.

use serde::Deserialize;
use serde_json::Value;

use crate::services::{Kind, ObjectName};

/// Maximum length of a name that the API server accepts.
const LONGEST_NAME: usize = 253;

/// The fields of a document that say which kind of object it is.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Header {
    pub(super) api_version: Value,
    pub(super) kind: Value,
}

/// Returns version and kind.
///
/// # Errors
/// Says which of them is missing.
pub(super) fn identity<'a>(
    api_version: &'a Value,
    kind: &'a Value,
) -> Result<(&'a str, &'a str), &'static str> {
    let text = |value: &'a Value| value.as_str().filter(|text| !text.is_empty());
    match (text(api_version), text(kind)) {
        (Some(api_version), Some(kind)) => Ok((api_version, kind)),
        (None, _) => Err("not a Kubernetes object: it has no apiVersion"),
        (_, None) => Err("not a Kubernetes object: it has no kind"),
    }
}

/// Names the object of that kind, if its name and namespace can be parsed.
pub(super) fn name_of(object: &Value, kind: Kind) -> Option<ObjectName> {
    let metadata = &object["metadata"];
    let namespace = match &metadata["namespace"] {
        Value::Null => None,
        namespace => Some(namespace.as_str()?),
    };
    let name = metadata["name"].as_str()?;
    // The name is shown, so it must not be a text of arbitrary form or length.
    let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let mut texts = namespace.into_iter().chain([name]);
    if !texts.all(|text| text.len() <= LONGEST_NAME && text.chars().all(is_safe)) {
        return None;
    }
    ObjectName::new(kind, namespace, Some(name))
}
