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
pub enum Namespaces {
    /// The empty set.
    #[default]
    None,
    /// The namespaces of these names.
    Named(Arc<BTreeSet<String>>),
    /// All namespaces, including those that do not exist yet.
    All,
}

impl Namespaces {
    /// Selects the namespaces with these `names`; `*` stands for all.
    pub fn new(names: impl IntoIterator<Item = String>) -> Namespaces {
        let names: BTreeSet<String> = names.into_iter().collect();
        if names.contains("*") {
            Namespaces::All
        } else if names.is_empty() {
            Namespaces::None
        } else {
            Namespaces::Named(Arc::new(names))
        }
    }

    /// Returns whether the namespace of that name is among them.
    pub fn contain(&self, name: &str) -> bool {
        match self {
            Namespaces::None => false,
            Namespaces::Named(names) => names.contains(name),
            Namespaces::All => true,
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Namespaces::None
    }
}
