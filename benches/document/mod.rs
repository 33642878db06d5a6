//! docs/benchmarks.md: sections that each bench writes by itself, tables and plots
//! from the CSV files beside it.
//!
//! A section stands between two comments with its name. What stands outside of them
//! was written by hand and stays as it is.

pub mod csv;
pub mod machine;
pub mod plot;
pub mod table;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The sections, in the order in which a new document has them.
const SECTIONS: [&str; 5] = ["data-path", "scale", "churn", "connecting", "iptables"];

const HEAD: &str = "# Benchmarks\n";

/// Returns the path of a file in `docs/`.
pub fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(file)
}

/// Writes the text of one section, whose name is one of [`SECTIONS`]; the rest of the
/// document stays as it is.
pub fn write(name: &str, text: &str) {
    assert!(SECTIONS.contains(&name), "no section {name}");
    let path = docs("benchmarks.md");
    let document = fs::read_to_string(&path).unwrap_or_else(|_| HEAD.to_owned());
    fs::write(path, with_section(document, name, text)).expect("writing docs/benchmarks.md");
}

fn with_section(mut document: String, name: &str, text: &str) -> String {
    let mark = |name: &str| (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    for section in SECTIONS {
        let (begin, end) = mark(section);
        if !document.contains(&begin) {
            document.push_str(&format!("\n{begin}\n{end}\n"));
        }
    }
    let (begin, end) = mark(name);
    let from = document.find(&begin).expect("it was added") + begin.len();
    let to = document[from..].find(&end).map(|to| from + to);
    let to = to.unwrap_or_else(|| panic!("docs/benchmarks.md: {begin} without {end}"));
    document.replace_range(from..to, &format!("\n\n{}\n\n", text.trim()));
    document
}
