//! The map of folders in ARCHITECTURE.md names only what exists.

use std::{collections::BTreeSet, fs, path::Path};

use super::root;

/// Names in code marks of the map that are programs.
const PROGRAMS: [&str; 1] = ["nft"];

/// Returns the texts between the code marks of `text`.
fn marked(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Parses the rows of the map about `src`: their folders and files, and the description.
fn rows(text: &str) -> Vec<(Vec<&str>, &str)> {
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| `src/") || line.starts_with("| `crates/"));
    let rows = rows.filter_map(|line| line[2..].split_once(" | "));
    rows.map(|(of, said)| (marked(of).collect(), said))
        .collect()
}

/// Returns whether a text in code marks is the name of a file or folder.
fn is_name(text: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_lowercase() || matches!(c, '_' | '/' | '.');
    text.chars().all(is_of_name) && !PROGRAMS.contains(&text)
}

fn is_there(folder: &Path, name: &str) -> bool {
    // The files of a crate are in its folder `src`.
    let mut folders = [folder.to_owned(), folder.join("src")].into_iter();
    folders.any(|folder| {
        let path = folder.join(name.trim_end_matches('/'));
        path.exists() || path.with_extension("rs").exists()
    })
}

#[test]
fn the_map_names_what_is_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the document");
    let rows = rows(&text);
    assert!(rows.len() > 30, "the map was not found: {rows:?}");
    for (places, said) in &rows {
        let names = marked(said).filter(|text| is_name(text));
        for name in names {
            let mut folders = places.iter().map(|place| root().join(place));
            let found = folders.any(|folder| is_there(&folder, name)) || root().join(name).exists();
            assert!(found, "{name:?} is not in {places:?}");
        }
    }

    let named: BTreeSet<_> = rows.iter().flat_map(|(places, _)| places).collect();
    for entry in fs::read_dir(root().join("src")).expect("src") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let row = format!("src/{name}/");
        // `tests` has the tests that concern the whole library.
        if path.is_dir() && name != "tests" {
            assert!(named.contains(&&*row), "the map has no row for {row}");
        }
    }
}
