//! The documents as a book, made by mdBook.

use std::{fs, process::Command};

use super::{links, root};
use crate::lab::{is_installed, path_with_tools, skip};

/// Every page of the contents becomes one of the book, and mdBook reports nothing.
#[test]
fn every_page_is_one_of_the_book() {
    if !is_installed("mdbook") {
        return skip("mdbook is not installed: make test-all INSTALL=yes installs it");
    }
    let book = std::env::temp_dir().join(format!("tripod-book-{}", std::process::id()));
    let built = Command::new("mdbook")
        .arg("build")
        .arg("--dest-dir")
        .args([&book, &root().join("docs")])
        .env("PATH", path_with_tools())
        .output()
        .expect("mdbook runs");
    let said = String::from_utf8_lossy(&built.stderr);
    let troubles = ["WARN", "ERROR"].map(|level| said.contains(level));
    let contents = fs::read_to_string(root().join("docs/SUMMARY.md")).expect("SUMMARY.md");
    let missing: Vec<String> = links(&contents)
        .into_iter()
        .map(|page| page.replace(".md", ".html"))
        .filter(|page| !book.join(page).is_file())
        .collect();
    let _ = fs::remove_dir_all(&book);
    assert!(built.status.success() && troubles == [false; 2], "{said}");
    assert!(missing.is_empty(), "missing in the book: {missing:?}");
}
