//! What an object's author asks of Tripod alone.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::names::Names;

/// Prefix of the annotations and labels that belong to Tripod.
pub const PREFIX: &str = "tripod.proxy/";

/// Annotations and labels under `tripod.proxy/`; an annotation wins over a
/// label of the same key. Takes no memory beyond itself when there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions(Box<[(Arc<str>, Arc<str>)]>);

impl Extensions {
    /// The value of `tripod.proxy/<key>`, if the object has it.
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.0.binary_search_by(|(held, _)| (**held).cmp(key));
        at.ok().map(|at| &self.0[at].1)
    }

    /// Keys (without the prefix) and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }

    pub(super) fn of(metadata: &ObjectMeta, names: &mut Names) -> Extensions {
        let mut found = BTreeMap::new();
        for set in [&metadata.labels, &metadata.annotations] {
            for (key, value) in set.iter().flatten() {
                if let Some(key) = key.strip_prefix(PREFIX) {
                    found.insert(names.share(key), names.share(value));
                }
            }
        }
        Extensions(found.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_keys_are_kept_and_annotations_win() {
        let set = |pairs: &[(&str, &str)]| {
            Some(
                pairs
                    .iter()
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
            )
        };
        let metadata = ObjectMeta {
            labels: set(&[("app", "web"), ("tripod.proxy/weight", "1")]),
            annotations: set(&[
                ("tripod.proxy/weight", "3"),
                ("tripod.proxy/scheduler", "wrr"),
                ("other.example/weight", "9"),
            ]),
            ..ObjectMeta::default()
        };
        let extensions = Extensions::of(&metadata, &mut Names::default());
        assert_eq!(
            extensions.iter().collect::<Vec<_>>(),
            [("scheduler", "wrr"), ("weight", "3")]
        );
        assert_eq!(extensions.get("weight").map(|value| &**value), Some("3"));
        assert_eq!(extensions.get("app"), None);
    }
}
