//! The namespace of an object, and namespaces that the operator names.

use std::{collections::BTreeSet, sync::Arc};

/// Resolves the namespace `given` in an object: without one it is in `default`, as in kubectl, even
/// if a template left the name empty.
///
/// ```
/// # use tripod::services::namespace;
/// assert_eq!([Some("a"), Some(""), None].map(namespace), ["a", "default", "default"]);
/// ```
pub fn namespace(given: Option<&str>) -> &str {
    given.filter(|name| !name.is_empty()).unwrap_or("default")
}

/// Some namespaces, all, or none.
///
/// ```
/// # use tripod::services::Namespaces;
/// let named = |text: &[&str]| Namespaces::new(text.iter().map(|name| name.to_string()));
/// assert!(named(&["a", "b"]).contain("b"));
/// assert!(!named(&["a", "b"]).contain("c"));
/// assert!(named(&["a", "*"]).contain("c"));
/// assert!(named(&[]).is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(Arc<BTreeSet<String>>);

impl Namespaces {
    /// Stands for all namespaces, including those that do not exist yet.
    pub const ALL: &str = "*";

    /// Selects the namespaces with these `names`, among which may be [`Namespaces::ALL`].
    pub fn new(names: impl IntoIterator<Item = String>) -> Namespaces {
        Namespaces(Arc::new(names.into_iter().collect()))
    }

    /// Returns whether the namespace of that name is among them.
    pub fn contain(&self, name: &str) -> bool {
        self.0.contains(name) || self.0.contains(Namespaces::ALL)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
