//! Lists of names in messages.

use std::fmt::Display;

/// Lists these names; empty if there are none.
pub(crate) fn all_of(names: impl IntoIterator<Item = impl Display>) -> String {
    first_of(names, usize::MAX)
}

/// Lists the first `most` of these names, and counts the others; empty if there are none.
pub(crate) fn first_of(names: impl IntoIterator<Item = impl Display>, most: usize) -> String {
    let mut names = names.into_iter();
    let named: Vec<String> = names
        .by_ref()
        .take(most)
        .map(|name| name.to_string())
        .collect();
    let named = named.join(", ");
    match names.count() {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
