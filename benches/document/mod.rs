//! docs/benchmarks.md and docs/development/performance.md: sections that the benches write, with
//! tables and plots from the CSV files of docs/benchmarks.
//!
//! A section is enclosed by two comments with its name. Text outside of the sections was written by
//! hand and stays unchanged.

pub mod csv;
pub mod machine;
pub mod plot;
pub mod table;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A page with sections in this order.
struct Page {
    file: &'static str,
    title: &'static str,
    sections: &'static [&'static str],
}

const PAGES: [Page; 2] = [
    Page {
        file: "benchmarks.md",
        title: "Benchmarks",
        sections: &["data-path", "scale", "churn", "connecting", "shapes"],
    },
    Page {
        file: "development/performance.md",
        title: "Performance targets",
        sections: &["data-path-targets", "change-targets", "iptables"],
    },
];

pub fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(file)
}

/// Writes the text of one section of [`PAGES`]; the rest of its page stays unchanged.
pub fn write(name: &str, text: &str) {
    let page = PAGES.iter().find(|page| page.sections.contains(&name));
    let page = page.unwrap_or_else(|| panic!("no section {name}"));
    let path = docs(page.file);
    let new = |_| format!("# {}\n", page.title);
    let document = fs::read_to_string(&path).unwrap_or_else(new);
    fs::write(path, with_section(document, page, name, text)).expect("writing the page");
}

fn with_section(mut document: String, page: &Page, name: &str, text: &str) -> String {
    let mark = |name: &str| (format!("<!-- {name} -->"), format!("<!-- /{name} -->"));
    for section in page.sections {
        let (begin, end) = mark(section);
        if !document.contains(&begin) {
            document.push_str(&format!("\n{begin}\n{end}\n"));
        }
    }
    let (begin, end) = mark(name);
    let from = document.find(&begin).expect("it was added") + begin.len();
    let to = document[from..].find(&end).map(|to| from + to);
    let to = to.unwrap_or_else(|| panic!("{}: {begin} without {end}", page.file));
    document.replace_range(from..to, &format!("\n\n{}\n\n", text.trim()));
    document
}
